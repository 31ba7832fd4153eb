//! `owner::resize`: growths at once, over what a shrink has left.

use crate::hosts::{Hosts, MIB, OBJECT, SIZE, block, component, read, with, write};
use atoll_format::record::MemberState;
use atoll_object::ResizeError;
use atoll_world::{Components, Nanos, Volume};

const ACTIVE: MemberState = MemberState::Active;

/// Two hosts ask for a growth, the second so much later; what the first has added is written at
/// once. Returns what they were answered.
async fn two_growths(hosts: &Hosts, later: Nanos) -> [Result<(), ResizeError>; 2] {
    // Shrunk to two chunks: both copies have kept something beyond.
    hosts.make(2 * MIB, &[(0, ACTIVE), (1, ACTIVE)]).await;
    for chunk in 2..8 {
        for host in [0, 1] {
            hosts.put(host, 5, chunk * 256, 9).await;
        }
    }
    let volume = hosts.open(2).await;
    write(&volume, 0, 1).await;
    let (one, other, all) = (hosts.objects(2), hosts.objects(2), hosts.clone());
    let first = hosts.begin(async move {
        let grown = one.grow(OBJECT, 2 * MIB, 4 * MIB).await;
        if grown.is_ok() {
            let writer = all.open(3).await;
            for chunk in 2..4 {
                let wrote = writer.write(chunk * MIB, block(chunk as u8)).await;
                wrote.expect("it is in the volume now");
            }
        }
        grown
    });
    hosts.wait(later).await;
    let second = hosts.begin(async move { other.grow(OBJECT, 2 * MIB, SIZE).await });
    let answers = [first.end().await, second.end().await];
    let size = hosts.record().size_bytes;
    let done: Vec<u64> = [4 * MIB, SIZE]
        .into_iter()
        .zip(&answers)
        .filter_map(|(size, answer)| answer.is_ok().then_some(size))
        .collect();
    assert_eq!(done, [size], "of two from one size one is done: {answers:?}");
    for host in [0, 1] {
        let blocks = hosts.store(host).status(component(host)).expect("it is there").spec.blocks;
        assert!(u64::from(blocks) * 4096 >= size, "{blocks} blocks on h{host}, {size} bytes");
        assert!(hosts.is_active(host));
    }
    hosts.assert_equal_inside(0, 1).await;
    let elsewhere = hosts.open(3).await;
    assert_eq!(elsewhere.info().size_bytes, size);
    assert_eq!(read(&elsewhere, 0).await, 1);
    for chunk in 2..size / MIB {
        let expected = if answers[0].is_ok() { chunk as u8 } else { 0 };
        assert_eq!(read(&elsewhere, chunk * MIB).await, expected, "{later} later, {answers:?}");
    }
    answers
}

#[test]
fn of_two_growths_at_once_one_is_done_and_nothing_of_it_is_lost() {
    let mut first_done = 0;
    // From the same moment to after the first has ended.
    for step in 0..40 {
        let later = Nanos::from_us(step * 100);
        let answered = std::rc::Rc::new(std::cell::Cell::new(false));
        let tell = answered.clone();
        with(100 + step, move |hosts| async move {
            tell.set(two_growths(&hosts, later).await[0].is_ok());
        });
        first_done += u32::from(answered.get());
    }
    assert!(first_done > 0, "the first one is never done");
}

/// One disk loses the discards of a shrink, and later what has cleared them anew: the other copy
/// says so, whether or not anything was written since.
#[test]
fn what_a_growth_clears_stays_cleared_on_a_disk_that_loses_it_again() {
    for (seed, writes) in [(200, 0), (201, 3)] {
        with(seed, move |hosts| async move {
            hosts.make(2 * MIB, &[(0, ACTIVE), (1, ACTIVE)]).await;
            hosts.put(0, 5, 5 * 256, 9).await;
            let volume = hosts.open(2).await;
            write(&volume, 0, 1).await;
            let kept = hosts.store(0).keep();
            hosts.objects(2).grow(OBJECT, 2 * MIB, SIZE).await.expect("grown");
            for n in 0..writes {
                write(&volume, 0, 10 + n).await;
            }
            assert!(hosts.tag(0, 5 * 256).await.state.reads_as_zero());
            hosts.wait(Nanos::from_secs(1)).await;
            hosts.kill(0);
            hosts.store(0).put_back(&kept);
            hosts.start(0);
            hosts.wait(Nanos::from_secs(1)).await;
            hosts.until_healthy().await;
            hosts.assert_equal_inside(0, 1).await;
            assert!(hosts.tag(0, 5 * 256).await.state.reads_as_zero(), "{writes} writes later");
            let other = hosts.open(3).await;
            assert_eq!(read(&other, 5 * MIB).await, 0);
        });
    }
}
