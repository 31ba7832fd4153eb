//! All shards of this host, as shard 0 sees them: its own, and the others across their bridges.
//!
//! Invariant: an answer that is made of what all of them know is whole, or an error names the shard
//! that did not tell.

use super::shard::{Shard, ShardFigures};
use crate::bridge::Bridge;
use atoll_api::{Code, Problem};
use futures_util::future::{join_all, try_join_all};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// How long a shard may take to tell what it knows.
const TELL_WAIT: Duration = Duration::from_millis(1_500);

/// The shards of a host, on shard 0's thread.
pub struct Shards {
    own: Rc<Shard>,
    /// Shards 1 and up.
    others: Vec<Bridge<Shard>>,
}

impl Shards {
    /// Shard 0, and the bridges to the others, in their order.
    pub fn new(own: Rc<Shard>, others: Vec<Bridge<Shard>>) -> Self {
        assert_eq!(own.number, 0, "shard 0 speaks for its host");
        Self { own, others }
    }

    /// How many there are.
    pub fn count(&self) -> u8 {
        u8::try_from(self.others.len() + 1).expect("at most 64")
    }

    /// Shard 0.
    pub fn own(&self) -> &Rc<Shard> {
        &self.own
    }

    /// Has a shard do something.
    ///
    /// # Errors
    /// The job's own; [`Code::Unavailable`]: the shard has ended; [`Code::TooMany`].
    pub async fn on<T, F, J>(&self, shard: u8, job: J) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Problem>> + 'static,
        J: FnOnce(Rc<Shard>) -> F + Send + 'static,
    {
        match usize::from(shard).checked_sub(1) {
            None => job(self.own.clone()).await,
            Some(other) => self.others[other].call(job).await,
        }
    }

    /// Has every shard but 0 do the same, all at once; what came of it, in their order.
    pub async fn on_others<T, F, J>(&self, job: J) -> Vec<Result<T, Problem>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Problem>> + 'static,
        J: FnOnce(Rc<Shard>) -> F + Clone + Send + 'static,
    {
        join_all(self.others.iter().map(|other| other.call(job.clone()))).await
    }

    /// The same; ends with the first that fails.
    ///
    /// # Errors
    /// As [`Shards::on`].
    pub async fn all_others<T, F, J>(&self, job: J) -> Result<Vec<T>, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Problem>> + 'static,
        J: FnOnce(Rc<Shard>) -> F + Clone + Send + 'static,
    {
        try_join_all(self.others.iter().map(|other| other.call(job.clone()))).await
    }

    /// What all of them have counted.
    ///
    /// # Errors
    /// A shard does not tell.
    pub async fn figures(&self) -> Result<ShardFigures, Problem> {
        let asked = self.others.iter().zip(1..).map(|(other, number)| async move {
            let told = other.call(|shard| async move { Ok(shard.figures()) });
            tokio::time::timeout(TELL_WAIT, told).await.unwrap_or_else(|_| {
                let detail = format!("shard {number} of this host does not answer");
                Err(Problem::new(Code::Unavailable, detail).hint("try again in a few seconds"))
            })
        });
        let others = join_all(asked).await;
        others.into_iter().try_fold(self.own.figures(), |all, shard| Ok(all.and(shard?)))
    }
}
