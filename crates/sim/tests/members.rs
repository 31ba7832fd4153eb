//! What a member answers to whom, asked directly.

use atoll_format::id::{
    ClusterId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq, Session,
};
use atoll_format::op::BlockRange;
use atoll_object::HostComponents;
use atoll_object::member::Members;
use atoll_object::message::{Reply, Request};
use atoll_sim::disk::DiskProfile;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::reference_store::ReferenceStore;
use atoll_sim::rng::Rng;
use atoll_sim::trace::Trace;
use atoll_transport::Identity;
use atoll_world::Nanos;
use atoll_world::components::ComponentSpec;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn what_was_asked_in_an_earlier_session_is_refused() {
    let hardware = Hardware {
        hosts: 1,
        cores: 1,
        disks: 1,
        disk_bytes: 1 << 30,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let machines = Machines::new(1, hardware, Trace::of(&[]));
    let members = Rc::new(RefCell::new(None));
    let (executor, booted) = (machines.executor().clone(), members.clone());
    machines.set_boot(move |_, _, world| {
        let store = ReferenceStore::new(&executor, GroupId(1), 1 << 30, Rng::named(1, "store"));
        let me = Identity {
            cluster: ClusterId(1),
            host: HostId(1),
            shard: 0,
            shards: 1,
            incarnation: Incarnation(1),
            name: "h0".into(),
        };
        *booted.borrow_mut() = Some(Members::new(world, &me, vec![store], HostComponents::of(1)));
    });
    machines.start(0);
    let test = async move {
        let members = members.borrow().clone().expect("booted");
        let ask = |request| members.handle(HostId(1), request);
        let (component, epoch) = (ComponentId(7), Epoch(1));
        let spec = ComponentSpec { object: ObjectId(1), leg: 0, blocks: 1024, epoch };
        let made = ask(Request::Create { group: GroupId(1), component, spec }).await;
        assert!(matches!(made, Reply::Done), "{made:?}");
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
    };
    machines.executor().block_on(Nanos::from_secs(60), test).expect("comes to its end");
    machines.shutdown();
}
