//! What machine output is wrapped in, over REST and from `-o json` alike:
//! `{"kind":"VolumeList","version":1,"generated_at":"2026-11-20T12:00:00Z","items":[...]}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The version of every envelope: raised when the meaning of a field changes, never by additions.
pub const VERSION: u16 = 1;

/// A type that travels in an envelope.
pub trait Named {
    /// Its name in `kind`; a list of it is `<KIND>List`.
    const KIND: &'static str;
}

/// A host that an answer is without: what only it knows is not in it, and unknown figures are null.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct Missing {
    /// Its name.
    pub host: String,
    /// Why, one clause: `does not answer`.
    pub why: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.host, self.why)
    }
}

/// One thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item<T> {
    /// [`Named::KIND`].
    pub kind: String,
    /// [`VERSION`].
    pub version: u16,
    /// When the answer was made, RFC 3339 UTC.
    pub generated_at: String,
    /// The thing.
    pub item: T,
    /// Hosts that were to tell something of it and did not; absent: all have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
}

/// Several things, or one page of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct List<T> {
    /// [`Named::KIND`] and `List`.
    pub kind: String,
    /// [`VERSION`].
    pub version: u16,
    /// When the answer was made, RFC 3339 UTC.
    pub generated_at: String,
    /// The things, in a stable order.
    pub items: Vec<T>,
    /// Give this as `?cursor=` to get the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Of events: how far they have been read. Give this as `?cursor=` for those that come later,
    /// also after restarts; absent in other lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Hosts that were to tell something and did not; absent: all have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
}

impl<T: Named> Item<T> {
    /// Wraps `item`; `unix_ms` is the present time.
    pub fn new(item: T, unix_ms: u64) -> Self {
        let (kind, generated_at) = (T::KIND.into(), rfc3339(unix_ms));
        Self { kind, version: VERSION, generated_at, item, missing: Vec::new() }
    }

    /// The same, without those hosts.
    #[must_use]
    pub fn without(self, missing: Vec<Missing>) -> Self {
        Self { missing, ..self }
    }
}

impl<T: Named> List<T> {
    /// Wraps `items`; `unix_ms` is the present time.
    pub fn new(items: Vec<T>, next_cursor: Option<String>, unix_ms: u64) -> Self {
        Self {
            kind: format!("{}List", T::KIND),
            version: VERSION,
            generated_at: rfc3339(unix_ms),
            items,
            next_cursor,
            position: None,
            missing: Vec::new(),
        }
    }

    /// The same, without those hosts.
    #[must_use]
    pub fn without(self, missing: Vec<Missing>) -> Self {
        Self { missing, ..self }
    }
}

/// Milliseconds since 1970 as RFC 3339 UTC with milliseconds: `2026-11-20T12:00:00.000Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| "9999-12-31T23:59:59.999Z".into(), |t| format!("{t:.3}"))
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_175_464_057), "2026-11-20T11:51:04.057Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
