//! What every command is given: the daemon, how to print, and the interrupt.

use super::args::Globals;
use super::out::{Failure, Out, Run};
use atoll_api::client::Call;
use atoll_api::envelope::Named;
use atoll_api::{Client, Code, Item, List, Problem};
use serde::de::DeserializeOwned;
use std::future::Future;
use std::io::{IsTerminal, Write};
use tokio::sync::watch;

/// What a command needs besides its own words.
#[derive(Clone, Debug)]
pub struct Context {
    /// The daemon.
    pub client: Client,
    /// How to print.
    pub out: Out,
    /// Options of every command.
    pub globals: Globals,
    /// Ctrl-C or SIGTERM.
    pub interrupt: Interrupt,
}

/// Becomes true at Ctrl-C and at SIGTERM.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Listens for both from now on. Inside a tokio runtime.
    pub fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (sender, receiver) = watch::channel(false);
        // Ends with the process: signals may come at any time.
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            let _ = sender.send(true);
            // The channel stays open, so that waiting for it never fails.
            std::future::pending::<()>().await;
        });
        Ok(Self(receiver))
    }

    /// Returns once it has happened.
    pub async fn wait(&self) {
        let _ = self.0.clone().wait_for(|interrupted| *interrupted).await;
    }

    /// The receiving end, for whoever stops by it.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }
}

impl Context {
    /// With `--curl`, shows the request instead of sending it; with `-v`, both.
    pub fn show(&self, call: &Call) -> Run {
        let line = call.to_curl(&self.client);
        if self.globals.curl {
            self.out.data(&(line + "\n"))?;
            return Err(Failure::Exit(0));
        }
        if self.out.verbose {
            self.out.note(&line);
        }
        Ok(())
    }

    /// One thing.
    pub async fn item<T: DeserializeOwned + Named>(&self, call: Call) -> Result<Item<T>, Failure> {
        self.show(&call)?;
        Ok(self.client.item(call).await?)
    }

    /// A whole list.
    pub async fn list<T: DeserializeOwned + Named>(&self, call: Call) -> Result<List<T>, Failure> {
        self.show(&call)?;
        Ok(self.client.list(call).await?)
    }

    /// A change without an answer.
    pub async fn done(&self, call: Call) -> Run {
        self.show(&call)?;
        self.client.bytes(call).await?;
        Ok(())
    }

    /// Asks before data is lost; `--yes`, `--dry-run` and `--curl` are answers.
    ///
    /// # Errors
    /// [`Code::WouldRiskData`] without a yes.
    pub async fn confirm(&self, question: &str) -> Run {
        if self.globals.yes || self.globals.dry_run || self.globals.curl {
            return Ok(());
        }
        let refused = |detail: String| {
            Failure::from(Problem::new(Code::WouldRiskData, detail).hint("--yes goes on"))
        };
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(refused(question.trim_end_matches('?').to_owned()));
        }
        let _ = write!(std::io::stderr(), "{question} [y/N] ");
        let _ = std::io::stderr().flush();
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        match line.await {
            Ok(Ok(line)) if matches!(line.trim(), "y" | "Y" | "yes") => Ok(()),
            _ => Err(refused("not confirmed".into())),
        }
    }
}

/// `future`, unless Ctrl-C comes first.
pub async fn or_interrupt<T>(interrupt: &Interrupt, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = interrupt.wait() => None,
        done = future => Some(done),
    }
}

/// The end of an interrupted command.
pub fn interrupted(hint: Option<&str>) -> Failure {
    let problem = Problem::new(Code::Interrupted, "interrupted");
    match hint {
        Some(hint) => problem.hint(hint).into(),
        None => problem.into(),
    }
}
