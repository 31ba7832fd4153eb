//! One line of the audit log, and how it follows from the one before it.

use atoll_api::routes::Role;
use atoll_trust::TokenSecret;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Of the format of a line.
const VERSION: u32 = 1;
/// Characters of a request's path and query that are kept.
const TARGET_MAX: usize = 1_024;
/// Characters of a sentence that are kept.
const DETAIL_MAX: usize = 512;
/// Bytes of a request's body that are kept; of a longer one, its size.
const BODY_MAX: usize = 2_048;
/// How deep a body that is kept may be nested: a line must be readable again, also inside others.
const DEPTH_MAX: usize = 16;
/// Numbers of a line that can be believed.
const NUMBER_MAX: u64 = 1 << 53;
/// Bytes of a line at most: every character that is kept may be escaped (6 bytes).
pub(super) const LINE_MAX: usize = 16 << 10;

/// What somebody has done, or was not let do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Deed {
    /// Milliseconds since 1970 when it was asked for.
    pub at_ms: u64,
    /// Whose doing: `token:NAME`; `uid:N`, who came by the Unix socket; `anybody`, who came by TCP
    /// without TLS.
    pub who: String,
    /// What he may do.
    pub role: Role,
    /// Where he came from: an IP address, or `socket`.
    pub from: String,
    /// The operation, by its name in the table of operations.
    pub operation: String,
    /// Path and query of the request; values of `token` and of unknown parameters are `*`.
    pub target: String,
    /// The body of the request, if it has one and it was read; its size only, of one that is long,
    /// nested deep, or holds a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// HTTP status of the answer; 0: whoever asked did not wait for it.
    pub status: u16,
    /// `E0401`, of an answer that is a problem.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// What the problem is: one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Deed {
    /// A body, as it is kept. Nothing that is sent in one is secret; a token that somebody has put
    /// there by mistake is not kept.
    pub fn body(bytes: &[u8]) -> Option<Value> {
        if bytes.is_empty() {
            return None;
        }
        let whole = (bytes.len() <= BODY_MAX).then(|| serde_json::from_slice(bytes).ok());
        let is_good =
            |body: &Value| is_flat(body, DEPTH_MAX) && !TokenSecret::is_in(&body.to_string());
        let whole = whole.flatten().filter(is_good);
        Some(whole.unwrap_or_else(|| serde_json::json!({ "bytes": bytes.len() })))
    }

    /// With texts as long as a line allows.
    pub(super) fn cut(mut self) -> Self {
        for (text, max) in [(&mut self.target, TARGET_MAX), (&mut self.detail, DETAIL_MAX)] {
            if TokenSecret::is_in(text) {
                "(left out: it holds a token)".clone_into(text);
            }
            cut(text, max);
        }
        self
    }
}

/// Whether it is nested at most so deep.
fn is_flat(value: &Value, depth: usize) -> bool {
    match (value, depth.checked_sub(1)) {
        (Value::Array(items), Some(left)) => items.iter().all(|item| is_flat(item, left)),
        (Value::Object(fields), Some(left)) => fields.values().all(|field| is_flat(field, left)),
        (Value::Array(_) | Value::Object(_), None) => false,
        _ => true,
    }
}

fn cut(text: &mut String, max: usize) {
    if let Some((at, _)) = text.char_indices().nth(max) {
        text.truncate(at);
        text.push_str("...");
    }
}

/// A line of the log. Fields are only ever added; whoever reads one leaves out what he does not
/// know.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    version: u32,
    /// Rises by one from line to line; the first is 1.
    pub number: u64,
    /// Entries before this one that were not kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    #[serde(flatten)]
    pub deed: Deed,
    /// SHA-256 of the line before it, without its line feed, in hexadecimal digits; empty: it is
    /// the first.
    pub previous: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Line {
    /// The one behind `end`.
    pub fn behind(end: &End, deed: Deed, left_out: u64) -> Self {
        let (number, previous) = (end.number + 1, end.sha256.clone());
        Self { version: VERSION, number, left_out, deed, previous }
    }

    /// Its text, without a line feed, and what follows from it.
    pub fn text(&self) -> (String, End) {
        let text = serde_json::to_string(self).expect("a line has string keys");
        let end = End::of(self.number, &text);
        (text, end)
    }

    /// The line with that text.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn read(text: &str) -> Result<Self, String> {
        let line: Self = serde_json::from_str(text).map_err(|e| format!("it is no entry: {e}"))?;
        if line.version != VERSION {
            let theirs = line.version;
            return Err(format!("it is of version {theirs}; this release knows {VERSION}"));
        }
        if !(1..NUMBER_MAX).contains(&line.number) || line.left_out > NUMBER_MAX {
            return Err("its numbers are not possible".into());
        }
        Ok(line)
    }
}

/// What the next line follows from; the default: it is the first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct End {
    /// Of the last line.
    pub number: u64,
    /// Of the last line.
    pub sha256: String,
}

impl End {
    /// Behind the line of that number and text.
    pub fn of(number: u64, text: &str) -> Self {
        Self { number, sha256: atoll_trust::sha256(text.as_bytes()) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{BODY_MAX, Deed, End, LINE_MAX, Line};
    use atoll_api::routes::Role;
    use serde_json::json;

    pub fn deed(target: &str) -> Deed {
        Deed {
            at_ms: 1_764_000_000_000,
            who: "token:ci".into(),
            role: Role::Operator,
            from: "10.0.0.9".into(),
            operation: "VolumeDelete".into(),
            target: target.into(),
            body: None,
            status: 204,
            code: String::new(),
            detail: String::new(),
        }
    }

    #[test]
    fn a_line_is_what_the_document_says() {
        let first = Line::behind(&End::default(), deed("/api/v1/volumes/v"), 0);
        let (text, end) = first.text();
        assert_eq!(
            text,
            "{\"version\":1,\"number\":1,\"at_ms\":1764000000000,\"who\":\"token:ci\",\"role\":\
             \"operator\",\"from\":\"10.0.0.9\",\"operation\":\"VolumeDelete\",\"target\":\
             \"/api/v1/volumes/v\",\"status\":204,\"previous\":\"\"}"
        );
        // printf '%s' '{...}' | sha256sum
        assert_eq!(end.sha256.len(), 64);
        let refused = Deed {
            status: 403,
            code: "E0401".into(),
            detail: "no".into(),
            body: Some(json!({"a": 1})),
            ..deed("/x")
        };
        let second = Line::behind(&end, refused, 3);
        assert_eq!((second.number, &second.previous), (2, &end.sha256));
        assert_eq!(Line::read(&second.text().0), Ok(second));
        let later = text.replace("\"version\":1", "\"version\":2");
        assert!(Line::read(&later).unwrap_err().contains("version 2"));
        // A newer release of the same version says more.
        let more = text.replace("\"status\"", "\"weather\":\"rain\",\"status\"");
        assert_eq!(Line::read(&more), Ok(first));
        for number in ["0", "18446744073709551615"] {
            let bad = text.replace("\"number\":1", &format!("\"number\":{number}"));
            assert!(Line::read(&bad).unwrap_err().contains("not possible"), "{bad}");
        }
    }

    #[test]
    fn a_line_is_bounded_whatever_was_sent() {
        let long = "\u{1}".repeat(100_000);
        let body = serde_json::to_vec(&json!({ "a": "\u{1}".repeat(BODY_MAX / 6 - 10) })).unwrap();
        assert!(body.len() <= BODY_MAX && body.len() > BODY_MAX - 100);
        let deed = Deed { detail: long.clone(), body: Deed::body(&body), ..deed(&long) }.cut();
        let text = Line::behind(&End::default(), deed, 1 << 53).text().0;
        assert!(text.len() < LINE_MAX, "{}", text.len());
        assert_eq!(Deed::body(&vec![b'x'; BODY_MAX + 1]), Some(json!({ "bytes": BODY_MAX + 1 })));
        assert_eq!(Deed::body(b"no json"), Some(json!({ "bytes": 7 })));
        // A token in the wrong place; it would be readable through an escape, too.
        let token = format!("atoll_{}", "0123456789abcdef".repeat(4));
        for body in
            [format!("{{\"a\":\"{token}\"}}"), format!("{{\"a\":\"\\u0061{}\"}}", &token[1..])]
        {
            assert_eq!(Deed::body(body.as_bytes()), Some(json!({ "bytes": body.len() })), "{body}");
        }
        let told = Deed { detail: format!("no {token}"), ..self::deed(&token) }.cut();
        assert!(!format!("{told:?}").contains(&token), "{told:?}");
        // What cannot be read again is not written.
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Deed::body(nested(16).as_bytes()).unwrap().is_array());
        for depth in [17, 126, 127, 900] {
            let body = Deed::body(nested(depth).as_bytes());
            assert_eq!(body, Some(json!({ "bytes": 2 * depth })));
        }
        assert_eq!((Deed::body(b""), Deed::body(b"{}")), (None, Some(json!({}))));
    }
}
