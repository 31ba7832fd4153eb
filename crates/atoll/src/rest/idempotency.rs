//! Remembers what keyed requests have made, so that a repeated one gets the same answer.
//!
//! Invariants: at most [`IDEMPOTENCY_KEYS_MAX`] keys, each for at most [`IDEMPOTENCY_TIME`]; a
//! failed request is forgotten; memory only: after a restart a repeated request finds the name
//! taken instead.

use atoll_api::limits::{IDEMPOTENCY_KEYS_MAX, IDEMPOTENCY_TIME};
use atoll_api::types::Volume;
use atoll_api::{Code, Problem};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

struct Entry {
    began: Instant,
    body: Vec<u8>,
    /// None while the request runs.
    answer: Option<Volume>,
}

type Entries = Arc<Mutex<BTreeMap<String, Entry>>>;

/// All keys of one server.
#[derive(Default)]
pub struct Keys(Entries);

/// What a keyed request is.
pub enum Begin {
    /// A repetition: this was the answer.
    Known(Box<Volume>),
    /// The first of its key.
    New(PendingAnswer),
}

/// The place for an answer; without one, the key is forgotten when this is dropped.
pub struct PendingAnswer {
    entries: Entries,
    key: String,
}

impl Keys {
    /// Begins a request with that key and body.
    ///
    /// # Errors
    /// [`Code::KeyReused`]: the key came with another body. [`Code::Conflict`]: the first one
    /// still runs. [`Code::TooMany`]: every remembered key is of a running request.
    pub fn begin(&self, key: &str, body: &[u8]) -> Result<Begin, Problem> {
        let now = now();
        let mut entries = self.0.lock().expect("nothing panics while it holds this lock");
        entries.retain(|_, entry| {
            entry.answer.is_none() || now.duration_since(entry.began) < IDEMPOTENCY_TIME
        });
        if let Some(entry) = entries.get(key) {
            if entry.body != body {
                return Err(Problem::new(
                    Code::KeyReused,
                    "this Idempotency-Key came before with another body",
                )
                .hint("use a new key for a new request"));
            }
            return match &entry.answer {
                Some(volume) => Ok(Begin::Known(Box::new(volume.clone()))),
                None => Err(Problem::new(
                    Code::Conflict,
                    "the first request with this Idempotency-Key is still running",
                )),
            };
        }
        if entries.len() >= IDEMPOTENCY_KEYS_MAX {
            let oldest = entries
                .iter()
                .filter(|(_, entry)| entry.answer.is_some())
                .min_by_key(|(_, entry)| entry.began)
                .map(|(key, _)| key.clone());
            let Some(oldest) = oldest else {
                return Err(Problem::new(Code::TooMany, "too many keyed requests are running"));
            };
            entries.remove(&oldest);
        }
        let entry = Entry { began: now, body: body.to_vec(), answer: None };
        entries.insert(key.to_owned(), entry);
        Ok(Begin::New(PendingAnswer { entries: self.0.clone(), key: key.to_owned() }))
    }
}

impl PendingAnswer {
    /// The request has made this.
    pub fn finish(self, volume: Volume) {
        let mut entries = self.entries.lock().expect("nothing panics while it holds this lock");
        if let Some(entry) = entries.get_mut(&self.key) {
            entry.answer = Some(volume);
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let mut entries = self.entries.lock().expect("nothing panics while it holds this lock");
        if entries.get(&self.key).is_some_and(|entry| entry.answer.is_none()) {
            entries.remove(&self.key);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the server is outside the simulated world")]
fn now() -> Instant {
    Instant::now()
}
