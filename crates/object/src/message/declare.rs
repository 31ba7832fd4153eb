//! How messages are declared: each once. What declares them here makes their type, their bytes, and
//! their rows in the tables of `docs/protocol.md`.

/// One direction's messages.
///
/// Each is its kind on the wire, its name and fields in the order in which they are sent; of a
/// request also who says it to whom, the lanes it takes, the replies it has beside `Failed`, and
/// whether it may be repeated.
macro_rules! messages {
    (
        $(#[$meta:meta])*
        pub enum $name:ident else $unknown:literal {
            $(
                $(#[doc = $doc:literal])+
                $kind:literal $variant:ident
                $( ( $one:ident: $inner:ty ) )?
                $( { $( $(#[$about:meta])* $field:ident: $of:ty ),+ $(,)? } )?
                $( => $said:literal on [$($lane:ident),+] gets [$($reply:ident),+]
                    again $again:literal )?
            );+ $(;)?
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $(
                $(#[doc = $doc])+
                $variant $( ($inner) )? $( { $( $(#[$about])* $field: $of ),+ } )?,
            )+
        }

        impl $name {
            fn put(self) -> atoll_transport::Encoded {
                let mut e = $crate::message::codec::Enc::default();
                let kind = match self {
                    $( Self::$variant $( ($one) )? $( { $($field),+ } )? => {
                        $( $one.put(&mut e); )?
                        $( $($field.put(&mut e);)+ )?
                        $kind
                    } )+
                };
                let (body, payload) = (e.body, e.payload);
                atoll_transport::Encoded { kind, body, payload, payload_checked_by_receiver: true }
            }

            fn get(
                kind: u16,
                body: &[u8],
                payload: Vec<atoll_world::Buf>,
            ) -> Result<Self, atoll_transport::BadMessage> {
                let mut d = $crate::message::codec::Dec { body, payload };
                let message = match kind {
                    $( $kind => Self::$variant
                        $( (<$inner>::get(&mut d)?) )?
                        $( { $($field: <$of>::get(&mut d)?),+ } )?, )+
                    _ => return Err(atoll_transport::BadMessage($unknown)),
                };
                d.end()?;
                Ok(message)
            }

            $crate::message::declare::lanes! { $( $variant $( [$($lane),+] )? )+ }

            /// What `docs/protocol.md` says of them.
            #[cfg(test)]
            const ROWS: &'static [$crate::message::declare::Row] = &[ $(
                $crate::message::declare::Row {
                    kind: $kind,
                    name: stringify!($variant),
                    fields: &[ $( stringify!($one), )? $( $( stringify!($field) ),+ )? ],
                    meaning: concat!($($doc),+),
                    said: concat!($($said)?),
                    lanes: &[ $( $( stringify!($lane) ),+ )? ],
                    replies: &[ $( $( stringify!($reply) ),+ )? ],
                    again: concat!($($again)?),
                }
            ),+ ];
        }
    };
}
pub(super) use messages;

/// The lanes of requests; replies take that of theirs.
macro_rules! lanes {
    ( $( $variant:ident [$($lane:ident),+] )+ ) => {
        /// The lanes that it may take.
        pub(crate) fn lanes(&self) -> &'static [atoll_world::Lane] {
            match self {
                $( Self::$variant { .. } => &[ $( atoll_world::Lane::$lane ),+ ], )+
            }
        }
    };
    ( $( $variant:ident )+ ) => {};
}
pub(super) use lanes;

/// One message, for people.
#[cfg(test)]
pub(super) struct Row {
    pub kind: u16,
    pub name: &'static str,
    pub fields: &'static [&'static str],
    pub meaning: &'static str,
    pub said: &'static str,
    pub lanes: &'static [&'static str],
    pub replies: &'static [&'static str],
    pub again: &'static str,
}

#[cfg(test)]
impl Row {
    /// A line of a table in Markdown; `W`: it has a payload.
    pub fn line(&self, has_payload: bool) -> String {
        let fields = match self.fields {
            [] => String::new(),
            fields => format!(" {{{}}}", fields.join(", ")),
        };
        let with = if has_payload { " W" } else { "" };
        let mut line = format!("| {} | {}{fields}{with} |", self.kind, self.name);
        if !self.said.is_empty() {
            let (lanes, replies) = (self.lanes.join(", ").to_lowercase(), self.replies.join(", "));
            line += &format!(" {} | {lanes} | {replies} | {} |", self.said, self.again);
        }
        format!("{line} {} |\n", self.meaning.trim())
    }
}
