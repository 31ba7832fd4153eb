//! How far a copy is, from what qemu-img says about it.

use crate::cli::out::{Format, Out, Run};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How far a copy is: a bar on a terminal, a line per tenth elsewhere, JSON lines for machines.
pub struct Progress<'a> {
    out: &'a Out,
    title: String,
    bytes: u64,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    /// Of a copy of so many bytes.
    pub fn new(out: &'a Out, title: &str, bytes: u64) -> Self {
        let people = matches!(out.format, Format::Table | Format::Wide);
        let bar = (people && !out.quiet && io::stderr().is_terminal()).then(|| {
            let style = "{msg} {wide_bar} {percent:>3} %  {bytes}/{total_bytes}  \
                         {decimal_bytes_per_sec}  {eta}";
            let bar = ProgressBar::new(bytes).with_message(title.to_owned());
            bar.set_style(ProgressStyle::with_template(style).expect("a tested template"));
            bar
        });
        Self { out, title: title.to_owned(), bytes, bar }
    }

    /// Reads qemu-img's progress to its end.
    pub async fn follow(&self, stream: Option<impl AsyncRead + Unpin>) -> Run {
        let Some(mut stream) = stream else { return Ok(()) };
        let mut shown = None;
        let mut text = Vec::new();
        let mut chunk = [0; 1024];
        let mut outcome = Ok(());
        loop {
            let n = match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return outcome,
                Ok(n) => n,
            };
            text.extend_from_slice(&chunk[..n]);
            let Some(hundredths) = last_progress(&text) else { continue };
            let keep = text.len().saturating_sub(64);
            text.drain(..keep);
            if let Some(bar) = &self.bar {
                bar.set_position(self.bytes / 10_000 * hundredths);
                continue;
            }
            // Tenths for people, whole percents for machines.
            let json = self.out.format == Format::Json;
            let step = if json { hundredths / 100 } else { hundredths / 1_000 };
            if shown.is_some_and(|shown| shown >= step) || outcome.is_err() {
                continue;
            }
            shown = Some(step);
            if json {
                outcome = self.line(step);
            } else if step > 0 {
                self.out.note(&format!("{} {} %", self.title, step * 10));
            }
        }
    }

    fn line(&self, percent: u64) -> Run {
        let line = serde_json::json!({
            "kind": "Progress", "version": 1, "task": self.title, "percent": percent,
            "bytes_done": self.bytes / 100 * percent, "bytes_total": self.bytes,
        });
        self.out.data(&format!("{line}\n"))
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The last `(12.34/100%)` of a text, in hundredths of a percent.
fn last_progress(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let end = text.rfind("/100%)")?;
    let begin = text[..end].rfind('(')? + 1;
    let (whole, part) = text[begin..end].split_once('.')?;
    let value = whole.parse::<u64>().ok()? * 100 + part.get(..2)?.parse::<u64>().ok()?;
    Some(value.min(10_000))
}

#[cfg(test)]
mod tests {
    use super::last_progress;

    #[test]
    fn the_last_whole_progress_counts() {
        assert_eq!(last_progress(b"    (0.00/100%)\r    (12.34/100%)\r    (99.9"), Some(1234));
        assert_eq!(last_progress(b"    (100.00/100%)\r"), Some(10_000));
        assert_eq!(last_progress(b"    (1"), None);
        assert_eq!(last_progress(b""), None);
    }
}
