//! Asks whether a host lives at an endpoint, in its own name: a host that looks for another life
//! of itself.
//!
//! Invariant: nothing is asked of whoever answers; the connection ends after the handshake.

use crate::identity::Identity;
use crate::limits::CONNECT_WITHIN;
use atoll_format::frame::{FrameHead, FrameKind, Hello, VERSION_HANDSHAKE};
use atoll_format::id::Incarnation;
use atoll_world::{Conn, Lane, Net, Packet, World};

/// How often somebody who takes the connection and says nothing is asked: a host that starts, or
/// rests for a moment, answers in that time.
const TRIES: u32 = 4;

/// The life of this very host (same cluster, same id) that answers at `endpoint`; none if nobody
/// does, or somebody else. Takes at most 8 s, and no time where nobody listens.
pub async fn probe<W: World>(world: &W, me: &Identity, endpoint: &str) -> Option<Incarnation> {
    for _ in 0..TRIES {
        let until = world.now() + CONNECT_WITHIN;
        let connecting = world.net().connect(endpoint, Lane::Control);
        let Ok(Ok(conn)) = world.timeout_at(until, connecting).await else { return None };
        let hello = me.hello(me.addr(), Lane::Control);
        let body = hello.encode();
        let head = FrameHead::new(VERSION_HANDSHAKE, FrameKind::Hello, 0, &body).encode();
        let sent = conn.send(Packet { head, body, payload: Vec::new() });
        let until = world.now() + CONNECT_WITHIN;
        let answer = world.timeout_at(until, conn.recv()).await;
        conn.close();
        match (sent, answer) {
            (Ok(()), Ok(Ok(packet))) => return life(me, &packet),
            // Silence: perhaps it only rests.
            (_, Err(_)) => {}
            _ => return None,
        }
    }
    None
}

fn life(me: &Identity, packet: &Packet) -> Option<Incarnation> {
    let head = FrameHead::decode(&packet.head).ok()?;
    head.verify(&packet.body, packet.payload.iter().map(|p| &p[..])).ok()?;
    let welcome = Hello::decode(&packet.body).ok().filter(|_| head.kind == FrameKind::Welcome)?;
    let same = welcome.cluster == me.cluster && welcome.from == me.addr();
    (same && welcome.incarnation != me.incarnation).then_some(welcome.incarnation)
}
