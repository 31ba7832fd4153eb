//! The command line: reads what was typed, asks a daemon over REST, prints.
//!
//! Invariants: every error is one line `error[E....]: ...` and at most one line `hint: ...` on
//! stderr, with the exit code of its kind; nothing panics, whatever the streams do; Ctrl-C ends
//! every command with 130, and what was half done is undone or named.

mod access;
pub mod args;
mod audit;
pub mod certificate;
mod commands;
pub mod context;
pub mod etcd;
mod image;
mod joining;
pub mod out;
mod profile;
mod show;

use args::{Cli, Command};
use atoll_api::{Client, Code, Problem};
use clap::Parser;
use clap::error::ErrorKind;
use context::{Context, Interrupt, interrupted};
use out::{Failure, Out, Run};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Runs the program; what it returns is the process's exit code.
pub fn main() -> ExitCode {
    let code = run(std::env::args_os());
    crate::log::flush();
    ExitCode::from(code)
}

/// Runs one command line.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Some(problem) = meaningless(&cli) {
        return fail(problem.into());
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(Problem::new(Code::Failed, format!("no runtime: {e}")).into()),
    };
    let done = runtime.block_on(async {
        let interrupt = Interrupt::listen()
            .map_err(|e| Problem::new(Code::Failed, format!("no signals: {e}")))?;
        let out = Out {
            format: cli.globals.output,
            header: !cli.globals.no_header,
            color: Out::wants_color(cli.globals.color),
            quiet: cli.globals.quiet,
            verbose: cli.globals.verbose,
        };
        let timeout = Duration::from_secs(cli.globals.timeout);
        let client = Client::new(cli.globals.endpoint.clone(), timeout);
        // Whoever joins asks the hosts that its token names, and shows them that.
        let client = match cli.command {
            Command::Cluster(args::Cluster::Join(_)) => client,
            _ => access::with_access(client, &cli.globals, access::of_environment())?,
        };
        let context = Context { client, out, globals: cli.globals, interrupt };
        dispatch(&context, cli.command).await
    });
    // A prompt may still wait for a line in its own thread: nobody waits for it.
    runtime.shutdown_background();
    match done {
        Ok(()) => 0,
        Err(failure) => fail(failure),
    }
}

/// An option that the command would not heed, though it promises that nothing is changed.
fn meaningless(cli: &Cli) -> Option<Problem> {
    // None of these can show its requests instead of sending them; some can rehearse.
    let (command, dry_run) = match &cli.command {
        Command::Serve(_) => ("serve", false),
        Command::Directory(_) => ("directory", false),
        Command::Etcd(_) => ("etcd run", false),
        Command::Sim(_) => ("sim", false),
        Command::Dev(_) => ("dev", false),
        Command::Host(args::Host::Prepare(_)) => ("host prepare", false),
        Command::Support(_) => ("support bundle", false),
        Command::Audit(args::Audit::Verify(_)) => ("audit verify", false),
        Command::Cluster(args::Cluster::Authority(_)) => ("cluster authority create", false),
        Command::Cluster(args::Cluster::Certificate(_)) => ("cluster certificate", false),
        Command::Cluster(args::Cluster::Init(_)) => ("cluster init", true),
        // Its request has a key that was made for it.
        Command::Cluster(args::Cluster::Join(_)) => ("cluster join", true),
        Command::Completion(_) => ("completion", false),
        Command::Man(_) => ("man", false),
        // They are many requests, and the data goes another way.
        Command::Volume(args::Volume::Import { .. }) => ("volume import", true),
        Command::Volume(args::Volume::Export { .. }) => ("volume export", true),
        _ => return None,
    };
    let option = match (cli.globals.curl, cli.globals.dry_run && !dry_run) {
        (true, _) => "--curl",
        (false, true) => "--dry-run",
        (false, false) => return None,
    };
    let detail = format!("the argument '{option}' cannot be used with 'atoll {command}'");
    let hint = match dry_run {
        true => "--dry-run checks and changes nothing".to_owned(),
        false => format!("usage: atoll {command} [OPTIONS] (--help tells more)"),
    };
    Some(Problem::new(Code::Usage, detail).hint(hint))
}

async fn dispatch(context: &Context, command: Command) -> Run {
    match command {
        // These end by themselves at Ctrl-C, and clean up.
        Command::Volume(args::Volume::Import { name, file, format, policy, existing, verify }) => {
            let import = image::Import { name, file, format, policy, existing, verify };
            image::import(context, import).await
        }
        Command::Volume(args::Volume::Export { name, file, format, force, verify }) => {
            image::export(context, image::Export { name, file, format, force, verify }).await
        }
        Command::Serve(serve) => crate::serve::serve(context, serve).await,
        Command::Etcd(command) => etcd::run(context, command).await,
        Command::Directory(directory) => crate::serve::directory(context, directory).await,
        Command::Sim(sim) => crate::sim::run(context, sim).await,
        Command::Dev(args::Dev { command, start }) => {
            crate::dev::run(context, command, start).await
        }
        // For everything else, an interrupted request is an unanswered one.
        command => tokio::select! {
            biased;
            () = context.interrupt.wait() => Err(interrupted(None)),
            done = commands::run(context, command) => done,
        },
    }
}

/// Says why, and gives the exit code.
fn fail(failure: Failure) -> u8 {
    match failure {
        Failure::Exit(code) => code,
        Failure::Problem(problem) => {
            for line in problem.to_string().lines() {
                crate::log::say(line);
            }
            problem.code.exit()
        }
    }
}

/// What clap says, in the form of all our errors; help and version go to stdout as they are.
fn usage(error: &clap::Error) -> u8 {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            Code::Usage.exit()
        }
        _ => {
            let mut said = String::new();
            for line in text.lines().take_while(|line| !line.trim_start().starts_with("Usage:")) {
                said.push_str(line.trim());
                said.push(' ');
            }
            let said = said.trim().trim_start_matches("error:").trim();
            let said = said.split("For more information").next().unwrap_or(said).trim();
            let said: String = said.chars().take(500).collect();
            let mut problem = Problem::new(Code::Usage, said);
            if let Some(usage) = text.lines().find_map(|l| l.trim_start().strip_prefix("Usage: ")) {
                problem = problem.hint(format!("usage: {usage} (--help tells more)"));
            }
            fail(problem.into())
        }
    }
}
