//! `host_objects`: who becomes an owner, and who is one no more.

use crate::hosts::{HOSTS, MIB, OBJECT, What, host_id, read, with, write};
use atoll_format::id::Addr;
use atoll_format::record::{ObjectState, key};
use atoll_object::ObjectVolume;
use atoll_object::limits::{HAND_OVER_MAX, HOLD, LEASE, TAKEOVER_AFTER, TAKEOVER_PAUSE_FIRST};
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::{Nanos, StoreError, Volume, VolumeError};
use std::rc::Rc;

#[test]
fn clients_of_one_host_that_begin_at_once_wait_for_one_takeover() {
    with(1, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let begun: Vec<_> = (0..5)
            .map(|n| {
                let all = hosts.clone();
                hosts.begin(async move { write(&all.open(2).await, n * 4096, n as u8 + 1).await })
            })
            .collect();
        for write in begun {
            write.end().await;
        }
        let record = hosts.record();
        assert_eq!(record.epoch.0, 2, "one epoch for all of them");
        assert_eq!(record.owner.map(|owner| owner.host), Some(host_id(2)));
        assert_eq!(hosts.objects(2).owned().len(), 1);
        let volume = hosts.open(2).await;
        for n in 0..5 {
            assert_eq!(read(&volume, n * 4096).await, n as u8 + 1);
        }
    });
}

#[test]
fn hosts_that_begin_at_once_have_one_owner_in_the_end() {
    with(2, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let begun: Vec<_> = (0..HOSTS)
            .map(|host| {
                let all = hosts.clone();
                hosts.begin(async move {
                    let volume = all.open(host).await;
                    write(&volume, u64::from(host) * 4096, host as u8 + 1).await;
                })
            })
            .collect();
        for write in begun {
            write.end().await;
        }
        let owner = hosts.record().owner.expect("it is owned").host;
        let owning = (0..HOSTS).filter(|&host| !hosts.objects(host).owned().is_empty());
        assert_eq!(owning.map(host_id).collect::<Vec<_>>(), [owner]);
        for from in 0..HOSTS {
            let volume = hosts.open(from).await;
            for host in 0..HOSTS {
                assert_eq!(read(&volume, u64::from(host) * 4096).await, host as u8 + 1);
            }
        }
    });
}

#[test]
fn who_gives_an_object_up_leaves_it_to_the_one_that_is_to_take_it() {
    with(3, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(2).await;
        write(&volume, 0, 1).await;
        let epoch = hosts.record().epoch;
        hosts.objects(2).release(OBJECT).await;
        assert!(hosts.objects(2).owned().is_empty());
        // It does not take it back at once, whoever asks.
        let began = hosts.now();
        write(&volume, 0, 2).await;
        assert!(hosts.now().since(began) >= HAND_OVER_MAX - Nanos::from_ms(100), "too early");
        assert_eq!(hosts.record().owner.map(|owner| owner.host), Some(host_id(2)));
        // The one that is to take it does not wait for leases: they were given back.
        hosts.objects(2).release(OBJECT).await;
        let began = hosts.now();
        let from = Addr { host: host_id(2), shard: 0 };
        assert_eq!(hosts.objects(3).take_released(OBJECT, from).await, Ok(()));
        assert!(hosts.now().since(began) < Nanos::from_ms(100), "it waited for leases");
        assert_eq!(hosts.record().epoch.0, epoch.0 + 2);
        assert_eq!(read(&volume, 0).await, 2);
        assert_eq!(hosts.record().owner.map(|owner| owner.host), Some(host_id(3)));
        // Somebody else's is not taken.
        assert!(hosts.objects(1).take_released(OBJECT, from).await.is_err());
        assert!(hosts.objects(1).owned().is_empty());
    });
}

#[test]
fn an_object_that_is_deleted_while_it_is_opened_has_no_owner() {
    for gone in [false, true] {
        with(4, move |hosts| async move {
            hosts.make_on(&[0, 1]).await;
            hosts.store(0).hold(What::Fence);
            let objects = hosts.objects(2);
            let opens = hosts.begin(async move {
                let volume = ObjectVolume::open(objects, OBJECT).await?;
                volume.read(0, 4096).await
            });
            hosts.until_asked(0, What::Fence, 1).await;
            if gone {
                let changes = vec![KeyChange::Delete(key::object(OBJECT))];
                hosts.machines.directory().apply(&Txn { compares: vec![], changes }).unwrap();
            } else {
                let mut record = hosts.record();
                record.state = ObjectState::Deleting;
                hosts.set_record(&record);
            }
            hosts.store(0).release(What::Fence);
            let answer = opens.end().await;
            assert_eq!(answer.err(), Some(VolumeError::Gone));
            assert!(hosts.objects(2).owned().is_empty(), "it serves what is deleted");
        });
    }
}

#[test]
fn a_takeover_that_fails_is_tried_again_after_a_pause_in_a_new_epoch() {
    with(5, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        for host in [0, 1] {
            hosts.store(host).refuse(What::Open, StoreError::Malformed("so a test says"), 2);
        }
        let began = hosts.now();
        let volume = hosts.open(2).await;
        write(&volume, 0, 1).await;
        let took = hosts.now().since(began);
        // Two that fail, and a pause after each; the second is twice the first.
        assert!(took >= TAKEOVER_PAUSE_FIRST * 3, "{took}");
        assert!(took < Nanos::from_secs(2), "{took}");
        assert_eq!(hosts.record().epoch.0, 4);
        assert_eq!(hosts.objects(2).owned().len(), 1);
        assert_eq!(read(&volume, 0).await, 1);
    });
}

#[test]
fn an_owner_that_is_cut_off_answers_no_read_once_another_may_serve() {
    with(6, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        // It has a copy itself, which it could read from for ever.
        let before = hosts.open(0).await;
        write(&before, 0, 1).await;
        hosts.machines.isolate(0, true);
        let cut = hosts.now();
        // For as long as its leases last it may answer, and then never.
        let last = Rc::new(std::cell::Cell::new(cut));
        let (asked, all, seen) = (before.clone(), hosts.clone(), last.clone());
        let reads = hosts.begin(async move {
            loop {
                match asked.read(0, 4096).await {
                    Ok(data) if data[0][0] == 1 => seen.set(all.now()),
                    other => break other.map(|data| data[0][0]),
                }
                all.wait(Nanos::from_ms(10)).await;
            }
        });
        let elsewhere = hosts.open(3).await;
        write(&elsewhere, 0, 2).await;
        let written = hosts.now();
        assert!(last.get() < written, "an old value after a newer one was acknowledged");
        assert!(last.get() <= cut + LEASE, "a read without a lease");
        assert_eq!(hosts.record().owner.map(|owner| owner.host), Some(host_id(3)));
        assert!(last.get() > cut, "its leases go on for a while");
        hosts.wait(Nanos::from_secs(10)).await;
        assert!(last.get() < written && !reads.is_done(), "it is held until there is an owner");
        hosts.machines.isolate(0, false);
        assert_eq!(reads.end().await, Ok(2), "and then answered by it");
        assert!(hosts.now().since(cut) < HOLD, "in time");
        assert!(hosts.objects(0).owned().is_empty(), "it owns it no more");
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn a_host_that_stops_takes_nothing_over() {
    with(7, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(2).await;
        write(&volume, 0, 1).await;
        hosts.objects(2).release_all().await;
        assert!(hosts.objects(2).owned().is_empty());
        let answer = volume.read(0, 4096).await;
        assert!(answer.is_err(), "{answer:?}");
        assert!(hosts.objects(2).owned().is_empty());
        hosts.kill(2);
        let elsewhere = hosts.open(3).await;
        let began = hosts.now();
        write(&elsewhere, MIB, 2).await;
        let took = hosts.now().since(began);
        assert!(took < TAKEOVER_AFTER * 2, "its leases were given back: {took}");
        assert_eq!(read(&elsewhere, 0).await, 1);
    });
}
