//! An administrator at work while things go wrong: makes a volume, grows, shrinks and deletes it,
//! has everything verified; and a guest of that volume, to see that its bytes stay right.
//!
//! Each volume made has a name and a book of its own: whatever was cut off may still happen to the
//! one that it was meant for, never to the next one.

use crate::checker::Kind;
use crate::cluster::{Cluster, Storage};
use crate::executor::LifeId;
use crate::pattern::SECTOR;
use crate::rng::Rng;
use crate::spread_volume::{SpreadVolume, shown_bytes, spread_bytes};
use crate::workload::{Book, Clear};
use crate::world::SimWorld;
use atoll_format::units::{BLOCK, CHUNK};
use atoll_node::{CountedVolume, CreateVolume, ManageError, Node, Resize};
use atoll_world::Nanos;
use atoll_world::sync::oneshot;
use atoll_world::volume::{Volume, VolumeError, Volumes};
use futures_util::future::{Either, select};
use std::future::Future;
use std::pin::pin;

/// Nobody waits longer than this for one command; it may still be carried out.
const PATIENCE: Nanos = Nanos::from_secs(20);
/// How long a lock outlives whoever took it: an interrupted one is looked for every five seconds.
const LOCKED_MAX: Nanos = Nanos::from_secs(90);
/// The largest volume made, in chunks; only these are used of a thin one.
const CHUNKS_MAX: u64 = 6;
/// How fast a scrub that was asked for reads, in bytes per second: slow, so that it meets faults.
const SCRUB_RATE: (u64, u64) = (256 << 10, 16 << 20);

impl<T: Storage> Cluster<T> {
    /// At work until the clients are done.
    pub(crate) async fn administer(self, mut rng: Rng) {
        self.admin().at_work.set(true);
        while !self.books().iter().all(Book::is_over) {
            self.wait(rng.span(Nanos::from_ms(1), Nanos::from_ms(400))).await;
            let host = rng.below(u64::from(self.machines().hosts())) as u16;
            let dice = rng.below(20);
            if !self.admin().there.get() {
                self.make(host, rng.within(1, CHUNKS_MAX) * CHUNK).await;
                continue;
            }
            match dice {
                0 | 1 => self.scrub(host, &mut rng).await,
                2 => self.delete(host).await,
                6 => self.limit(host, *rng.pick(&[0, 50, 500, 5_000])).await,
                3..6 => self.resize(host, rng.within(1, CHUNKS_MAX) * CHUNK).await,
                _ => self.use_volume(host, &mut rng).await,
            }
        }
        self.admin().at_work.set(false);
    }

    /// The program that runs on `host`, and its life.
    pub(crate) fn program(&self, host: u16) -> Option<(Node<SimWorld, T::Store>, LifeId)> {
        Some((self.node(host)?, self.machines().life(host)?))
    }

    /// What `call` gives, carried out by a program on its host; none if the program ends, or if
    /// nobody waits for it any more.
    pub(crate) async fn patiently<R: 'static>(
        &self,
        life: LifeId,
        call: impl Future<Output = R> + 'static,
    ) -> Option<R> {
        let executor = self.machines().executor();
        let until = executor.now() + PATIENCE;
        let (done, answer) = oneshot();
        let limit = executor.sleep_until(until);
        executor.spawn(life, async move {
            if let Either::Left((result, _)) = select(pin!(call), pin!(limit)).await {
                done.send(result);
            }
        });
        match select(answer, pin!(executor.sleep_until(until))).await {
            Either::Left((done, _)) => done.ok(),
            Either::Right(_) => None,
        }
    }

    fn last(&self) -> (String, Book) {
        self.admin().volumes.borrow().last().cloned().expect("one was made")
    }

    async fn scrub(&self, host: u16, rng: &mut Rng) {
        let rate = rng.within(SCRUB_RATE.0, SCRUB_RATE.1);
        let Some((node, life)) = self.program(host) else { return };
        let scrub = async move { node.scrub(None, rate).await };
        let _ = self.patiently(life, scrub).await;
    }

    /// Makes a volume that shows so many bytes, at most [`CHUNKS_MAX`].
    pub(crate) async fn make(&self, host: u16, size_bytes: u64) {
        let Some((node, life)) = self.program(host) else { return };
        let name = format!("side{}", self.admin().volumes.borrow().len());
        let create = CreateVolume {
            name: name.clone(),
            size_bytes: spread_bytes(size_bytes, self.spec().stride),
            policy: None,
            prefer: None,
            dry_run: false,
        };
        // One that was cut off may be made yet; the next one has another name.
        let book = Book::new(self.machines().executor(), CHUNKS_MAX * CHUNK, u64::MAX);
        self.admin().volumes.borrow_mut().push((name.clone(), book));
        let made = self.patiently(life, async move { node.create_volume(create).await }).await;
        self.say(Some(host), format!("create {name}: {}", told(&made)));
        self.admin().there.set(matches!(made, Some(Ok(_))));
    }

    /// Deletes the last one made.
    pub(crate) async fn delete(&self, host: u16) {
        let Some((node, life)) = self.program(host) else { return };
        let (name, _) = self.last();
        self.admin().deleting.set(true);
        // Until it is refused: the end of the run may come first.
        let was_there = self.admin().there.replace(false);
        let of = name.clone();
        let delete = async move { node.delete_volume(&of, None, false, false).await };
        let deleted = self.patiently(life, delete).await;
        self.admin().deleting.set(false);
        self.say(Some(host), format!("delete {name}: {}", told(&deleted)));
        // Refused, or it is gone, now or in a while; as for an earlier attempt without an answer.
        let refused = matches!(
            deleted,
            Some(Err(ManageError::InUse { .. }
                | ManageError::MayBeInUse { .. }
                | ManageError::Locked { .. }))
        );
        self.admin().there.set(was_there && refused);
    }

    /// Makes the last one show more or less, by whole chunks.
    pub(crate) async fn resize(&self, host: u16, size_bytes: u64) {
        let Some((node, life)) = self.program(host) else { return };
        let (name, book) = self.last();
        let first = size_bytes / SECTOR as u64;
        let rest = (CHUNKS_MAX * CHUNK / SECTOR as u64).saturating_sub(first) as u32;
        // Shrinking makes zeros of what is beyond, whenever that is looked at again. What happens
        // there may happen in part.
        let zeros = (rest > 0).then(|| book.cleared_from(first, rest));
        self.admin().resizing.set(true);
        let spread = spread_bytes(size_bytes, self.spec().stride);
        let resize = Resize { size_bytes: spread, may_shrink: true, dry_run: false };
        let of = name.clone();
        let call = async move { node.resize_volume(&of, resize, None).await };
        let resized = self.patiently(life, call).await;
        self.admin().resizing.set(false);
        self.say(Some(host), format!("resize {name} to {size_bytes}: {}", told(&resized)));
        if let (Some(op), Some(Ok(_))) = (zeros, resized) {
            book.ended(op);
        }
    }

    /// Sets the ceiling of the last one made.
    async fn limit(&self, host: u16, limit: u32) {
        let Some((node, life)) = self.program(host) else { return };
        let (name, _) = self.last();
        let set = async move { node.limit_iops(&name, limit, None, false).await };
        let _ = self.patiently(life, set).await;
    }

    async fn use_volume(&self, host: u16, rng: &mut Rng) {
        let Some((node, life)) = self.program(host) else { return };
        let (name, book) = self.last();
        let open = async move { node.open(&name).await };
        let Some(Ok(volume)) = self.patiently(life, open).await else { return };
        let volume = SpreadVolume { volume, stride: self.spec().stride };
        let sectors = CHUNKS_MAX * CHUNK / SECTOR as u64;
        for _ in 0..rng.within(1, 4) {
            let len = rng.within(1, 64) as u32;
            let first = rng.within(0, sectors - u64::from(len));
            let dice = rng.below(10);
            let (volume, book, mut rng) = (volume.clone(), book.clone(), rng.fork());
            let client = async move {
                match dice {
                    0..5 => {
                        let kind = Kind::Write(book.next_tag());
                        book.change(&volume, 0, kind, Clear::Zero, (first, len), &mut rng).await
                    }
                    5 => {
                        let how = Clear::Discard;
                        book.change(&volume, 0, Kind::Zero, how, (first, len), &mut rng).await
                    }
                    _ => book.read(&volume, 0, first, len).await.map(|_| ()),
                }
            };
            let result: Option<Result<(), VolumeError>> = self.patiently(life, client).await;
            if !matches!(result, Some(Ok(()) | Err(VolumeError::OutOfRange { .. }))) {
                return;
            }
        }
    }

    /// A lock of somebody who was interrupted goes by itself, within [`LOCKED_MAX`].
    async fn open_once_unlocked(
        &self,
        node: &Node<SimWorld, T::Store>,
        name: &str,
    ) -> Result<CountedVolume<SimWorld, T::Store>, String> {
        let limit = self.machines().executor().now() + LOCKED_MAX;
        loop {
            match node.open(name).await {
                Err(VolumeError::Locked(_)) if self.machines().executor().now() < limit => {
                    self.wait(Nanos::from_secs(1)).await;
                }
                other => return other.map_err(|e| format!("{name}: {e}")),
            }
        }
    }

    /// After everything has healed: what is left shows the same through every host, and zeros
    /// where nobody has written.
    pub(crate) async fn read_back_side_volume(&self) -> Result<(), String> {
        if !self.admin().there.get() {
            return Ok(());
        }
        let (name, book) = self.last();
        for host in 0..self.machines().hosts() {
            let node = self.node(host).ok_or_else(|| format!("h{host} is not up"))?;
            let view = node.volume(&name).await.map_err(|e| format!("{name}: {e}"))?;
            let (size, stride) = (view.record.size_bytes, self.spec().stride);
            let sectors = (shown_bytes(size, stride) / SECTOR as u64) as u32;
            let volume = self.open_once_unlocked(&node, &name).await?;
            let told = |e: VolumeError| format!("{name} read back through h{host}: {e}");
            let unused = |chunk: &u64| stride > 1 && chunk % stride == stride / 2;
            for chunk in (0..size / CHUNK).filter(unused) {
                let pieces = volume.read(chunk * CHUNK, BLOCK as u32).await.map_err(told)?;
                if pieces.iter().any(|piece| piece.iter().any(|&byte| byte != 0)) {
                    return Err(format!("{name} has bytes in chunk {chunk}, which nobody wrote"));
                }
            }
            let volume = SpreadVolume { volume, stride };
            let read = book.read(&volume, 1_000_000 + u32::from(host), 0, sectors).await;
            read.map_err(told)?;
        }
        Ok(())
    }
}

fn told<R>(result: &Option<Result<R, ManageError>>) -> String {
    match result {
        Some(Ok(_)) => "done".into(),
        Some(Err(error)) => error.to_string(),
        None => "no answer".into(),
    }
}
