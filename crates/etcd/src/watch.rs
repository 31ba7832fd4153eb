//! A watch over etcd: opened when it is first asked, and again after every error, from the last
//! revision that it told.
//!
//! Invariant: revisions rise from one answer to the next, whatever etcd sends. Releases below
//! 3.4.25 send events twice, or go back in time after a member was restored from a snapshot; one
//! below 3.4.38 sends old events to a watch that begins in the future.

use crate::error::{Meaning, meaning};
use crate::members::{Link, MESSAGE_MAX, Members, deadline};
use atoll_world::directory::{DirectoryError, Revision, Watch, WatchEvent};
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Rc;

/// See the module.
pub struct EtcdWatch {
    members: Rc<Members>,
    prefix: String,
    after: Revision,
    stream: Option<(Rc<Link>, WatchStream)>,
}

impl EtcdWatch {
    pub(crate) fn new(members: Rc<Members>, prefix: &str, after: Revision) -> Self {
        let prefix = members.full_key(prefix);
        Self { members, prefix, after, stream: None }
    }

    async fn open(&self) -> Result<(Rc<Link>, WatchStream), DirectoryError> {
        let (members, deadline) = (&self.members, deadline());
        let link = members.link(deadline).await?;
        let from = (self.after.0 + 1).cast_signed();
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let mut client = link.client().watch_client().max_decoding_message_size(MESSAGE_MAX);
        let opened = client.watch(self.prefix.as_str(), Some(options));
        let opened = members.ask(&link, deadline, opened).await.map_err(Meaning::of_read)?;
        Ok((link, opened))
    }

    /// What an answer tells that was not told yet.
    fn news(&mut self, answer: &WatchResponse) -> Result<Vec<WatchEvent>, DirectoryError> {
        if answer.canceled() {
            return Err(match answer.compact_revision() {
                0 => DirectoryError::Unavailable(format!("etcd: {}", answer.cancel_reason())),
                _ => DirectoryError::Compacted,
            });
        }
        let mut events = Vec::new();
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            let revision = Revision(kv.mod_revision().unsigned_abs());
            // Answers hold whole revisions: one that was told was told in full.
            if revision > self.after {
                let value = match event.event_type() {
                    EventType::Put => Some(kv.value().to_vec()),
                    EventType::Delete => None,
                };
                events.push(WatchEvent { revision, key: self.members.key_of(kv.key())?, value });
            }
        }
        events.sort_by_key(|event| event.revision);
        self.after = events.last().map_or(self.after, |last| last.revision);
        Ok(events)
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        loop {
            // Out of `self` while it is waited for: who gives up waiting, or hears of an error,
            // opens a new one.
            let (link, mut stream) = match self.stream.take() {
                Some(open) => open,
                None => self.open().await?,
            };
            let answer = match select(pin!(stream.message()), pin!(link.over())).await {
                Either::Left((Ok(Some(answer)), _)) => answer,
                Either::Left((Ok(None), _)) => {
                    return Err(DirectoryError::Unavailable("etcd ended the watch".into()));
                }
                Either::Left((Err(error), _)) => {
                    let meaning = meaning(&error);
                    if let Meaning::Lost(why) = &meaning {
                        self.members.leave(&link, why);
                    }
                    return Err(meaning.of_read());
                }
                Either::Right(_) => {
                    return Err(DirectoryError::Unavailable("the member was left".into()));
                }
            };
            let events = self.news(&answer)?;
            self.stream = Some((link, stream));
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}
