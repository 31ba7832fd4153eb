//! Calls from any thread to the shard's thread: a closure is sent there, runs as a task of its own,
//! and its answer comes back.
//!
//! Invariants: at most [`CALLS_MAX`](atoll_api::limits::CALLS_MAX) closures wait; a caller that
//! goes away does not stop what it has begun; when the shard has ended, every caller hears so.

use atoll_api::{Code, Problem, limits};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Job<E> = Box<dyn FnOnce(Rc<E>) -> Task + Send>;

/// The end of the callers, on any thread. Clones are the same bridge.
pub struct Bridge<E>(mpsc::Sender<Job<E>>);

impl<E> Clone for Bridge<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The end on the shard's thread, which runs what the callers send.
pub struct ShardHandle<E>(mpsc::Receiver<Job<E>>);

/// Both ends.
pub fn bridge<E>() -> (Bridge<E>, ShardHandle<E>) {
    let (sender, receiver) = mpsc::channel(limits::CALLS_MAX);
    (Bridge(sender), ShardHandle(receiver))
}

impl<E: 'static> Bridge<E> {
    /// Runs `job` on the shard and waits for its answer.
    ///
    /// # Errors
    /// The job's own; [`Code::Unavailable`]: the shard has ended; [`Code::TooMany`].
    pub async fn call<T, F, J>(&self, job: J) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Problem>> + 'static,
        J: FnOnce(Rc<E>) -> F + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job: Job<E> = Box::new(move |engine| {
            let work = job(engine);
            Box::pin(async move {
                // Nobody may wait any more: the work was done all the same.
                let _ = sender.send(work.await);
            })
        });
        let stopping = || Problem::new(Code::Unavailable, "this host is stopping");
        self.0.try_send(job).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => {
                Problem::new(Code::TooMany, format!("{} calls wait", limits::CALLS_MAX))
            }
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })?;
        receiver.await.unwrap_or_else(|_| Err(stopping()))
    }
}

impl<E: 'static> ShardHandle<E> {
    /// Runs the closures that arrive, until the last [`Bridge`] is dropped. Inside a `LocalSet`.
    pub async fn serve(mut self, engine: Rc<E>) {
        while let Some(job) = self.0.recv().await {
            tokio::task::spawn_local(job(engine.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bridge;
    use atoll_api::{Code, Problem};
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn closures_cross_and_answers_come_back_until_the_shard_ends() {
        let (bridge, handle) = bridge::<Cell<u32>>();
        let shard = std::thread::Builder::new()
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, async {
                    let engine = Rc::new(Cell::new(1));
                    tokio::task::spawn_local(handle.serve(engine.clone()));
                    while engine.get() < 3 {
                        tokio::task::yield_now().await;
                    }
                });
            })
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let add = |by: u32| {
                bridge.call(move |engine: Rc<Cell<u32>>| async move {
                    engine.set(engine.get() + by);
                    Ok(engine.get())
                })
            };
            assert_eq!(add(1).await.unwrap(), 2);
            let refused = bridge.call(|_| async { Err::<(), _>(Problem::new(Code::InUse, "x")) });
            assert_eq!(refused.await.unwrap_err().code, Code::InUse);
            let _ = add(1).await; // ends the shard, perhaps before the answer
            shard.join().unwrap();
            assert_eq!(add(1).await.unwrap_err().code, Code::Unavailable);
        });
    }
}
