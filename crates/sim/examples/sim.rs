//! `sim --seeds A..B [--time SECONDS] [--faults LIST] [--ops N] [--twice] [--beyond]
//! [--no-features] [--reference-store] [--fail-fast] [--choose]`, or
//! `sim --seed S [--trace]`.
//!
//! For work on the simulator: it is built without the program, in a fraction of the time. Everybody
//! else has `atoll sim run`.

#![allow(clippy::disallowed_methods, reason = "a program, not the simulator")]

use atoll_sim::fault::FaultSet;
use atoll_sim::feature::Features;
use atoll_sim::reach::Reach;
use atoll_sim::run::{Options, run_one, run_seeds};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// As in `atoll`; the C library's gives large buffers back to the kernel again and again.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut options = Options::default();
    let (mut seeds, mut one, mut time, mut fail_fast) = (0..100, None, None, false);
    let mut choose = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| fail(&format!("{arg} needs a value")));
        match arg.as_str() {
            "--seeds" => {
                let text = value();
                let (a, b) = text.split_once("..").unwrap_or_else(|| fail("--seeds A..B"));
                seeds = number(a)..number(b);
            }
            "--seed" => one = Some(number(&value())),
            "--time" => time = Some(Duration::from_secs(number(&value()))),
            "--ops" => options.ops = number(&value()),
            "--polls" => options.polls_max = number(&value()),
            "--hosts" => options.hosts = Some(number(&value()) as u16),
            "--faults" => options.faults = FaultSet::parse(&value()).unwrap_or_else(|e| fail(&e)),
            "--trace" => options.trace = true,
            "--twice" => options.twice = true,
            "--fail-fast" => fail_fast = true,
            "--choose" => choose = true,
            "--beyond" => options.beyond = true,
            "--no-features" => options.features = Features::NONE,
            "--reference-store" => options.reference_store = true,
            other => fail(&format!("unknown argument {other}")),
        }
    }
    let began = Instant::now();
    if let Some(seed) = one {
        let outcome = run_one(seed, &options);
        for line in &outcome.lines {
            println!("{line}");
        }
        for violation in &outcome.violations {
            println!("VIOLATION: {violation}");
        }
        println!(
            "seed {seed}: hash {:016x}, {:?} virtual, {} of {} operations answered, {} polls, {:?}",
            outcome.hash,
            outcome.virtual_time,
            outcome.ops.1,
            outcome.ops.0,
            outcome.polls,
            began.elapsed()
        );
        std::process::exit(i32::from(!outcome.violations.is_empty()));
    }
    let reach = RefCell::new(Reach::default());
    let of_options = options.clone();
    let in_order = std::iter::from_fn(|| match choose {
        true => reach.borrow_mut().next(&mut seeds, &of_options),
        false => seeds.next(),
    });
    let report = run_seeds(in_order, &options, &mut |outcome| {
        reach.borrow_mut().learn(outcome, &options);
        if let Some(first) = outcome.violations.first() {
            println!("seed {}: {first}", outcome.seed);
            if fail_fast {
                return false;
            }
        }
        time.is_none_or(|t| began.elapsed() < t)
    });
    let seconds = began.elapsed().as_secs_f64();
    print!("{}", report.table());
    println!("{:.0} polls/s, {}", report.polls as f64 / seconds, report.pace(seconds));
    for most in [0, 1, 3] {
        let (rare, all) = reach.borrow().rare(most);
        println!("{rare} of {all} cells and marks were reached by at most {most} seeds");
    }
    println!("{report}");
    std::process::exit(i32::from(!report.failed.is_empty()));
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| fail(&format!("'{text}' is not a number")))
}

fn fail(why: &str) -> ! {
    eprintln!("sim: {why}");
    std::process::exit(2)
}
