//! `atoll audit verify`: files of this host, no request.

use super::args::AuditVerify;
use super::context::Context;
use super::out::{Failure, Run};
use crate::audit::{self, Verified};
use crate::config::{self, Config};
use atoll_api::envelope::Named;
use atoll_api::{Code, Item};

impl Named for Verified {
    const KIND: &'static str = "AuditVerified";
}

/// Says whether the audit log of this host is as it was written; exit code 1: it is not.
///
/// # Errors
/// It cannot be read.
pub fn verify(context: &Context, verify: &AuditVerify) -> Run {
    let data = match &verify.data_dir {
        Some(data) => data.clone(),
        None => Config::load(&verify.config, config::environment()?)?.data_dir,
    };
    let found = audit::verify(&data, verify.head.as_ref())?;
    let is_good = found.problems.is_empty();
    let item = Item::new(found, atoll_real::unix_ms());
    context.out.item(&item, |found| found.directory.clone(), text)?;
    if is_good { Ok(()) } else { Err(Failure::Exit(Code::Failed.exit())) }
}

fn text(found: &Verified) -> String {
    let Verified { directory, entries, first, last, sha256, left_out, problems, more_problems } =
        found;
    let mut text = match entries {
        0 => format!("{directory}: no entries\n"),
        _ => format!("{directory}: {entries} entries, {first} to {last}\n"),
    };
    if *first > 1 {
        text += &format!("entries before {first} are no longer kept\n");
    }
    if *left_out > 0 {
        text +=
            &format!("{left_out} entries were not kept: the host had no room, or was flooded\n");
    }
    for problem in problems {
        text += &format!("- {problem}\n");
    }
    if *more_problems > 0 {
        text += &format!("- and {more_problems} more\n");
    }
    match problems.is_empty() {
        true if *entries > 0 => {
            text += &format!("as it was written; to note elsewhere: --head {last}:{sha256}\n");
        }
        true => {}
        false => text += "not as it was written\n",
    }
    text
}
