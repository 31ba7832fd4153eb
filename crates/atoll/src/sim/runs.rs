//! Runs of seeds as every command of `atoll sim` makes them: their options, and what a panic says.

use crate::cli::args::{SimMake, SimPart};
use crate::cli::out::{Failure, Run};
use atoll_api::{Code, Problem};
use atoll_sim::fault::{FaultSet, FaultSubset};
use atoll_sim::feature::Features;
use atoll_sim::run::{Options, Outcome, run_one, under_way};
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// Has the last word of a run that a panic ends.
type LastWord = Box<dyn FnOnce(&mut Outcome)>;

thread_local! {
    /// The seed that this thread runs.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    /// What is done with it if it panics.
    static LAST_WORD: RefCell<Option<LastWord>> = const { RefCell::new(None) };
}

/// What was asked of every run.
pub(super) fn options(asked: &SimMake, part: &SimPart) -> Result<Options, Failure> {
    let faults = |option: &str, list: &str| {
        FaultSet::parse(list).map_err(|why| Problem::new(Code::Usage, format!("{option}: {why}")))
    };
    let defaults = Options::default();
    let mut without = FaultSet::NONE;
    if let Some(list) = &part.without {
        without = faults("--without", list)?;
    }
    if let Some(list) = &part.only {
        let only = faults("--only", list)?;
        without = FaultSet::ALL.kinds().filter(|k| !only.has(*k)).fold(without, FaultSet::with);
    }
    let part = FaultSubset {
        without,
        windows: part.window.clone(),
        events: part.events.clone().map(|list| list.0),
        until: part.until.unwrap_or(Nanos::NEVER),
        clients: part.clients.clone().map(|l| l.0.iter().map(|n| *n as usize).collect()),
    };
    Ok(Options {
        faults: asked.faults.as_deref().map_or(Ok(FaultSet::ALL), |l| faults("--faults", l))?,
        hosts: asked.hosts,
        ops: asked.ops.unwrap_or(defaults.ops),
        reference_store: asked.reference_store,
        beyond: asked.beyond,
        features: if asked.no_features { Features::NONE } else { Features::ALL },
        part,
        ..defaults
    })
}

/// A panic that ends the program (as in a release build) still says which seed it was.
pub(super) fn name_seeds_of_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(seed) = SEED.get() {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "seed {seed} panicked; replay: atoll sim run --seed {seed} --trace"
            );
        }
        before(panic);
        if let Some(last_word) = LAST_WORD.take()
            && let Some(mut outcome) = under_way()
        {
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("a panic without text");
            outcome.violations.push(format!("panic: {text}"));
            last_word(&mut outcome);
        }
    }));
}

/// Runs a seed on this thread.
pub(super) fn one(seed: u64, options: &Options) -> Outcome {
    SEED.set(Some(seed));
    let outcome = run_one(seed, options);
    SEED.set(None);
    outcome
}

/// Runs a seed on this thread; if it ends the program, `last_word` is given what came of it first.
pub(super) fn one_or(
    seed: u64,
    options: &Options,
    last_word: impl FnOnce(&mut Outcome) + 'static,
) -> Outcome {
    LAST_WORD.set(Some(Box::new(last_word)));
    let outcome = one(seed, options);
    LAST_WORD.take();
    outcome
}

/// The end of a command whose seeds found that many violations.
pub(super) fn verdict(failures: usize, seeds: u64, hint: &str) -> Run {
    if failures == 0 {
        return Ok(());
    }
    let detail = format!("{failures} violations in {seeds} seeds");
    Err(Problem::new(Code::Failed, detail).hint(hint).into())
}

#[allow(clippy::disallowed_methods, reason = "measures the simulator, is not part of it")]
pub(super) fn now() -> Instant {
    Instant::now()
}
