//! `takeover`: what is made of copies that differ, and of one whose doubt comes late.

use crate::hosts::{MIB, SIZE, What, component, read, with, write};
use atoll_format::op::OpKind;
use atoll_format::record::MemberState;
use atoll_object::Event;
use atoll_world::{Nanos, Volume};

const ACTIVE: MemberState = MemberState::Active;

#[test]
fn a_discard_beyond_the_end_is_brought_to_a_copy_that_has_lost_it() {
    with(1, |hosts| async move {
        // The object has shrunk to two chunks: what was beyond had been discarded on both.
        hosts.make(2 * MIB, &[(0, ACTIVE), (1, ACTIVE)]).await;
        for host in [0, 1] {
            hosts.put(host, 3, 0, 1).await;
            hosts.put(host, 4, 5 * 256, 4).await;
        }
        // The disk of one has lost the end of its log, which nothing says.
        hosts.append(0, 20, OpKind::Discard, 5 * 256, 0).await;
        let volume = hosts.open(2).await;
        assert_eq!(read(&volume, 0).await, 1);
        hosts.assert_equal(0, 1).await;
        assert!(hosts.record().members().all(|(_, m)| m.state.is_active()));
        // Nor does it come back with a later growth.
        hosts.objects(2).grow(crate::hosts::OBJECT, 2 * MIB, SIZE).await.expect("grown");
        let grown = hosts.open(3).await;
        assert_eq!(read(&grown, 5 * MIB).await, 0);
    });
}

#[test]
fn a_copy_that_ends_before_what_is_cleared_is_not_asked_for_it() {
    with(2, |hosts| async move {
        hosts.make(2 * MIB, &[(0, ACTIVE), (1, ACTIVE)]).await;
        hosts.append(0, 20, OpKind::Write, 7 * 256, 1).await;
        // The other one was made after the object had shrunk.
        hosts.make_anew(1, 2).await;
        let volume = hosts.open(2).await;
        write(&volume, 0, 3).await;
        assert_eq!(read(&volume, 0).await, 3);
        hosts.until_healthy().await;
        assert!(hosts.tag(0, 7 * 256).await.state.reads_as_zero());
    });
}

#[test]
fn a_doubt_that_comes_after_the_fence_ends_the_takeover() {
    with(3, |hosts| async move {
        hosts.make_on(&[0, 1]).await;
        let volume = hosts.open(3).await;
        write(&volume, 0, 1).await;
        hosts.wait(Nanos::from_secs(1)).await;
        let kept = hosts.store(0).keep();
        write(&volume, MIB, 2).await;
        // One copy has an operation that the other lacks, so that they have to be compared.
        hosts.store(1).hold(What::Append);
        let lost = volume.clone();
        let unanswered =
            hosts.begin(async move { lost.write(2 * MIB, crate::hosts::block(3)).await });
        hosts.until_asked(1, What::Append, 1).await;
        hosts.wait(Nanos::from_ms(5)).await;
        hosts.kill(3);
        drop((volume, unanswered));
        hosts.store(1).release(What::Append);
        // Both copies have promised to the next owner; then one restarts, and has lost its end.
        hosts.store(1).forget_done();
        hosts.store(1).hold(What::Tags);
        let next = hosts.open(2).await;
        let reader = next.clone();
        let reads = hosts.begin(async move { read(&reader, MIB).await });
        hosts.until_asked(1, What::Tags, 1).await;
        hosts.kill(0);
        hosts.store(0).lose_all_since(&kept, component(0));
        hosts.start(0);
        hosts.wait(Nanos::from_secs(1)).await;
        hosts.store(1).release(What::Tags);
        assert_eq!(reads.end().await, 2, "what was acknowledged");
        hosts.until_healthy().await;
        hosts.assert_equal(0, 1).await;
        assert_eq!(read(&next, 0).await, 1);
        let told = hosts.events(2);
        let is_lost = |event: &Event| matches!(event, Event::WritesLost { .. });
        assert!(!told.iter().any(is_lost), "the other copy has it: {told:?}");
    });
}
