//! `atoll sim`: seeds of the simulator on all cores, the replay of one, the least of one that
//! fails, a picture of one, long runs that remember what was worth it, and clusters without faults
//! that are measured.
//!
//! Invariants: a seed gives the same result on whatever thread it runs; a panic names its seed,
//! also where it ends the program.

mod many;
mod one;
mod runs;
mod scale;
mod soak;
mod worker;

use crate::cli::args::SimCommand;
use crate::cli::context::Context;
use crate::cli::out::Run;

/// Runs `atoll sim`.
///
/// # Errors
/// [`Code::Failed`]: a seed found a violation.
pub async fn run(context: &Context, command: SimCommand) -> Run {
    runs::name_seeds_of_panics();
    match command {
        SimCommand::Run(asked) => match asked.seed {
            Some(seed) => one::replay(context, seed, asked).await,
            None => many::run(context, asked).await,
        },
        SimCommand::Shrink(asked) => one::shrink(context, asked).await,
        SimCommand::Timeline(asked) => one::timeline(context, asked).await,
        SimCommand::Soak(asked) => soak::run(context, asked).await,
        SimCommand::Scale(asked) => scale::run(context, asked).await,
        SimCommand::Worker => worker::run(),
    }
}
