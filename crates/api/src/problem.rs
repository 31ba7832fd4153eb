//! Errors of the management interface: one table of codes, and RFC 9457 `problem+json`.
//!
//! Invariant: a code keeps its number and its meaning for ever; every code has exactly one HTTP
//! status and one exit code of the command line, so that both say the same thing.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! codes {
    ($(
        $(#[$doc:meta])+
        $name:ident = $number:literal, $status:literal, $exit:literal, $title:literal;
    )*) => {
        /// What went wrong: things that a caller would do something different about.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Code {
            $($(#[$doc])+ $name,)*
        }

        impl Code {
            /// All of them, ascending by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its number: `E0201` is 201.
            pub fn number(self) -> u16 {
                match self { $(Self::$name => $number,)* }
            }
            /// The HTTP status it travels with; 0 for those that never leave the command line.
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
            /// The exit code of a command that ends with it.
            pub fn exit(self) -> u8 {
                match self { $(Self::$name => $exit,)* }
            }
            /// What it means, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    /// Something else failed; the message says what.
    Failed = 1, 500, 1, "failed";
    /// The command line cannot be understood.
    Usage = 2, 0, 2, "wrong usage";
    /// The configuration file cannot be used.
    Config = 3, 0, 1, "bad configuration";
    /// A local file cannot be read or written.
    LocalFile = 4, 0, 1, "local file";
    /// Standard output cannot be written.
    Output = 5, 0, 1, "cannot write output";
    /// A program that is needed is not installed.
    MissingProgram = 6, 0, 1, "a program is missing";
    /// An image is damaged, truncated or of an unknown format.
    BadImage = 7, 0, 1, "bad image";
    /// Another process uses the data directory.
    DataDirInUse = 8, 0, 4, "data directory in use";
    /// An address is taken by another process.
    AddressInUse = 9, 0, 1, "address in use";
    /// Ctrl-C.
    Interrupted = 10, 0, 130, "interrupted";
    /// The request cannot be understood.
    BadRequest = 101, 400, 1, "malformed request";
    /// A field has a value it must not have; the message names it.
    BadValue = 102, 400, 2, "bad value";
    /// A name breaks the rule for names.
    BadName = 103, 400, 2, "bad name";
    /// A size is zero, unaligned, or beyond a limit.
    BadSize = 104, 400, 2, "bad size";
    /// The body is larger than any real request.
    BodyTooLarge = 105, 413, 1, "request body too large";
    /// The head is larger than any real request.
    HeadTooLarge = 106, 431, 1, "request header fields too large";
    /// The URL is longer than any real one.
    UrlTooLong = 107, 414, 1, "request target too long";
    /// There is no such route: the server may be older or newer.
    NoRoute = 108, 404, 21, "no such route";
    /// The route exists, not for that method.
    NoMethod = 109, 405, 21, "method not allowed";
    /// A body that is not JSON.
    NotJson = 110, 415, 1, "unsupported media type";
    /// The client did not send its request in time.
    SlowClient = 111, 408, 1, "request timed out";
    /// The request comes from a page of another origin.
    ForeignOrigin = 112, 403, 5, "foreign origin";
    /// There is no such thing.
    NotFound = 201, 404, 3, "not found";
    /// The name is taken.
    Exists = 301, 409, 4, "exists already";
    /// It has changed since it was read (`If-Match`).
    Changed = 302, 412, 4, "changed meanwhile";
    /// It is in use.
    InUse = 303, 409, 4, "in use";
    /// Its present state does not allow this.
    Conflict = 304, 409, 4, "conflict";
    /// The idempotency key was used for another request.
    KeyReused = 305, 422, 4, "idempotency key reused";
    /// The caller may not do this.
    NotPermitted = 401, 403, 5, "not permitted";
    /// Who the caller is was not proved: no token, or one that is not good.
    NotAuthenticated = 402, 401, 5, "not authenticated";
    /// No placement satisfies the policy.
    CannotPlace = 412, 409, 6, "cannot be placed";
    /// There is no room for it.
    NoSpace = 413, 507, 6, "no space";
    /// Going on would risk data.
    WouldRiskData = 501, 409, 7, "refused: would risk data";
    /// A disk holds something that is not ours to overwrite.
    ForeignDisk = 502, 409, 7, "disk is not empty";
    /// A disk cannot be used.
    BadDisk = 503, 409, 1, "disk cannot be used";
    /// No answer in time; the work may go on.
    TimedOut = 601, 504, 8, "timed out";
    /// The server cannot do this now; try again.
    Unavailable = 701, 503, 1, "unavailable";
    /// Too many requests at once; try again.
    TooMany = 702, 429, 1, "too many requests";
    /// The server cannot be reached.
    CannotConnect = 801, 0, 20, "cannot connect";
    /// What answers is not an Atoll server of a version that this program knows.
    WrongServer = 802, 0, 21, "server too old or too new";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{:04}", self.number())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Code {
    /// A code that this program does not know (of a newer server) reads as [`Code::Failed`].
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let number = text.strip_prefix('E').and_then(|digits| digits.parse::<u16>().ok());
        let known = Self::ALL.iter().find(|code| Some(code.number()) == number);
        Ok(known.copied().unwrap_or(Self::Failed))
    }
}

/// One error, as a REST reply (RFC 9457) and as two lines of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which error.
    pub code: Code,
    /// The HTTP status; [`Code::status`], but of a newer server perhaps one of its own.
    pub status: u16,
    /// One sentence about this occurrence: what, where, which values.
    pub detail: String,
    /// What to do about it; a command where there is one.
    pub hint: Option<String>,
    /// The field of the request that is wrong, as a dotted path.
    pub field: Option<String>,
}

/// How a problem travels: with the members of RFC 9457, which follow from the code.
#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "type", default)]
    uri: String,
    #[serde(default)]
    title: String,
    status: u16,
    detail: String,
    code: Code,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let wire = Wire {
            uri: format!("/docs/errors#{}", self.code),
            title: self.code.title().into(),
            status: self.status,
            detail: self.detail.clone(),
            code: self.code,
            hint: self.hint.clone(),
            field: self.field.clone(),
        };
        wire.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Wire { uri: _, title: _, status, detail, code, hint, field } = Wire::deserialize(d)?;
        Ok(Self { code, status, detail, hint, field })
    }
}

impl Problem {
    /// An error of that code; `detail` is one sentence without a full stop.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, status: code.status(), detail: detail.into(), hint: None, field: None }
    }

    /// Says what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Names the field of the request.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// There is no `what` called `name`.
    pub fn not_found(what: &str, name: &str) -> Self {
        let list = format!("atoll {what} list");
        Self::new(Code::NotFound, format!("there is no {what} {}", crate::name::show(name)))
            .hint(list)
    }
}

impl fmt::Display for Problem {
    /// `error[E0201]: there is no volume 'x'`, and the hint on a second line. Line breaks inside
    /// are turned into spaces: each of the two stays one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, one_line(&self.detail))?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split(|c: char| c.is_control()).filter(|part| !part.is_empty()) {
        if !line.is_empty() && !line.ends_with(' ') {
            line.push(' ');
        }
        line.push_str(word.trim_start());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Code, Problem};

    #[test]
    fn codes_are_unique_ascending_and_survive_json() {
        for pair in Code::ALL.windows(2) {
            assert!(pair[0].number() < pair[1].number(), "{} {}", pair[0], pair[1]);
        }
        for &code in Code::ALL {
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), code);
            assert!(matches!(code.exit(), 1..=8 | 20 | 21 | 130), "{code}");
            assert!(matches!(code.status(), 0 | 400..=599), "{code}");
        }
        assert_eq!(serde_json::from_str::<Code>("\"E9999\"").unwrap(), Code::Failed);
        assert_eq!(Code::CannotPlace.to_string(), "E0412");
    }

    #[test]
    fn a_problem_is_two_lines_whatever_it_quotes() {
        let problem = Problem::new(Code::NotFound, "no volume\r\n 'x\u{1b}[2Jy'")
            .hint("atoll volume list\nrm -rf");
        assert_eq!(
            problem.to_string(),
            "error[E0201]: no volume 'x [2Jy'\nhint: atoll volume list rm -rf"
        );
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], "/docs/errors#E0201");
        assert_eq!((&json["title"], &json["status"]), (&"not found".into(), &404.into()));
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }
}
