//! What a member answers to whom, asked directly.

use atoll_format::id::{
    Addr, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq, Session,
};
use atoll_format::op::BlockRange;
use atoll_object::HostComponents;
use atoll_object::limits::GRACE;
use atoll_object::member::Members;
use atoll_object::message::{Reply, Request};
use atoll_sim::disk::DiskProfile;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::reference_store::ReferenceStore;
use atoll_sim::rng::Rng;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_world::components::ComponentSpec;
use atoll_world::{Nanos, World};
use std::cell::RefCell;
use std::rc::Rc;

/// A disk group on a host, asked by `test`.
fn with_members<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Members<SimWorld, ReferenceStore>, SimWorld) -> F + 'static,
) {
    let hardware = Hardware {
        hosts: 1,
        cores: 1,
        disks: 1,
        disk_bytes: 1 << 30,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let machines = Machines::new(1, hardware, Trace::of(&[]));
    let booted = Rc::new(RefCell::new(None));
    let (executor, here) = (machines.executor().clone(), booted.clone());
    machines.set_boot(move |_, _, world| {
        let store = ReferenceStore::new(&executor, GroupId(1), 1 << 30, Rng::named(1, "store"));
        let me = Addr::from(HostId(1));
        let of_host = HostComponents::of(1);
        let members = Members::new(world.clone(), me, Vec::new(), vec![store], of_host);
        *here.borrow_mut() = Some((members, world));
    });
    machines.start(0);
    let test = async move {
        let (members, world) = booted.borrow().clone().expect("booted");
        test(members, world).await;
    };
    machines.executor().block_on(Nanos::from_secs(60), test).expect("comes to its end");
    machines.shutdown();
}

async fn create(members: &Members<SimWorld, ReferenceStore>, component: ComponentId) {
    let spec = ComponentSpec { object: ObjectId(1), leg: 0, blocks: 1024, epoch: Epoch(1) };
    let made = Request::Create { group: GroupId(1), component, spec };
    let made = members.handle(HostId(1), made).await;
    assert!(matches!(made, Reply::Done), "{made:?}");
}

/// What waits inside a request takes a place in the window of its connection: as many fences as
/// it has would keep the renewals of leases of every other object from being sent.
#[test]
fn a_fence_does_not_wait_for_a_lease_but_says_how_long_it_may_run() {
    with_members(|members, world| async move {
        let (old, new) = (HostId(1), HostId(2));
        let (object, component) = (ObjectId(1), ComponentId(7));
        create(&members, component).await;
        // What an earlier life of this host had granted has run out.
        world.sleep(GRACE).await;
        let renew = |serial| {
            let (incarnation, objects) = (Incarnation(1), vec![(object, Epoch(1))]);
            members.handle(old, Request::Renew { incarnation, serial, objects })
        };
        let granted = renew(1).await;
        assert!(
            matches!(&granted, Reply::Granted { excluded, .. } if excluded.is_empty()),
            "{granted:?}"
        );
        let fence = || Request::Fence {
            object,
            component,
            epoch: Epoch(2),
            incarnation: Incarnation(1),
            outlived: Vec::new(),
            served: None,
        };
        let asked = world.now();
        let Reply::Held(wait_ns) = members.handle(new, fence()).await else {
            panic!("a lease is running");
        };
        let took = world.now() - asked;
        assert!(took < Nanos::from_ms(100), "the fence was answered after {took}");
        assert!(asked + GRACE <= world.now() + Nanos(wait_ns), "{wait_ns} ns of {GRACE}");
        let promised = members.fenced(component);
        assert_eq!(promised, Some(Epoch(2)), "the old owner can get no acknowledgement any more");
        let granted = renew(2).await;
        assert!(
            matches!(&granted, Reply::Granted { excluded, .. } if excluded == &[object]),
            "{granted:?}"
        );
        world.sleep(Nanos(wait_ns / 2)).await;
        assert!(matches!(members.handle(new, fence()).await, Reply::Held(_)), "it is running yet");
        world.sleep(Nanos(wait_ns / 2)).await;
        let promise = members.handle(new, fence()).await;
        assert!(matches!(promise, Reply::Promise { .. }), "{promise:?}");
    });
}

#[test]
fn what_was_asked_in_an_earlier_session_is_refused() {
    with_members(|members, _| async move {
        let ask = |request| members.handle(HostId(1), request);
        let (component, epoch) = (ComponentId(7), Epoch(1));
        create(&members, component).await;
        for attach in 1..3 {
            let session = Session { epoch, attach };
            ask(Request::Attach { component, session, incomplete: None }).await;
        }
        let range = BlockRange { start: 0, count: 1 };
        for (attach, is_open) in [(1, false), (2, true)] {
            let session = Session { epoch, attach };
            let asked = [
                Request::Read { component, session, range },
                Request::Tags { component, session, chunk: 0 },
                Request::ChunksSince { component, session, since: Seq(0), first: 0 },
            ];
            for request in asked {
                let said = format!("{request:?}");
                let reply = ask(request).await;
                assert_eq!(!matches!(reply, Reply::Failed(_)), is_open, "{said}: {reply:?}");
            }
        }
    });
}
