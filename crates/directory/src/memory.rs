//! The directory without a file: the state machine of [`crate::state`] as a [`Directory`], for
//! simulations and tests. Nothing in it takes time and nothing fails; a simulator puts latency,
//! outages and lost answers around it.

use crate::state::DirectoryState;
use atoll_world::Nanos;
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::sync::Notify;
use std::cell::{Ref, RefCell};
use std::rc::Rc;

/// A directory in memory. Clones are the same directory, on one shard.
#[derive(Clone)]
pub struct MemoryDirectory(Rc<SharedDirectory>);

struct SharedDirectory {
    state: RefCell<DirectoryState>,
    changed: Notify,
    clock: Box<dyn Fn() -> Nanos>,
}

impl MemoryDirectory {
    /// An empty directory; `clock` is what hints expire by.
    pub fn new(clock: impl Fn() -> Nanos + 'static) -> Self {
        Self::with_state(DirectoryState::new(), clock)
    }

    /// A directory that holds `state`.
    pub fn with_state(state: DirectoryState, clock: impl Fn() -> Nanos + 'static) -> Self {
        Self(Rc::new(SharedDirectory {
            state: RefCell::new(state),
            changed: Notify::default(),
            clock: Box::new(clock),
        }))
    }

    /// What it holds now, without waiting; not to be kept over an await.
    pub fn state(&self) -> Ref<'_, DirectoryState> {
        self.0.state.borrow()
    }

    /// As [`Directory::txn`], at once.
    ///
    /// # Errors
    /// `Refused`: beyond a limit.
    pub fn apply(&self, txn: &Txn) -> Result<TxnReply, DirectoryError> {
        let reply = self.0.state.borrow_mut().apply(txn)?;
        if let TxnReply::Done(_) = reply {
            self.0.changed.notify_all();
        }
        Ok(reply)
    }
}

impl Directory for MemoryDirectory {
    type Watch = MemoryWatch;

    async fn txn(&self, txn: Txn) -> Result<TxnReply, DirectoryError> {
        self.apply(&txn)
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        self.state().get(key)
    }
    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        self.state().list(prefix)
    }
    async fn watch(&self, prefix: &str, after: Revision) -> Result<MemoryWatch, DirectoryError> {
        self.state().events_since(prefix, after)?;
        Ok(MemoryWatch { of: self.clone(), prefix: prefix.to_owned(), after })
    }
    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        let now = (self.0.clock)();
        self.0.state.borrow_mut().touch(now, name, ttl_ms)
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        Ok(self.state().alive((self.0.clock)()))
    }
}

/// A watch of a [`MemoryDirectory`].
pub struct MemoryWatch {
    of: MemoryDirectory,
    prefix: String,
    after: Revision,
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        loop {
            // Ended by the next transaction of anyone; a watcher may wait for ever.
            let changed = self.of.0.changed.notified();
            let found = self.of.state().events_since(&self.prefix, self.after)?;
            self.after = found.up_to;
            if !found.events.is_empty() {
                return Ok(found.events);
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryDirectory;
    use atoll_world::Nanos;
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn the_memory_directory_conforms() {
        let now = Rc::new(Cell::new(Nanos::ZERO));
        let clock = now.clone();
        let directory = MemoryDirectory::new(move || clock.get());
        let sleep = |span: Nanos| {
            let until = now.get() + span;
            let now = now.clone();
            std::future::poll_fn(move |_| match now.get() >= until {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
        };
        let clients = [directory.clone(), directory];
        let mut suite = pin!(crate::conformance::run(&clients, sleep));
        // Time moves on by a microsecond whenever nobody can do anything.
        for _ in 0..10_000_000 {
            if suite.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                return;
            }
            now.set(now.get() + Nanos::from_us(100));
        }
        panic!("the suite hangs");
    }
}
