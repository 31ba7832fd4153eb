//! An administrator at work while things go wrong: makes a volume, grows, shrinks and deletes it,
//! has everything verified; and a guest of that volume, to see that its bytes stay right.
//!
//! Each volume made has a name and a book of its own: whatever was cut off may still happen to the
//! one that it was meant for, never to the next one.

use crate::activity::{Activities, Activity};
use crate::checker::Kind;
use crate::cluster::{Cluster, Storage};
use crate::pattern::SECTOR;
use crate::rng::Rng;
use crate::workload::{Book, Clear};
use crate::world::SimWorld;
use atoll_format::units::CHUNK;
use atoll_node::{CountedVolume, CreateVolume, ManageError, Node, Resize};
use atoll_world::Nanos;
use atoll_world::volume::{VolumeError, Volumes};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;

/// Nobody waits longer than this for one command; it may still be carried out.
const PATIENCE: Nanos = Nanos::from_secs(20);
/// How long a lock outlives whoever took it: an interrupted one is looked for every five seconds.
const LOCKED_MAX: Nanos = Nanos::from_secs(90);
/// The largest volume made, in chunks.
const CHUNKS_MAX: u64 = 6;
/// How fast a scrub that was asked for reads, in bytes per second: slow, so that it meets faults.
const SCRUB_RATE: (u64, u64) = (256 << 10, 16 << 20);

/// What the administrator has made and is at.
#[derive(Default)]
pub(crate) struct Admin {
    /// Every volume made, by name, the last one last.
    volumes: RefCell<Vec<(String, Book)>>,
    /// The last one is there, as far as is known.
    there: Cell<bool>,
    at_work: Cell<bool>,
    resizing: Cell<bool>,
    deleting: Cell<bool>,
}

impl Admin {
    /// The books of all volumes made.
    pub fn books(&self) -> Vec<(String, Book)> {
        self.volumes.borrow().clone()
    }

    /// Whether a command may be under way.
    pub fn is_at_work(&self) -> bool {
        self.at_work.get()
    }

    /// Adds what is going on.
    pub fn add_to(&self, now: &mut Activities) {
        now.add(Activity::Resize, self.resizing.get());
        now.add(Activity::Delete, self.deleting.get());
    }
}

impl<T: Storage> Cluster<T> {
    /// At work until the clients are done.
    pub(crate) async fn administer(self, mut rng: Rng) {
        self.admin().at_work.set(true);
        while !self.books().iter().all(Book::is_over) {
            self.wait(rng.span(Nanos::from_ms(1), Nanos::from_ms(400))).await;
            let host = rng.below(u64::from(self.rig().hosts())) as u16;
            let dice = rng.below(20);
            if !self.admin().there.get() {
                self.make(host, rng.within(1, CHUNKS_MAX) * CHUNK).await;
                continue;
            }
            match dice {
                0 | 1 => self.scrub(host, &mut rng).await,
                2 => self.delete(host).await,
                3..6 => self.resize(host, rng.within(1, CHUNKS_MAX) * CHUNK).await,
                _ => self.use_volume(host, &mut rng).await,
            }
        }
        self.admin().at_work.set(false);
    }

    /// `call`, or none if nobody waits for it any more.
    async fn patiently<R>(&self, call: impl Future<Output = R>) -> Option<R> {
        let executor = self.rig().executor();
        let limit = pin!(executor.sleep_until(executor.now() + PATIENCE));
        match select(pin!(call), limit).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    fn last(&self) -> (String, Book) {
        self.admin().volumes.borrow().last().cloned().expect("one was made")
    }

    async fn scrub(&self, host: u16, rng: &mut Rng) {
        let rate = rng.within(SCRUB_RATE.0, SCRUB_RATE.1);
        if let Some(node) = self.node(host) {
            let _ = self.patiently(node.scrub(None, rate)).await;
        }
    }

    /// Makes a volume of at most [`CHUNKS_MAX`].
    pub(crate) async fn make(&self, host: u16, size_bytes: u64) {
        let Some(node) = self.node(host) else { return };
        let name = format!("side{}", self.admin().volumes.borrow().len());
        let create = CreateVolume {
            name: name.clone(),
            size_bytes,
            policy: None,
            prefer: None,
            dry_run: false,
        };
        // One that was cut off may be made yet; the next one has another name.
        let book = Book::new(self.rig().executor(), CHUNKS_MAX * CHUNK, u64::MAX);
        self.admin().volumes.borrow_mut().push((name.clone(), book));
        let made = self.patiently(node.create_volume(create)).await;
        self.say(Some(host), format!("create {name}: {}", told(&made)));
        self.admin().there.set(matches!(made, Some(Ok(_))));
    }

    /// Deletes the last one made.
    pub(crate) async fn delete(&self, host: u16) {
        let Some(node) = self.node(host) else { return };
        let (name, _) = self.last();
        self.admin().deleting.set(true);
        // Until it is refused: the end of the run may come first.
        let was_there = self.admin().there.replace(false);
        let deleted = self.patiently(node.delete_volume(&name, None, false, false)).await;
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

    /// Makes the last one larger or smaller, by whole chunks.
    pub(crate) async fn resize(&self, host: u16, size_bytes: u64) {
        let Some(node) = self.node(host) else { return };
        let (name, book) = self.last();
        let first = size_bytes / SECTOR as u64;
        let rest = (CHUNKS_MAX * CHUNK / SECTOR as u64 - first) as u32;
        // Shrinking makes zeros of what is beyond, whenever that is looked at again. What happens
        // there may happen in part.
        let zeros = (rest > 0).then(|| book.cleared_from(first, rest));
        self.admin().resizing.set(true);
        let resize = Resize { size_bytes, may_shrink: true, dry_run: false };
        let resized = self.patiently(node.resize_volume(&name, resize, None)).await;
        self.admin().resizing.set(false);
        self.say(Some(host), format!("resize {name} to {size_bytes}: {}", told(&resized)));
        if let (Some(op), Some(Ok(_))) = (zeros, resized) {
            book.ended(op);
        }
    }

    async fn use_volume(&self, host: u16, rng: &mut Rng) {
        let Some(node) = self.node(host) else { return };
        let (name, book) = self.last();
        let Some(Ok(volume)) = self.patiently(node.open(&name)).await else { return };
        let sectors = CHUNKS_MAX * CHUNK / SECTOR as u64;
        for _ in 0..rng.within(1, 4) {
            let len = rng.within(1, 64) as u32;
            let first = rng.within(0, sectors - u64::from(len));
            let result: Option<Result<(), VolumeError>> = match rng.below(10) {
                0..5 => {
                    let kind = Kind::Write(book.next_tag());
                    let change = book.change(&volume, 0, kind, Clear::Zero, (first, len), rng);
                    self.patiently(change).await
                }
                5 => {
                    let how = Clear::Discard;
                    let change = book.change(&volume, 0, Kind::Zero, how, (first, len), rng);
                    self.patiently(change).await
                }
                _ => {
                    let read = self.patiently(book.read(&volume, 0, first, len)).await;
                    read.map(|read| read.map(|_| ()))
                }
            };
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
        let limit = self.rig().executor().now() + LOCKED_MAX;
        loop {
            match node.open(name).await {
                Err(VolumeError::Locked(_)) if self.rig().executor().now() < limit => {
                    self.wait(Nanos::from_secs(1)).await;
                }
                other => return other.map_err(|e| format!("{name}: {e}")),
            }
        }
    }

    /// After everything has healed: what is left shows the same through every host.
    pub(crate) async fn read_back_side_volume(&self) -> Result<(), String> {
        if !self.admin().there.get() {
            return Ok(());
        }
        let (name, book) = self.last();
        for host in 0..self.rig().hosts() {
            let node = self.node(host).ok_or_else(|| format!("h{host} is not up"))?;
            let view = node.volume(&name).await.map_err(|e| format!("{name}: {e}"))?;
            let sectors = (view.record.size_bytes / SECTOR as u64) as u32;
            let volume = self.open_once_unlocked(&node, &name).await?;
            let read = book.read(&volume, 1_000_000 + u32::from(host), 0, sectors).await;
            read.map_err(|e| format!("{name} read back through h{host}: {e}"))?;
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
