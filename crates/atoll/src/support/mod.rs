//! `atoll support bundle`: one file with what is needed on the day something is wrong.
//!
//! Invariants: nothing is changed but that file, which is new and nobody else's to read (0600);
//! whatever is in it went through [`scrub`](scrub::scrub), and command lines and environments of
//! processes are never collected; it is bounded, in all and piece by piece; a piece that could not
//! be had, or only a part of it, is named in `manifest.json` with the reason.

mod config;
mod scrub;
mod tar;

use crate::cli::context::Context;
use crate::cli::out::Run;
use crate::machine::disks::Known;
use crate::machine::program::output;
use crate::machine::{facts, findings};
use atoll_api::client::Call;
use atoll_api::envelope::Named;
use atoll_api::routes::{Op, Page, Reply};
use atoll_api::{Client, Code, Item, List, Problem};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Bytes of one piece.
const PIECE_MAX: usize = 8 << 20;
/// Bytes of all pieces together, before they are packed.
const BUNDLE_MAX: usize = 64 << 20;
/// How long the daemon may take for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
/// Pages of one list: of events, all that a host keeps.
const PAGES_MAX: usize = 32;
/// Hosts and volumes that are asked for one by one.
const EACH_MAX: usize = 64;
/// Lines of the logs of our units, and of the kernel.
const LINES: &str = "20000";
/// The units of the package.
const UNITS: [&str; 3] = ["atoll.service", "atoll-directory.service", "atoll-etcd.service"];
/// What is told of them: not how they were started, and not in which environment.
const UNIT_FACTS: &str = "Id,LoadState,ActiveState,SubState,Result,StatusText,MainPID,NRestarts,\
    ExecMainStatus,ExecMainCode,ActiveEnterTimestamp,StateChangeTimestamp,WatchdogTimestamp,\
    MemoryCurrent,TasksCurrent,FragmentPath,DropInPaths,UnitFileState";

/// One file of the bundle.
#[derive(Clone, Debug, Serialize)]
struct Piece {
    /// Its name in the bundle.
    name: String,
    /// Bytes of it that are there.
    bytes: usize,
    /// Why it, or a part of it, is not there; absent: all of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// What was made.
#[derive(Debug, Serialize)]
struct Made {
    /// Where it is.
    path: String,
    bytes: u64,
    pieces: Vec<Piece>,
}

impl Named for Made {
    const KIND: &'static str = "SupportBundle";
}

/// Which end of a piece is kept that is too long.
#[derive(Clone, Copy)]
enum Keep {
    First,
    Last,
}

/// The pieces so far.
#[derive(Default)]
struct Bundle {
    pieces: Vec<(Piece, Vec<u8>)>,
    bytes: usize,
}

impl Bundle {
    /// Takes a piece, without its secrets and as far as there is room.
    fn add(&mut self, name: &str, content: Known<impl AsRef<[u8]>>, keep: Keep) {
        let (mut text, mut missing) = match content {
            Ok(content) => (scrub::scrub(&String::from_utf8_lossy(content.as_ref())), None),
            Err(why) => (String::new(), Some(scrub::scrub(&why))),
        };
        let room = PIECE_MAX.min(BUNDLE_MAX - self.bytes);
        if text.len() > room {
            missing = Some(format!("only {room} of {} bytes: there is no more room", text.len()));
            text = match keep {
                Keep::First => text[..boundary(&text, (0..=room).rev())].to_owned(),
                Keep::Last => text[boundary(&text, text.len() - room..=text.len())..].to_owned(),
            };
        }
        self.bytes += text.len();
        let piece = Piece { name: name.to_owned(), bytes: text.len(), missing };
        self.pieces.push((piece, text.into_bytes()));
    }

    /// Says of the last piece what it lacks besides.
    fn lacks(&mut self, why: Option<String>) {
        if let (Some((piece, _)), Some(why)) = (self.pieces.last_mut(), why) {
            piece.missing.get_or_insert(why);
        }
    }

    /// What a program prints.
    async fn program(&mut self, name: &str, words: &[&str], keep: Keep) {
        // More than fits, to keep its end.
        let printed = output(words, 2 * PIECE_MAX as u64).await;
        let cut = matches!(printed, Ok((_, true)));
        self.add(name, printed.map(|(bytes, _)| bytes), keep);
        self.lacks(cut.then(|| format!("{} prints more than is read", words[0])));
    }
}

/// The first of these places that is not within a character.
fn boundary(text: &str, mut places: impl Iterator<Item = usize>) -> usize {
    places.find(|&at| text.is_char_boundary(at)).expect("both ends are such places")
}

/// Makes the file and says what it lacks.
///
/// # Errors
/// [`Code::Exists`]: there is such a file; [`Code::LocalFile`]; [`Code::MissingProgram`]: gzip.
pub async fn bundle(context: &Context, to: Option<PathBuf>, config_file: &Path) -> Run {
    let now_ms = atoll_real::unix_ms();
    let at: String =
        atoll_api::envelope::rfc3339(now_ms).split('.').next().unwrap_or_default().into();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let folder = format!("atoll-support-{host}-{}", at.replace([':', '-'], ""));
    let path = to.unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.gz")));
    if path.exists() {
        return Err(exists(&path).into());
    }
    let pieces = collect(context, config_file).await;
    let told: Vec<Piece> = pieces.iter().map(|(piece, _)| piece.clone()).collect();
    let manifest = json!({
        "made_at": format!("{at}Z"),
        "version": env!("CARGO_PKG_VERSION"),
        "as_root": rustix::process::geteuid().is_root(),
        "pieces": told,
    });
    let mut archive = tar::Archive::new(&folder, now_ms / 1_000);
    archive.add("manifest.json", pretty(&manifest).as_bytes());
    for (piece, content) in pieces.iter().filter(|(piece, _)| piece.bytes > 0) {
        archive.add(&piece.name, content);
    }
    let bytes = pack(&path, archive.end()).await?;
    for piece in told.iter().filter(|piece| piece.missing.is_some()) {
        let why = piece.missing.as_deref().unwrap_or_default();
        context.out.note(&format!("without {}: {why}", piece.name));
    }
    let made = Made { path: path.display().to_string(), bytes, pieces: told };
    let name = |made: &Made| made.path.clone();
    context.out.item(&Item::new(made, now_ms), name, |made| made.path.clone() + "\n")
}

fn exists(path: &Path) -> Problem {
    Problem::new(Code::Exists, format!("{} exists already", path.display()))
        .hint("--to names another file")
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("it has string keys") + "\n"
}

/// Writes the archive through gzip into a new file; its size.
async fn pack(path: &Path, archive: Vec<u8>) -> Result<u64, Problem> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Problem::new(Code::LocalFile, format!("{}: {e}", path.display())),
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(failed)?;
    let half = Unfinished(Some(path));
    let packed = async {
        let mut gzip = tokio::process::Command::new("gzip");
        gzip.arg("-c").stdin(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut gzip = gzip.stdout(file.try_clone()?).spawn()?;
        let mut input = gzip.stdin.take().expect("piped above");
        tokio::io::AsyncWriteExt::write_all(&mut input, &archive).await?;
        drop(input);
        let status = gzip.wait().await?;
        if !status.success() {
            return Err(io::Error::other(format!("gzip failed ({status})")));
        }
        file.sync_all()?;
        file.metadata().map(|meta| meta.len())
    };
    let bytes = packed.await.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Problem::new(Code::MissingProgram, "gzip is not installed"),
        _ => failed(e),
    })?;
    half.done();
    Ok(bytes)
}

/// A file that is removed unless it is done, also at Ctrl-C.
struct Unfinished<'a>(Option<&'a Path>);

impl Unfinished<'_> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn collect(context: &Context, config_file: &Path) -> Vec<(Piece, Vec<u8>)> {
    use Keep::First;
    let mut bundle = Bundle::default();
    let versions = format!(
        "atoll {}\nkernel {}\n",
        env!("CARGO_PKG_VERSION"),
        rustix::system::uname().release().to_string_lossy()
    );
    bundle.add("versions.txt", Ok(versions), First);
    for (name, words) in [
        ("system/package.txt", &["dpkg-query", "-W", "atoll", "qemu-utils", "libvirt-daemon"][..]),
        ("system/units.txt", &["systemctl", "show", UNITS[0], UNITS[1], "-p", UNIT_FACTS]),
        ("system/disks.json", crate::machine::disks::LSBLK),
        ("system/addresses.json", &["ip", "-j", "-s", "address", "show"]),
        ("system/routes.json", &["ip", "-j", "route", "show", "table", "all"]),
        ("system/sockets.txt", &["ss", "-tulnH"]),
        ("system/space.txt", &["df", "-hT"]),
        ("system/firewall.json", &["nft", "-j", "list", "ruleset"]),
    ] {
        bundle.program(name, words, First).await;
    }
    for file in ["/etc/os-release", "/proc/meminfo", "/proc/cpuinfo", "/proc/diskstats"] {
        let name = format!("system/{}", file.rsplit('/').next().unwrap_or_default());
        bundle.add(&name, std::fs::read(file).map_err(|e| e.to_string()), First);
    }
    for (name, text) in config::files(config_file) {
        bundle.add(&name, text, First);
    }
    // Without the environment, which may hold anything: what it sets is in the daemon's own facts.
    let facts = facts::gather(config_file, Vec::new()).await;
    let found = List::new(findings::all(&facts), None, atoll_real::unix_ms());
    bundle.add("host-check.json", Ok(pretty(&found)), First);
    interface(&mut bundle, context).await;
    // Last, so that what is short has room in any case.
    let units = ["-u", UNITS[0], "-u", UNITS[1]];
    bundle.log("logs/atoll.log", &units).await;
    bundle.log("logs/kernel.log", &["-k"]).await;
    bundle.pieces
}

impl Bundle {
    /// The last lines of the journal.
    async fn log(&mut self, name: &str, which: &[&str]) {
        let mut words =
            vec!["journalctl", "-q", "--no-pager", "-o", "short-iso-precise", "-n", LINES];
        words.extend(which);
        self.program(name, &words, Keep::Last).await;
        let (piece, _) = self.pieces.last_mut().expect("just added");
        if piece.bytes == 0 && piece.missing.is_none() {
            let why = "the journal shows nothing of it; as root it shows everything that there is";
            piece.missing = Some(why.into());
        }
    }
}

/// What the daemon tells: everything that can be read and needs no name, from the table of
/// operations; the disks of each host and the placement of each volume; the metrics.
async fn interface(bundle: &mut Bundle, context: &Context) {
    let timeout = ANSWER_WAIT.min(Duration::from_secs(context.globals.timeout));
    let client = Client::new(context.client.endpoint().clone(), timeout);
    let metrics = client.bytes(Call::page(Page::Metrics)).await;
    if let Err(problem) = &metrics
        && problem.code == Code::CannotConnect
    {
        // Each of its answers would have the same reason.
        bundle.add("api", Err::<&str, _>(problem.detail.clone()), Keep::First);
        return;
    }
    bundle.add("metrics.txt", metrics.map_err(|problem| problem.detail), Keep::First);
    let (mut hosts, mut volumes) = (Vec::new(), Vec::new());
    for op in Op::ALL {
        let route = op.route();
        if route.is_change() || route.path_parameters().next().is_some() {
            continue;
        }
        let name = format!("api/{}.json", route.path.trim_start_matches('/'));
        let (answer, lacks) = answer(&client, *op).await;
        let names = |answer: &Known<Value>| match answer {
            Ok(answer) => names(answer),
            Err(_) => Vec::new(),
        };
        match op {
            Op::HostList => hosts = names(&answer),
            Op::VolumeList => volumes = names(&answer),
            _ => {}
        }
        // Of events the newest are the ones to have.
        bundle.add(&name, answer.map(|answer| pretty(&answer)), Keep::Last);
        bundle.lacks(lacks);
    }
    for (op, what, of) in
        [(Op::DiskList, "disks", hosts), (Op::VolumePlacement, "placement", volumes)]
    {
        for name in of.iter().take(EACH_MAX) {
            let answer = client.bytes(Call::to(op, &[name])).await;
            let answer = answer.map_err(|problem| problem.detail);
            bundle.add(&format!("api/{what}-{name}.json"), answer, Keep::First);
        }
        if of.len() > EACH_MAX {
            let why = format!("only {EACH_MAX} of {} are asked", of.len());
            bundle.add(&format!("api/{what}"), Err::<&str, _>(why), Keep::First);
        }
    }
}

/// The whole answer to an operation that needs no name, and what it lacks.
async fn answer(client: &Client, op: Op) -> (Known<Value>, Option<String>) {
    let is_list = matches!(op.route().reply, Reply::List(_));
    let mut whole: Option<Value> = None;
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut call = Call::to(op, &[]);
        if is_list {
            call = call.query("limit", "1000");
        }
        // Each host's events are in the bundle of that host.
        if op == Op::EventList {
            call = call.query("scope", "local");
        }
        if let Some(cursor) = &cursor {
            call = call.query("cursor", cursor);
        }
        let bytes = client.bytes(call).await;
        let page = bytes.map_err(|problem| problem.detail).and_then(|bytes| {
            serde_json::from_slice::<Value>(&bytes).map_err(|e| format!("an odd answer: {e}"))
        });
        let mut page = match (page, &whole) {
            (Ok(page), _) => page,
            (Err(why), None) => return (Err(why), None),
            (Err(why), Some(_)) => return (Ok(whole.expect("just seen")), Some(why)),
        };
        let next = page["next_cursor"].as_str().map(str::to_owned);
        match &mut whole {
            None => whole = Some(page),
            Some(whole) => {
                if let (Some(all), Some(more)) =
                    (whole["items"].as_array_mut(), page["items"].as_array_mut())
                {
                    all.append(more);
                }
            }
        }
        if next.is_none() || next == cursor {
            return (Ok(whole.expect("a page was read")), None);
        }
        cursor = next;
    }
    let lacks = format!("only {PAGES_MAX} pages of it are read");
    (Ok(whole.expect("a page was read")), Some(lacks))
}

/// Names of the things in a list, which are parts of file names here.
fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    let names = items.filter_map(|item| item["name"].as_str());
    names.filter(|name| atoll_api::name::check("name", name).is_ok()).map(str::to_owned).collect()
}
