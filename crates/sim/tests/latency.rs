//! Three queues - core, NIC, disk - are enough: a latency that can be added up by hand comes out of
//! the model to the nanosecond, and the saturated rate is that of the slowest queue.

use atoll_sim::disk::DiskProfile;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_world::disk::{Disk, Durability};
use atoll_world::net::{Conn, Lane, Net, Packet};
use atoll_world::{Buf, Nanos, World};
use std::cell::Cell;
use std::rc::Rc;

const SPEC: Hardware = Hardware {
    hosts: 2,
    cores: 1,
    disks: 1,
    disk_bytes: 1 << 30,
    disk: DiskProfile {
        channels: 16,
        read: Nanos(75_000),
        write: Nanos(12_000),
        flush: Nanos(3_000),
        seek: Nanos(0),
        bytes_per_us: 3_000,
    },
    net: NetProfile { latency: Nanos(8_000), jitter: Nanos(0), bytes_per_us: 3_125 },
};

fn packet(n: u8, payload: Vec<Buf>) -> Packet {
    Packet { head: [n; 64], body: vec![], payload }
}

/// h1 keeps what it is sent, flushes, and answers; h0 sends 4 KiB after a CRC.
fn machines(writes: u64, depth: usize) -> (Nanos, u64) {
    let machines = Machines::new(1, SPEC, Trace::new(false));
    let worlds: Rc<Cell<Option<SimWorld>>> = Rc::default();
    let keep = worlds.clone();
    machines.set_boot(move |host, disks, world| {
        if host == 0 {
            return keep.set(Some(world));
        }
        let w = world.clone();
        world.spawn(async move {
            while let Ok(conn) = w.net().accept().await {
                let (w2, disk) = (w.clone(), disks[0].clone());
                w.spawn(async move {
                    while let Ok(p) = conn.recv().await {
                        let (conn, disk) = (conn.clone(), disk.clone());
                        w2.spawn(async move {
                            let at = u64::from(p.head[0]) * 4096;
                            disk.write(at, p.payload, Durability::Volatile).await.unwrap();
                            disk.flush().await.unwrap();
                            conn.send(packet(p.head[0], vec![])).unwrap();
                        });
                    }
                });
            }
        });
    });
    machines.start(0);
    machines.start(1);
    let world = worlds.take().unwrap();
    let left = Rc::new(Cell::new(writes));
    let took = machines
        .executor()
        .block_on(Nanos::from_secs(100), async move {
            let mut conns = vec![];
            for _ in 0..depth {
                conns.push(world.net().connect("h1", Lane::Data).await.unwrap());
            }
            let from = world.now();
            let clients = conns.into_iter().map(|conn| {
                let (world, left) = (world.clone(), left.clone());
                async move {
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        world.charge(Nanos(4096 / 20)).await;
                        conn.send(packet(1, vec![Buf::zeros(4096)])).unwrap();
                        conn.recv().await.unwrap();
                    }
                }
            });
            futures_util::future::join_all(clients).await;
            world.now().since(from)
        })
        .unwrap();
    let polls = machines.executor().polls();
    machines.shutdown();
    (took, polls)
}

#[test]
fn depth_one_is_the_sum_by_hand() {
    // CRC 4096 B at 20 B/ns; 4160 B at 3.125 B/ns; the link; the disk's write and its transfer at
    // 3 B/ns; the flush; 64 B back and the link.
    let by_hand = 204 + 1_331 + 8_000 + (12_000 + 1_365) + 3_000 + 20 + 8_000;
    assert_eq!(machines(1, 1).0, Nanos(by_hand));
    assert_eq!(machines(100, 1).0, Nanos(100 * by_hand));
}

#[test]
fn at_depth_the_slowest_queue_sets_the_rate() {
    let writes = 20_000;
    let (took, _) = machines(writes, 64);
    let per_write = took.0 as f64 / writes as f64;
    // A write and a flush hold one of 16 channels for 16.4 us together: 1.02 us each; the link
    // takes
    // 1.331 us, the disk's bus 4096 B at 3 B/ns = 1.365 us: it is the slowest.
    assert!((1365.0..1370.0).contains(&per_write), "{per_write}");
}
