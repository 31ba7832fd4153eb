//! `owner::member_recovery`: members that break, refuse, hang or come back with less.

use crate::hosts::{Begun, Done, Hosts, MIB, Open, What, component, read, with, write};
use atoll_format::id::{Seq, Session};
use atoll_object::Event;
use atoll_object::limits::{LATE, MEND};
use atoll_world::{Nanos, StoreError};
use std::collections::BTreeMap;

/// A store refuses so, and a new session may help.
const REFUSAL: StoreError = StoreError::Damaged { block: 0 };

/// Begins writes of other blocks, in order.
async fn begin_writes(hosts: &Hosts, volume: &Open, count: u64) -> Vec<Begun<()>> {
    let mut begun = Vec::new();
    for n in 0..count {
        let volume = volume.clone();
        begun.push(hosts.begin(async move { write(&volume, n * 4096, n as u8 + 1).await }));
        hosts.wait(Nanos::from_ms(1)).await;
    }
    begun
}

/// The operations that a store took, by session.
fn by_session(done: &[Done]) -> BTreeMap<Session, Vec<Seq>> {
    let mut sessions: BTreeMap<Session, Vec<Seq>> = BTreeMap::new();
    for done in done {
        if let Done::Appended(session, seq, _) = done {
            sessions.entry(*session).or_default().push(*seq);
        }
    }
    sessions
}

#[test]
fn what_was_in_flight_comes_again_in_order_after_a_connection_broke() {
    with(1, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        write(&volume, MIB, 9).await;
        let before = hosts.record();
        hosts.store(1).forget_done();
        hosts.store(1).hold(What::Append);
        let writes = begin_writes(&hosts, &volume, 3).await;
        hosts.until_asked(1, What::Append, 3).await;
        hosts.machines.fabric().break_now(0, 1);
        hosts
            .until("a new session", || {
                hosts.store(1).done().iter().any(|done| matches!(done, Done::Opened(..)))
            })
            .await;
        hosts.until_asked(1, What::Append, 6).await;
        assert!(writes.iter().all(|write| !write.is_done()), "one copy has none of them");
        hosts.store(1).release(What::Append);
        for write in writes {
            write.end().await;
        }
        let sessions = by_session(&hosts.store(1).done());
        let (_, seqs) = sessions.last_key_value().expect("the new session");
        assert_eq!((sessions.len(), seqs.len()), (1, 3), "all of them, once: {sessions:?}");
        assert!(seqs.is_sorted(), "in their order: {seqs:?}");
        hosts.assert_equal(0, 1).await;
        assert_eq!(hosts.record(), before, "nobody was left out");
    });
}

#[test]
fn a_member_that_refuses_for_a_while_stays() {
    with(2, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        write(&volume, MIB, 9).await;
        let before = hosts.record();
        hosts.store(1).forget_done();
        hosts.store(1).refuse(What::Append, REFUSAL, 2);
        write(&volume, 0, 1).await;
        let opened = hosts.store(1).done();
        let opened = opened.iter().filter(|done| matches!(done, Done::Opened(..))).count();
        assert_eq!(opened, 2, "a session after each refusal");
        assert_eq!(hosts.record(), before, "nobody was left out");
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn a_member_that_refuses_again_and_again_is_left_out_before_the_answer() {
    with(3, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        write(&volume, MIB, 9).await;
        hosts.store(1).forget_done();
        hosts.store(1).refuse(What::Append, REFUSAL, u32::MAX);
        let began = hosts.now();
        write(&volume, 0, 1).await;
        assert!(!hosts.is_active(1), "it was acknowledged without it");
        assert!(hosts.now().since(began) < LATE, "nobody waits for what does not help");
        let asked = hosts.store(1).asked(What::Append);
        assert!((2..=6).contains(&asked), "sent {asked} times");
        let told = hosts.events(0);
        let dropped = |event: &Event| matches!(event, Event::MemberDropped { .. });
        assert_eq!(told.iter().filter(|event| dropped(event)).count(), 1, "{told:?}");
        hosts.store(1).refuse(What::Append, REFUSAL, 0);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn a_member_that_hangs_is_left_out_once_it_is_late_and_not_before() {
    with(4, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        write(&volume, MIB, 9).await;
        hosts.store(1).hold(What::Append);
        let began = hosts.now();
        write(&volume, 0, 1).await;
        let took = hosts.now().since(began);
        assert!(!hosts.is_active(1), "it was acknowledged without it");
        assert!(took >= LATE && took < Nanos::from_secs(2), "{took}");
        hosts.store(1).release(What::Append);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn members_that_are_all_slow_are_awaited() {
    with(5, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(2).await;
        write(&volume, MIB, 9).await;
        let before = hosts.record();
        for host in [0, 1] {
            hosts.store(host).hold(What::Append);
        }
        let writes = begin_writes(&hosts, &volume, 2).await;
        hosts.wait(LATE * 3).await;
        assert!(writes.iter().all(|write| !write.is_done()), "no copy has any of them");
        for host in [0, 1] {
            hosts.store(host).release(What::Append);
        }
        for write in writes {
            write.end().await;
        }
        assert_eq!(hosts.record(), before, "nobody is late when everybody is");
        hosts.assert_equal(0, 1).await;
    });
}

#[test]
fn a_connection_that_stays_broken_is_waited_for_no_longer_than_a_slow_one() {
    with(6, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(0).await;
        write(&volume, MIB, 9).await;
        hosts.kill(1);
        let began = hosts.now();
        write(&volume, 0, 1).await;
        let took = hosts.now().since(began);
        assert!(!hosts.is_active(1), "it was acknowledged without it");
        assert!(took >= MEND / 2 && took < Nanos::from_secs(2), "{took}");
    });
}

#[test]
fn the_last_copy_is_awaited_however_often_it_refuses() {
    with(7, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(2).await;
        write(&volume, MIB, 9).await;
        hosts.kill(1);
        write(&volume, 0, 1).await;
        hosts.store(0).forget_done();
        hosts.store(0).refuse(What::Append, REFUSAL, 12);
        write(&volume, 4096, 2).await;
        assert!(hosts.is_active(0), "{:?}", hosts.record());
        assert!(hosts.store(0).asked(What::Append) > 12, "it was asked until it took it");
        assert_eq!(read(&volume, 4096).await, 2);
        hosts.start(1);
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
    });
}

/// How far the other copy's resync is when the last one comes back with a doubt.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Moment {
    Copying,
    Completing,
    /// It is asked of the directory to be active.
    Promoting,
}

/// The last copy restarts, has lost what it had acknowledged, and says so late: while another copy
/// is being brought up to date that has some of what is lost.
fn the_last_copys_doubt_comes(moment: Moment) {
    with(8, move |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(2).await;
        write(&volume, 0, 1).await;
        hosts.wait(Nanos::from_secs(1)).await;
        let kept = hosts.store(0).keep();
        // The copy that returns has this, and the last one will have lost it. Nothing else is in
        // that chunk: no later change has it compared.
        write(&volume, MIB, 2).await;
        hosts.wait(Nanos::from_secs(1)).await;
        hosts.kill(1);
        write(&volume, 2 * 4096, 3).await;
        let held = if moment == Moment::Copying { What::CopyIn } else { What::Complete };
        hosts.store(1).hold(held);
        hosts.store(1).forget_done();
        hosts.start(1);
        hosts.until_asked(1, held, 1).await;
        let from = hosts.state(1);
        if moment == Moment::Promoting {
            hosts.machines.directory().set_down(true);
            hosts.store(1).release(held);
            hosts
                .until("it is complete", || hosts.store(1).done().contains(&Done::Completed))
                .await;
            hosts.wait(Nanos::from_ms(200)).await;
        }
        hosts.kill(0);
        hosts.store(0).lose_all_since(&kept, component(0));
        hosts.store(0).forget_done();
        hosts.start(0);
        hosts.until_asked(0, What::Open, 1).await;
        hosts.wait(Nanos::from_ms(200)).await;
        hosts.machines.directory().set_down(false);
        hosts.store(1).release(held);
        hosts.until_healthy().await;
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.until_healthy().await;
        // Whichever of them counts: both have the same.
        hosts.assert_equal(0, 1).await;
        let there = [read(&volume, MIB).await, read(&volume, 2 * 4096).await];
        let told = hosts.events(2);
        let lost = told.iter().any(|event| matches!(event, Event::WritesLost { .. }));
        assert!(lost || there == [2, 3], "{moment:?}, from {from:?}: {there:?} {told:?}");
        assert_eq!(read(&volume, 0).await, 1);
    });
}

#[test]
fn the_last_copys_doubt_comes_while_another_is_copied_to() {
    the_last_copys_doubt_comes(Moment::Copying);
}

#[test]
fn the_last_copys_doubt_comes_when_another_has_all_it_had() {
    the_last_copys_doubt_comes(Moment::Completing);
}

#[test]
fn the_last_copys_doubt_comes_while_another_is_promoted() {
    the_last_copys_doubt_comes(Moment::Promoting);
}
