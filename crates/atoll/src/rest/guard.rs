//! Gives a body to the errors that hyper answers by itself: requests that are not HTTP, or whose
//! head is too large. They never reach our code, and their replies are empty.
//!
//! Invariant: only a reply that hyper made alone is replaced. It is recognised as a write that
//! begins with a status line of class 4, ends its head, and announces an empty body. No reply of
//! ours looks so: ours have bodies, and no body of ours contains CR LF.

use atoll_api::{Code, Problem};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose empty 4xx replies are given a body.
pub struct Guard<S> {
    stream: S,
    /// Bytes of a replacement that are still to be written.
    pending: Vec<u8>,
    written: usize,
}

impl<S: AsyncWrite + Unpin> Guard<S> {
    /// Around `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, pending: Vec::new(), written: 0 }
    }

    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let rest = &self.pending[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.written += n,
            }
        }
        self.pending.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

/// The reply to send instead of `head`, if hyper made it alone.
fn replacement(head: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(head).ok()?;
    let status: u16 = text.strip_prefix("HTTP/1.1 4")?.get(..2)?.parse().ok()?;
    let empty = text.to_ascii_lowercase().contains("\r\ncontent-length: 0\r\n");
    if !empty || !text.ends_with("\r\n\r\n") {
        return None;
    }
    let max = atoll_api::limits::HEADERS_MAX;
    let size = atoll_api::limits::HEAD_MAX;
    let (code, detail) = match 400 + status {
        431 => {
            let detail = format!("the head has more than {max} fields or {size} bytes");
            (Code::HeadTooLarge, detail)
        }
        414 => (Code::UrlTooLong, "the URL is longer than any of ours".into()),
        _ => (Code::BadRequest, "this is not an HTTP/1.1 request".into()),
    };
    let problem = Problem::new(code, detail);
    let body = serde_json::to_string(&problem).expect("a problem has string keys");
    let status_line = text.lines().next()?;
    Some(
        format!(
            "{status_line}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        match replacement(bytes) {
            Some(reply) => {
                self.pending = reply;
                // What does not go now goes with the next write, flush or shutdown.
                if let Poll::Ready(Err(e)) = self.poll_pending(cx) {
                    return Poll::Ready(Err(e));
                }
                Poll::Ready(Ok(bytes.len()))
            }
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::replacement;

    #[test]
    fn only_replies_made_by_hyper_alone_are_replaced() {
        let made = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
                     content-length: 0\r\ndate: x\r\n\r\n";
        let text = String::from_utf8(replacement(made).unwrap()).unwrap();
        assert!(text.starts_with("HTTP/1.1 431 Request"), "{text}");
        assert!(text.contains("\"code\":\"E0106\""), "{text}");
        for ours in [
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 12\r\n\r\n",
            "{\"detail\":\"HTTP/1.1 404\"}",
            "HTTP/1.1 4",
            "",
        ] {
            assert_eq!(replacement(ours.as_bytes()), None, "{ours}");
        }
    }
}
