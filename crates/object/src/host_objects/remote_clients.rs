//! I/O of clients on other hosts, carried out by the owners of this one.

use super::HostObjects;
use crate::failure::Fail;
use crate::limits::CALL_DEADLINE;
use crate::message::{ClientIo, ClientRequest, Reply, client_crcs};
use atoll_format::id::ObjectId;
use atoll_format::op::OpKind;
use atoll_world::{Components, World, buf, mutant, sometimes};

impl<W: World, S: Components> HostObjects<W, S> {
    /// One piece of I/O of a client on another host.
    pub(super) async fn serve_client(&self, request: ClientRequest) -> Reply {
        let ClientRequest { object, ticket, retry, at, admission, io } = request;
        if self.owner(object).is_none() {
            let until = self.world().now() + CALL_DEADLINE * 2;
            let _ = self.world().timeout_at(until, Box::pin(self.await_owner(object))).await;
        }
        let Some(owner) = self.owner(object) else { return Reply::NotOwner };
        let admission =
            if mutant!("objects.any_admission") { owner.admission() } else { admission };
        if io.is_change() && admission != owner.admission() {
            sometimes!("objects.change_under_an_older_admission");
            return Reply::Admitted(owner.admission());
        }
        let result = match io {
            ClientIo::Turns { want } => return Reply::Turns(owner.turns(want)),
            ClientIo::Admit => return Reply::Admitted(owner.admit()),
            ClientIo::Read { len } => match owner.read(at, u64::from(len)).await {
                Ok(data) => {
                    assert_eq!(buf::total_len(&data), len as usize, "bytes at {at} of {object}");
                    let crcs = client_crcs(at, &data);
                    return Reply::Data { crcs, data };
                }
                Err(fail) => Err(fail),
            },
            ClientIo::Extents { len } => match owner.extents(at, len).await {
                Ok(extents) => return Reply::Extents(extents),
                Err(fail) => Err(fail),
            },
            ClientIo::Write { crcs, data } => {
                let work = owner.write(at, crcs, data, ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
            ClientIo::Zero { len } => {
                let work = owner.clear(OpKind::Zero, at, u64::from(len), ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
            ClientIo::Discard { len } => {
                let work = owner.clear(OpKind::Discard, at, u64::from(len), ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
        };
        match result {
            Ok(()) => Reply::Done,
            Err(Fail::Stopped | Fail::Outdated) => Reply::OwnerStopped,
            Err(Fail::Volume(error)) => Reply::VolumeFailed(error),
        }
    }

    /// Until this shard owns the object, if it is about to, or should.
    async fn await_owner(&self, object: ObjectId) {
        if self.0.table.taking(object).is_none() {
            self.take_back(object).await;
        }
        // Another request may have begun it meanwhile.
        if let Some(taking) = self.0.table.taking(object) {
            taking.await;
        }
    }
}
