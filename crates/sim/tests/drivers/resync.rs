//! `owner::resync`: what is copied, from where, and when the copy counts.

use crate::hosts::{Done, Hosts, MIB, SIZE, What, component, read, with, write};
use atoll_format::id::Seq;
use atoll_format::op::{BlockState, OpKind};
use atoll_format::record::MemberState;
use atoll_world::volume::ZeroFlags;
use atoll_world::{Nanos, Volume, VolumeError};
use std::collections::BTreeSet;

/// The copy on host 1 is away while these blocks change: 256 is written, 512 zeroed, 768 discarded.
async fn change_without_it(hosts: &Hosts, owner: u16) -> crate::hosts::Open {
    let volume = hosts.open(owner).await;
    for chunk in 0..4 {
        write(&volume, chunk * MIB, 1).await;
    }
    hosts.wait(Nanos::from_secs(1)).await;
    hosts.kill(1);
    write(&volume, MIB, 2).await;
    volume.zero(2 * MIB, 4096, ZeroFlags::default()).await.expect("zeroed");
    volume.discard(3 * MIB, 4096).await.expect("discarded");
    assert!(!hosts.is_active(1), "it was acknowledged without that copy");
    hosts.store(1).forget_done();
    volume
}

#[test]
fn a_copy_gets_what_it_lacks_and_counts_once_it_has_all_of_it() {
    with(1, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = change_without_it(&hosts, 0).await;
        hosts.store(1).hold(What::CopyIn);
        hosts.store(1).hold(What::Complete);
        hosts.start(1);
        hosts.until_asked(1, What::CopyIn, 1).await;
        hosts.wait(Nanos::from_secs(2)).await;
        assert!(hosts.state(1).is_resyncing(), "nothing is durable there yet");
        hosts.store(1).release(What::CopyIn);
        hosts.until_asked(1, What::Complete, 1).await;
        hosts.wait(Nanos::from_secs(1)).await;
        assert!(hosts.state(1).is_resyncing(), "it would say that it lacks something");
        assert_eq!(hosts.store(1).copied_in(), BTreeSet::from([256, 512, 768]));
        hosts.store(1).release(What::Complete);
        hosts.until_healthy().await;
        let done = hosts.store(1).done();
        let compared: Vec<u32> = done
            .iter()
            .filter_map(|done| if let Done::Tags(chunk) = done { Some(*chunk) } else { None })
            .collect();
        assert_eq!(compared, [1, 2, 3], "what has not changed is not even compared");
        hosts.assert_equal(0, 1).await;
        hosts.kill(0);
        let elsewhere = hosts.open(2).await;
        assert_eq!(read(&elsewhere, 0).await, 1);
        assert_eq!(read(&elsewhere, MIB).await, 2);
        assert_eq!(read(&elsewhere, 2 * MIB).await, 0);
        assert_eq!(read(&elsewhere, 3 * MIB).await, 0);
        drop(volume);
    });
}

#[test]
fn a_write_during_a_resync_is_in_the_copy_too() {
    with(2, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = change_without_it(&hosts, 0).await;
        hosts.store(1).hold(What::CopyIn);
        hosts.start(1);
        hosts.until_asked(1, What::CopyIn, 1).await;
        // To a chunk that is not copied now: at once, and to the copy as well.
        let elsewhere = volume.clone();
        let began = hosts.now();
        write(&elsewhere, 5 * MIB, 5).await;
        write(&elsewhere, 0, 6).await;
        assert!(hosts.now().since(began) < Nanos::from_ms(10), "nobody waits for the copy");
        // To the one that is: when that is over, for what is copied was read before.
        let same = volume.clone();
        let waits = hosts.begin(async move { write(&same, MIB, 7).await });
        hosts.wait(Nanos::from_secs(2)).await;
        assert!(!waits.is_done(), "a write is overtaken by an older copy");
        let appended = |done: &Done| matches!(done, Done::Appended(..));
        assert_eq!(hosts.store(1).done().iter().filter(|done| appended(done)).count(), 2);
        hosts.store(1).release(What::CopyIn);
        waits.end().await;
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
        hosts.kill(0);
        let elsewhere = hosts.open(2).await;
        for (at, n) in [(0, 6), (MIB, 7), (2 * MIB, 0), (5 * MIB, 5)] {
            assert_eq!(read(&elsewhere, at).await, n, "at {at}");
        }
    });
}

#[test]
fn an_append_that_is_not_acknowledged_holds_the_promotion_up() {
    with(3, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = change_without_it(&hosts, 0).await;
        hosts.store(1).hold(What::CopyIn);
        hosts.start(1);
        hosts.until_asked(1, What::CopyIn, 1).await;
        hosts.store(1).hold(What::Append);
        write(&volume, 5 * MIB, 5).await;
        hosts.store(1).release(What::CopyIn);
        // It is behind with one write, which is acknowledged without it.
        hosts.wait(Nanos::from_secs(1)).await;
        assert_eq!(hosts.store(1).copied_in(), BTreeSet::from([256, 512, 768]));
        assert!(!hosts.is_active(1), "an acknowledged write is missing in an active copy");
        hosts.store(1).release(What::Append);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn what_only_the_returning_copy_has_is_taken_back() {
    with(4, |hosts| async move {
        let away = MemberState::Absent { since: Seq(8), at_ms: 0, lost: false };
        hosts.make(SIZE, &[(0, MemberState::Active), (1, away)]).await;
        for host in [0, 1] {
            hosts.put(host, 8, 5, 1).await;
        }
        // Nobody was told that these were done.
        hosts.append(1, 50, OpKind::Write, 5, 9).await;
        hosts.append(1, 51, OpKind::Write, 700, 9).await;
        let volume = hosts.open(0).await;
        assert_eq!(read(&volume, 5 * 4096).await, 1);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
        assert_eq!(hosts.tag(1, 5).await.seq, Seq(8));
        assert_eq!(hosts.tag(1, 700).await.state, BlockState::Absent);
    });
}

#[test]
fn another_copy_goes_on_where_a_source_has_failed() {
    with(5, |hosts| async move {
        hosts.make_on(&[0, 2, 1]).await;
        // The owner has no copy itself: it copies from the first.
        let volume = change_without_it(&hosts, 3).await;
        hosts.store(0).hold(What::Tags);
        hosts.start(1);
        hosts.until_asked(0, What::Tags, 1).await;
        hosts.kill(0);
        hosts.store(0).release(What::Tags);
        hosts.until("the copy is up to date", || hosts.is_active(1)).await;
        assert!(hosts.store(2).asked(What::Tags) >= 3, "three chunks came from there");
        hosts.assert_equal(2, 1).await;
        hosts.start(0);
        hosts.until_healthy().await;
        hosts.assert_equal(2, 0).await;
        assert_eq!(read(&volume, MIB).await, 2);
    });
}

#[test]
fn without_another_source_a_copy_stays_behind_until_there_is_one() {
    with(6, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = change_without_it(&hosts, 3).await;
        hosts.store(0).hold(What::Tags);
        hosts.start(1);
        hosts.until_asked(0, What::Tags, 1).await;
        hosts.kill(0);
        hosts.store(0).release(What::Tags);
        for _ in 0..100 {
            hosts.wait(Nanos::from_ms(100)).await;
            assert!(!hosts.is_active(1), "nobody has what it lacks");
            assert!(hosts.is_active(0), "the last copy is never left out");
        }
        hosts.start(0);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
        assert_eq!(read(&volume, MIB).await, 2);
    });
}

#[test]
fn a_block_that_no_source_can_read_is_marked_and_not_invented() {
    with(7, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        for n in 0..3 {
            write(&volume, MIB + n * 4096, 1).await;
        }
        hosts.wait(Nanos::from_secs(1)).await;
        hosts.kill(1);
        for n in 0..3 {
            write(&volume, MIB + n * 4096, 2).await;
        }
        hosts.store(0).lose_block(257);
        hosts.start(1);
        hosts.until_healthy().await;
        let (source, copy) = (hosts.tag(0, 257).await, hosts.tag(1, 257).await);
        assert_eq!((copy.state, copy.seq), (BlockState::Bad, source.seq), "{source:?}");
        for at in [MIB, MIB + 2 * 4096] {
            assert_eq!(read(&volume, at).await, 2);
        }
        let answer = volume.read(MIB + 4096, 4096).await;
        assert!(matches!(answer, Err(VolumeError::Io(_))), "{answer:?}");
        // From the copy alone as well.
        hosts.kill(0);
        let elsewhere = hosts.open(2).await;
        assert_eq!(read(&elsewhere, MIB).await, 2);
        let answer = elsewhere.read(MIB + 4096, 4096).await;
        assert!(matches!(answer, Err(VolumeError::Io(_))), "{answer:?}");
    });
}

#[test]
fn a_block_that_one_source_cannot_read_comes_from_another() {
    with(8, |hosts| async move {
        hosts.make_on(&[0, 2, 1]).await;
        let volume = change_without_it(&hosts, 0).await;
        hosts.store(0).lose_block(256);
        hosts.start(1);
        hosts.until("the copy is up to date", || hosts.is_active(1)).await;
        hosts.assert_equal(2, 1).await;
        assert_eq!(hosts.tag(1, 256).await.state, BlockState::Raw);
        assert_eq!(read(&volume, MIB).await, 2);
    });
}

#[test]
fn a_copy_that_has_lost_what_it_had_is_compared_whole() {
    with(9, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        let empty = hosts.store(1).keep();
        for chunk in 0..4 {
            write(&volume, chunk * MIB, 1).await;
        }
        hosts.wait(Nanos::from_secs(1)).await;
        hosts.kill(1);
        write(&volume, MIB, 2).await;
        // Its end is gone, and nothing says so but its newest operation.
        hosts.store(1).put_back(&empty);
        hosts.store(1).forget_done();
        hosts.start(1);
        hosts.until_healthy().await;
        assert_eq!(hosts.store(1).copied_in(), BTreeSet::from([0, 256, 512, 768]));
        hosts.assert_equal(0, 1).await;
        let noted = hosts
            .store(1)
            .done()
            .into_iter()
            .any(|done| matches!(done, Done::Opened(_, Some(Seq(0)))));
        assert!(noted, "it has noted that it may lack anything");
        assert_eq!(component(1), hosts.record().legs[0].members[1].component);
    });
}
