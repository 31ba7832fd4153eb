//! Scenarios: a text file of commands, a line `----`, and what the cluster is expected to do.
//!
//! - `cluster hosts=3 seed=7`: first; the hardware. Also `disks=3` (the first is the log device,
//!   otherwise one carries all), `disk=1GiB`, `log=16MiB`, `repair=60s` (before a lost copy is
//!   made elsewhere), `victim=h1` (its disks may hold damage in the end, or be replaced),
//!   `idle=50ms` (blocks move home that soon), `checkpoint=4KiB` (one is taken once the journal
//!   holds more)
//! - `volume v0 size=4MiB on=h0,h1`: its copies; all volumes come before anything else
//! - `write v0 via=h0 at=0 len=4KiB`: waits for the answer; also `read`, `discard`, `zero`
//! - ... `within=2s`, `shows=1,2,1`, `fails=full`: what the answer must be; an error that is not
//!   announced is wrong
//! - ... `times=100 step=1MiB`, `leaves=1s`: again and again, further on each time; given up
//!   after so long, as when the client's connection breaks
//! - `begin write v0 ...`: does not wait; the answer is told when it comes
//! - `fill v0 via=h0 fails=full`: 4 KiB into every MiB, until that error
//! - `load v0 via=h2`: a client at work there until the end, or until its host dies
//! - `kill h1`, `power h1`, `start h1`, `pause h1`, `resume h1`: the host, or `all`
//! - `stop h1`: in order, as an administrator does it; it has ended when this is over
//! - `trap h1 polls=200`, `trap h1 polls=200 power=yes`: it dies after so many steps
//! - `isolate h1`, `rejoin h1`, `cut h0 h1`, `join h0 h1`: the network; `cut h0 directory`,
//!   `join h0 directory`: the host's way to the directory
//! - `cut1 h0 h1`, `join1 h0 h1`: one direction of it, or with `lane=data` (`control`, `bulk`) one
//!   kind of connection of that direction
//! - `link h0 h1 x=100`: that many times as slow in both directions; `x=1` ends it
//! - `clock h1 fast=20000`, `slow=...`, `ahead=3600s`, `behind=...`: its rate, in parts per
//!   million, and its wall clock
//! - `starve h1 x=100`: its cores are that many times as slow; `x=1` ends it
//! - `break h0 h1`: every connection between them ends at once, with what was on the way
//! - `damage h0 h1`: a bit of the next data from h0 to h1 flips on the way
//! - `directory down`, `directory up`: the directory; `directory keep`, `directory restore`: it is
//!   put back to what it held when it was kept
//! - `create via=h0 size=4MiB`, `resize via=h0 to=2MiB`, `delete via=h0`: an administrator's
//!   volume, `side0` and so on, of at most 6 MiB; `begin` does not wait for these either
//! - `close side0 via=h1`: that host's client lets go of the volume
//! - `network answer-lost`, `network none`: every packet goes wrong in that way from now on, or
//!   `ppm=1000` of a million; no more; `directory slow` likewise of its calls
//! - `hang h1`, `unhang h1`, `gone h1`, `back h1`, `slow h1 x=100`, `wipe h1`: disks; all of
//!   these take `disk=0` to mean one only
//! - `truncate h1 to=600MiB`, `keep h1`, `restore h1`, `swap h0 h1`, `clone h0 h1`: the medium: cut
//!   off; put back as it was when it was kept; exchanged; a copy of h0's in h1
//! - `fault h1 lost-write`, `fault h1 none`: every operation of that kind goes wrong now, or
//!   `ppm=1000` of a million; no more
//! - `flip h1`, `flip h1 in=log page=3`: a bit of any page, or of a part's n-th used page
//! - `rot h1 v0 at=4KiB in=log`: a bit of every copy of that block on the host's media, or in a
//!   part
//! - `unreadable h1 v0 at=4KiB in=slots`: the same pages fail to be read
//! - `scrub h1`: its stores look at everything they hold
//! - `reached bit-flip least=1`: the fault has had its effect; `tell bit-flip` says how often
//! - `passed member.refuses_an_old_epoch`: the code has come by that mark since the scenario's
//!   beginning
//! - `expect h1 block-repaired within=30s`: that text is told of that host (`-`: of none);
//!   `most=1`: and so far not more often
//! - `never h1 taking-over`: it has not been told
//! - `counted h1 checksum_errors least=1`: a counter of its stores
//! - `run 5s`: time passes
//! - `healthy within=60s`: waits until every object has all its copies
//!
//! Parts of a medium are `log`, `slots`, `pages`, `journal`, `checkpoint`.
//!
//! At the end everything heals, and the same is checked as after a seed.
//!
//! Told are faults, answers and the events that an administrator would see, in tenths of a second;
//! not single messages and disk writes, which change with every tuning.

use crate::checker::Kind;
use crate::cluster::{Cluster, ClusterSpec, Shards};
use crate::disk::{DiskProfile, Image, SimDisk};
use crate::executor::LifeId;
use crate::fault::{DirectoryRates, DiskRates, FaultKind, NetRates};
use crate::machines::{Hardware, Machines};
use crate::net::NetProfile;
use crate::pattern;
use crate::rng::Rng;
use crate::storage::RealStorage;
use crate::trace::Trace;
use crate::workload::{Book, Clear, Mix};
use crate::world::SimWorld;
use atoll_directory::DirectoryState;
use atoll_format::record::Policy;
use atoll_format::superblock::{RegionKind, Superblock};
use atoll_format::units::{CHUNK, parse_size};
use atoll_node::CountedVolume;
use atoll_store::Store;
use atoll_world::Nanos;
use atoll_world::components::Components;
use atoll_world::mark;
use atoll_world::net::Lane;
use atoll_world::volume::{VolumeError, Volumes};
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// Layers whose lines are told.
const TOLD: &[&str] = &["fault", "node", "cluster", "client"];
/// Every operation, in parts per million.
const ALWAYS: u64 = 1_000_000;
/// A scenario ends before that.
const SCENARIO_MAX: Nanos = Nanos::from_secs(2_000);

/// One command: its words, and its `name=value` pairs.
struct Command {
    line: String,
    words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Command {
    fn parse(line: &str) -> Self {
        let mut command =
            Self { line: line.to_owned(), words: Vec::new(), options: BTreeMap::new() };
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) => {
                    command.options.insert(name.to_owned(), value.to_owned());
                }
                None => command.words.push(word.to_owned()),
            }
        }
        command
    }

    fn bad(&self, why: &str) -> String {
        format!("'{}': {why}", self.line)
    }

    fn word(&self, i: usize) -> Result<&str, String> {
        self.words.get(i).map(String::as_str).ok_or_else(|| self.bad("a word is missing"))
    }

    fn option(&self, name: &str) -> Result<&str, String> {
        let found = self.options.get(name).map(String::as_str);
        found.ok_or_else(|| self.bad(&format!("'{name}=' is missing")))
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        parse_size(self.option(name)?).map_err(|e| self.bad(&e))
    }

    fn number_or(&self, name: &str, otherwise: u64) -> Result<u64, String> {
        if self.options.contains_key(name) { self.number(name) } else { Ok(otherwise) }
    }

    fn span(&self, name: &str) -> Result<Option<Nanos>, String> {
        let Some(text) = self.options.get(name) else { return Ok(None) };
        span(text).map(Some).ok_or_else(|| self.bad(&format!("{name}=5s")))
    }

    fn host(&self, i: usize) -> Result<u16, String> {
        host(self.word(i)?).ok_or_else(|| self.bad("a host is called h0, h1, ..."))
    }
}

fn host(name: &str) -> Option<u16> {
    name.strip_prefix('h')?.parse().ok()
}

fn span(text: &str) -> Option<Nanos> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let n: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "s" => Some(Nanos::from_secs(n)),
        "ms" => Some(Nanos::from_ms(n)),
        "us" => Some(Nanos::from_us(n)),
        _ => None,
    }
}

/// Plays a scenario; returns its trace.
///
/// # Errors
/// A command that is not understood.
pub fn play(text: &str) -> Result<String, String> {
    let (commands, _) = text.split_once("\n----").unwrap_or((text, ""));
    let mut commands: Vec<Command> = commands
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(Command::parse)
        .collect();
    let hardware = commands
        .iter()
        .position(|c| c.words.first().is_none_or(|w| w != "cluster" && w != "volume"));
    let rest = commands.split_off(hardware.unwrap_or(commands.len()));
    let first = commands.first().ok_or("a scenario begins with 'cluster'")?;
    let (hosts, seed) = (first.number("hosts")? as u16, first.number("seed")?);
    let mut spec = ClusterSpec {
        volumes: Vec::new(),
        clients: Vec::new(),
        placement: Some(Vec::new()),
        ops: u64::MAX,
        repair_delay_s: first.span("repair")?.map_or(3600, |s| s.as_secs_f64() as u32),
        administered: false,
        stride: 1,
        calm: false,
        diskless: false,
        upgraded: false,
        emptied: false,
        shards: Shards::UpTo(1),
        history: None,
    };
    let victim = first.options.get("victim").map(|name| host(name).ok_or(first.bad("victim=h1")));
    let victim = victim.transpose()?;
    let log_bytes = first.number_or("log", 16 << 20)?;
    for (v, command) in commands[1..].iter().enumerate() {
        if command.word(1)? != format!("v{v}") {
            return Err(command.bad("volumes are called v0, v1, ... in order"));
        }
        let on: Option<Vec<u16>> = command.option("on")?.split(',').map(host).collect();
        let on = on.ok_or_else(|| command.bad("on= lists hosts"))?;
        let policy = Policy { failures_to_tolerate: on.len() as u8 - 1, ..Policy::DEFAULT };
        spec.volumes.push((command.number("size")?, policy));
        let homes = on.into_iter().map(|host| (host, 0)).collect();
        spec.placement.as_mut().expect("set above").push(vec![homes]);
    }
    let hardware = Hardware {
        hosts,
        cores: 1,
        disks: first.number_or("disks", 1)? as u16,
        disk_bytes: first.number_or("disk", 1 << 30)?,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let trace = Trace::of(TOLD);
    let machines = Machines::new(seed, hardware, trace.clone());
    let mut storage = RealStorage::new(log_bytes);
    if let Some(idle) = first.span("idle")? {
        storage = storage.destaging(0, idle);
    }
    if first.options.contains_key("checkpoint") {
        storage = storage.checkpointing(first.number("checkpoint")?);
    }
    let cluster = Cluster::new(machines.clone(), spec, storage);
    let stage = Stage {
        machines: machines.clone(),
        cluster: cluster.clone(),
        open: Rc::default(),
        kept: Rc::default(),
        kept_directory: Rc::default(),
        victim,
        marks: Rc::new(mark::reached()),
    };
    let end = machines.executor().block_on(SCENARIO_MAX, stage.tell(rest));
    cluster.judge();
    let mut told = String::new();
    let lines = trace.take_lines();
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let at = format!("+{:.1}s", line.at.as_secs_f64());
        let on = line.host.map_or("-".to_owned(), |h| format!("h{h}"));
        write!(told, "{at:<8} {on:<3} {:<8} {}", line.layer, line.text).expect("to a string");
        // Of what is told again and again, with other numbers perhaps, the first.
        let mut more = 0;
        while lines
            .next_if(|l| l.host == line.host && shape(&l.text) == shape(&line.text))
            .is_some()
        {
            more += 1;
        }
        told += &if more > 0 { format!(" ({more} more)\n") } else { "\n".to_owned() };
    }
    let mut violations = cluster.violations();
    if end.is_err() {
        violations.push("the scenario does not end".into());
    }
    match violations.as_slice() {
        [] => told += "no violation\n",
        some => some.iter().for_each(|v| told += &format!("VIOLATION: {v}\n")),
    }
    machines.shutdown();
    end.unwrap_or(Ok(())).map(|()| told)
}

/// A text without its numbers.
fn shape(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[derive(Clone)]
struct Stage {
    machines: Machines,
    cluster: Cluster<RealStorage>,
    /// As a guest's disk is: opened once in a life of its host.
    open: Rc<RefCell<BTreeMap<(LifeId, String), Opened>>>,
    /// What media held when a command kept it.
    kept: Rc<RefCell<BTreeMap<String, Image>>>,
    victim: Option<u16>,
    kept_directory: Rc<RefCell<Option<DirectoryState>>>,
    /// How often the code had come by its marks before: they are the process's.
    marks: Rc<BTreeMap<&'static str, u64>>,
}

type Opened = CountedVolume<SimWorld, Store<SimWorld>>;

impl Stage {
    async fn wait(&self, span: Nanos) {
        let ex = self.machines.executor();
        ex.sleep_until(ex.now() + span).await;
    }

    fn say(&self, text: String) {
        let ex = self.machines.executor();
        ex.trace().fact(ex.now(), None, "client", text);
    }

    async fn tell(self, commands: Vec<Command>) -> Result<(), String> {
        self.cluster.set_up().await?;
        for (n, command) in commands.iter().enumerate() {
            self.carry_out(n as u32, command).await?;
        }
        self.open.borrow_mut().clear();
        self.machines.heal();
        self.cluster.finish(self.victim).await;
        Ok(())
    }

    async fn carry_out(&self, number: u32, c: &Command) -> Result<(), String> {
        let (machines, fabric) = (&self.machines, self.machines.fabric());
        let begin = usize::from(c.word(0)? == "begin");
        if ["create", "resize", "delete"].contains(&c.word(begin)?) {
            return self.manage(c, begin).await;
        }
        match c.word(0)? {
            "run" => self.wait(span(c.word(1)?).ok_or_else(|| c.bad("run 5s"))?).await,
            "begin" | "write" | "read" | "discard" | "zero" => return self.io(number, c).await,
            "fill" => return self.fill(number, c).await,
            "load" => return self.load(number, c),
            word @ ("kill" | "power") => {
                let up: Vec<u16> =
                    self.hosts(c)?.into_iter().filter(|&h| machines.is_up(h)).collect();
                if up.is_empty() {
                    self.cluster.violated(format!("'{}': it is down", c.line));
                }
                up.into_iter().for_each(|h| machines.kill(h, word == "power"));
            }
            "stop" => {
                if !machines.stop_in_order(c.host(1)?).await {
                    self.cluster.violated(format!("'{}': it did not come to its end", c.line));
                }
            }
            "start" => self.hosts(c)?.into_iter().for_each(|h| machines.start(h)),
            "pause" => {
                if !machines.is_up(c.host(1)?) {
                    self.cluster.violated(format!("'{}': it is down", c.line));
                }
                machines.pause(c.host(1)?);
            }
            "resume" => machines.resume(c.host(1)?),
            "close" => {
                let via = host(c.option("via")?).and_then(|h| machines.life(h));
                let life = via.ok_or_else(|| c.bad("via= is a host that is up"))?;
                let open = self.open.borrow_mut().remove(&(life, c.word(1)?.to_owned()));
                drop(open.ok_or_else(|| c.bad("it is not open there"))?);
            }
            "trap" => {
                let (host, power) = (c.host(1)?, c.options.contains_key("power"));
                let life = machines.life(host).ok_or_else(|| c.bad("it is down"))?;
                let this = machines.clone();
                let strike = move || {
                    this.faults().reached(FaultKind::KillAtAwait);
                    this.kill(host, power);
                };
                machines.executor().trap(life, c.number("polls")?, strike);
            }
            "isolate" => machines.isolate(c.host(1)?, true),
            "rejoin" => machines.isolate(c.host(1)?, false),
            word @ ("cut" | "join") if c.word(2)? == "directory" => {
                machines.directory().set_cut(c.host(1)?, word == "cut");
            }
            word @ ("cut1" | "join1") if c.options.contains_key("lane") => {
                let lane = match c.option("lane")? {
                    "control" => Lane::Control,
                    "data" => Lane::Data,
                    "bulk" => Lane::Bulk,
                    _ => return Err(c.bad("lane=data")),
                };
                fabric.set_lane_cut(c.host(1)?, c.host(2)?, lane, word == "cut1");
            }
            word @ ("cut" | "join" | "cut1" | "join1") => {
                let (a, b) = (c.host(1)?, c.host(2)?);
                fabric.set_cut(a, b, word.starts_with("cut"));
                if !word.ends_with('1') {
                    fabric.set_cut(b, a, word == "cut");
                }
            }
            "link" => {
                let (a, b, factor) = (c.host(1)?, c.host(2)?, c.number("x")?);
                fabric.set_slow(a, b, factor);
                fabric.set_slow(b, a, factor);
            }
            "clock" => {
                let ppm = |name| c.number_or(name, 0).map(|n| n as i64);
                let ms = |name| c.span(name).map(|s| s.map_or(0, |s| (s.0 / 1_000_000) as i64));
                machines.set_clock(
                    c.host(1)?,
                    ppm("fast")? - ppm("slow")?,
                    ms("ahead")? - ms("behind")?,
                );
            }
            "starve" => machines.starve(c.host(1)?, c.number("x")?),
            "damage" => fabric.damage_next(c.host(1)?, c.host(2)?),
            "break" => fabric.break_now(c.host(1)?, c.host(2)?),
            "network" => fabric.set_rates(rates(c, 1, of_network)?),
            "directory" => match c.word(1)? {
                word @ ("down" | "up") => machines.directory().set_down(word == "down"),
                "keep" => {
                    *self.kept_directory.borrow_mut() = Some(machines.directory().state().clone())
                }
                "restore" => {
                    let kept = self.kept_directory.borrow().clone();
                    machines.directory().restore(kept.ok_or_else(|| c.bad("nothing was kept"))?);
                }
                _ => machines.directory().set_rates(rates(c, 1, of_directory)?),
            },
            word @ ("reached" | "tell") => {
                let name = c.word(1)?;
                let kind = FaultKind::ALL.iter().find(|k| k.name() == name);
                let kind = kind.ok_or_else(|| c.bad("no such fault"))?;
                let (found, least) = (machines.faults().count(*kind), c.number_or("least", 1)?);
                if word == "tell" {
                    self.say(format!("{name}: {found} times"));
                } else if found < least {
                    self.cluster.violated(format!("'{}': only {found} times", c.line));
                }
            }
            "passed" => {
                let name = c.word(1)?;
                if hits(name) <= self.marks.get(name).copied().unwrap_or(0) {
                    self.cluster.violated(format!("'{}': it has not", c.line));
                }
            }
            "expect" | "never" => return self.expect(c).await,
            "counted" => return self.counted(c),
            "scrub" => {
                let host = c.host(1)?;
                self.cluster.node(host).ok_or_else(|| c.bad("it is down"))?;
                self.cluster.stores(host).iter().for_each(|s| s.scrub(None, 1 << 30));
            }
            "healthy" => {
                let within = span(c.option("within")?).ok_or_else(|| c.bad("within=60s"))?;
                let limit = machines.executor().now() + within;
                while let Some(why) = self.cluster.unhealthy() {
                    if machines.executor().now() > limit {
                        self.cluster.violated(format!("not healthy within {within:?}: {why}"));
                        break;
                    }
                    self.wait(Nanos::from_ms(100)).await;
                }
                self.say("all objects are healthy".into());
            }
            _ => return self.disk(c),
        }
        Ok(())
    }

    /// The host that is meant, or all.
    fn hosts(&self, c: &Command) -> Result<Vec<u16>, String> {
        if c.word(1)? == "all" {
            Ok((0..self.machines.hosts()).collect())
        } else {
            Ok(vec![c.host(1)?])
        }
    }

    /// What happens to the disks of a host, or to one of them.
    fn disk(&self, c: &Command) -> Result<(), String> {
        let mut disks = self.machines.disks(c.host(1)?).to_vec();
        if c.options.contains_key("disk") {
            let n = c.number("disk")? as usize;
            disks = vec![disks.get(n).cloned().ok_or_else(|| c.bad("no such disk"))?];
        }
        for (n, disk) in disks.iter().enumerate() {
            match c.word(0)? {
                "hang" => disk.set_hung(true),
                "unhang" => disk.set_hung(false),
                "gone" => disk.set_gone(true),
                "back" => disk.set_gone(false),
                "wipe" => disk.wipe(),
                "slow" => disk.set_slow(c.number("x")?),
                "truncate" => disk.truncate(c.number("to")?),
                "keep" => {
                    self.kept.borrow_mut().insert(disk.name(), disk.image());
                }
                "restore" => {
                    let image = self.kept.borrow().get(&disk.name()).cloned();
                    disk.restore(image.ok_or_else(|| c.bad("nothing was kept"))?);
                }
                "clone" => self.machines.disks(c.host(2)?)[n].restore(disk.image()),
                "swap" => disk.swap(&self.machines.disks(c.host(2)?)[n]),
                "fault" => disk.set_rates(rates(c, 2, of_disk)?),
                "flip" if !c.options.contains_key("in") => {
                    disk.flip();
                }
                "flip" => {
                    let (page, all) = (c.number("page")?, pages(disk, c, |_| true)?);
                    let at = all.get(page as usize).ok_or_else(|| c.bad("not so many pages"))?;
                    disk.flip_at(*at);
                }
                "rot" | "unreadable" => {}
                _ => return Err(c.bad("no such command")),
            }
        }
        if matches!(c.word(0)?, "rot" | "unreadable") {
            let sector = c.number("at")? / 512;
            let mut found = 0;
            for disk in &disks {
                // The volume's block is known by what it says of itself.
                let of_block = |page: &[u8]| {
                    pattern::tag(&page[..pattern::SECTOR], sector).is_ok_and(|tag| tag > 0)
                };
                for at in pages(disk, c, of_block)? {
                    found += 1;
                    if c.word(0)? == "rot" {
                        disk.flip_at(at);
                    } else {
                        disk.make_latent_at(at);
                    }
                }
            }
            if found == 0 {
                self.cluster.violated(format!("'{}': the block is not there", c.line));
            }
        }
        Ok(())
    }

    async fn expect(&self, c: &Command) -> Result<(), String> {
        let of = if c.word(1)? == "-" { None } else { Some(c.host(1)?) };
        let text = c.words[2..].join(" ");
        let ex = self.machines.executor();
        let count = || ex.trace().count(|line| line.host == of && line.text.contains(&text)) as u64;
        if c.word(0)? == "never" {
            if count() > 0 {
                self.cluster.violated(format!("'{}': it was told", c.line));
            }
            return Ok(());
        }
        let limit = ex.now() + c.span("within")?.unwrap_or(Nanos::ZERO);
        while count() < c.number_or("least", 1)? {
            if ex.now() >= limit {
                self.cluster.violated(format!("'{}': it is not told", c.line));
                break;
            }
            self.wait(Nanos::from_ms(50)).await;
        }
        if count() > c.number_or("most", u64::MAX >> 1)? {
            self.cluster.violated(format!("'{}': told {} times", c.line, count()));
        }
        Ok(())
    }

    fn counted(&self, c: &Command) -> Result<(), String> {
        let host = c.host(1)?;
        self.cluster.node(host).ok_or_else(|| c.bad("it is down"))?;
        let counters = self.cluster.stores(host);
        let counters = counters.iter().map(Components::counters);
        let found: u64 = match c.word(2)? {
            "checksum_errors" => counters.map(|c| c.checksum_errors).sum(),
            "device_errors" => counters.map(|c| c.device_errors).sum(),
            "blocks_copied_in" => counters.map(|c| c.blocks_copied_in).sum(),
            "destaged_bytes" => counters.map(|c| c.destaged_bytes).sum(),
            _ => return Err(c.bad("no such counter")),
        };
        let (least, most) = (c.number_or("least", 1)?, c.number_or("most", u64::MAX >> 1)?);
        if !(least..=most).contains(&found) {
            self.cluster.violated(format!("'{}': it stands at {found}", c.line));
        }
        Ok(())
    }

    fn book(&self, c: &Command, i: usize) -> Result<(String, Book), String> {
        let name = c.word(i)?.to_owned();
        if let Some(side) = self.cluster.admin().books().into_iter().find(|(n, _)| *n == name) {
            return Ok(side);
        }
        let volume = name.strip_prefix('v').and_then(|v| v.parse::<usize>().ok());
        let book = volume.and_then(|v| self.cluster.books().get(v)).cloned();
        Ok((name, book.ok_or_else(|| c.bad("no such volume"))?))
    }

    /// What an administrator does.
    async fn manage(&self, c: &Command, begin: usize) -> Result<(), String> {
        let via = host(c.option("via")?).ok_or_else(|| c.bad("via=h0"))?;
        let what = c.word(begin)?.to_owned();
        let bytes = match &what[..] {
            "create" => c.number("size")?,
            "resize" => c.number("to")?,
            _ => 0,
        };
        if what != "create" && self.cluster.admin().books().is_empty() {
            return Err(c.bad("none was created"));
        }
        let cluster = self.cluster.clone();
        let work = async move {
            match &what[..] {
                "create" => cluster.make(via, bytes).await,
                "resize" => cluster.resize(via, bytes).await,
                _ => cluster.delete(via).await,
            }
        };
        if begin == 1 {
            self.machines.executor().spawn(LifeId::HARNESS, work);
            self.wait(Nanos::from_us(20)).await;
        } else {
            work.await;
        }
        Ok(())
    }

    async fn fill(&self, number: u32, c: &Command) -> Result<(), String> {
        let (name, book) = self.book(c, 1)?;
        let via = host(c.option("via")?).ok_or_else(|| c.bad("via=h0"))?;
        let fails = c.option("fails")?;
        for chunk in 0..book.size() / CHUNK {
            let range = (chunk * CHUNK / 512, 8);
            match self.attempt(&book, number, "write", &name, via, range).await {
                Ok(_) => {}
                Err(why) if why.contains(fails) => {
                    self.say(format!("{}: after {chunk} MiB: {why}", c.line));
                    return Ok(());
                }
                Err(why) => {
                    self.cluster.violated(format!("'{}': {why}", c.line));
                    return Ok(());
                }
            }
        }
        self.cluster.violated(format!("'{}': it takes everything", c.line));
        Ok(())
    }

    fn load(&self, number: u32, c: &Command) -> Result<(), String> {
        let (name, book) = self.book(c, 1)?;
        let via = host(c.option("via")?).ok_or_else(|| c.bad("via=h0"))?;
        let node = self.cluster.node(via).ok_or_else(|| c.bad("it is down"))?;
        let life = self.machines.life(via).ok_or_else(|| c.bad("it is down"))?;
        let pause = (Nanos::from_us(50), Nanos::from_ms(c.number_or("pause_ms", 20)?));
        let mix = Mix {
            write: 60,
            discard: 2,
            zero: 2,
            hot: 30,
            hot_at: (1984, 2304),
            len_max: 65_536,
            pause,
            instead: None,
        };
        let mut rng = Rng::named(u64::from(number), "load");
        let ex = self.machines.executor().clone();
        self.machines.executor().spawn(life, async move {
            loop {
                if let Ok(volume) = node.open(&name).await {
                    let rng = Rng::named(rng.next(), "load");
                    return book.client(volume, mix, rng).await;
                }
                ex.sleep_until(ex.now() + Nanos::from_ms(100)).await;
            }
        });
        Ok(())
    }

    async fn io(&self, number: u32, c: &Command) -> Result<(), String> {
        let begin = usize::from(c.word(0)? == "begin");
        let what = c.word(begin)?.to_owned();
        let (name, book) = self.book(c, begin + 1)?;
        let via = host(c.option("via")?).ok_or_else(|| c.bad("via=h0"))?;
        let (at, len) = (c.number("at")?, c.number("len")?);
        if !at.is_multiple_of(512) || !len.is_multiple_of(512) || len == 0 {
            return Err(c.bad("at and len are multiples of 512"));
        }
        let range = (at / 512, (len / 512) as u32);
        let (this, line) = (self.clone(), c.line.trim_start_matches("begin ").to_owned());
        let (within, times) = (c.span("within")?, c.number_or("times", 1)?);
        let (step, leaves) = (c.number_or("step", 0)? / 512, c.span("leaves")?);
        let (shows, fails) = (c.options.get("shows").cloned(), c.options.get("fails").cloned());
        let work = async move {
            let ex = this.machines.executor();
            let mut answer = Ok(String::new());
            for n in 0..times {
                let begun = ex.now();
                let range = (range.0 + n * step, range.1);
                let attempt = this.attempt(&book, number, &what, &name, via, range);
                let Some(leaves) = leaves else {
                    answer = attempt.await;
                    let took = ex.now().since(begun);
                    if within.is_some_and(|most| took > most) {
                        this.cluster.violated(format!("'{line}' took {took:?}"));
                    }
                    continue;
                };
                let gone = std::pin::pin!(this.wait(leaves));
                match select(std::pin::pin!(attempt), gone).await {
                    Either::Left((done, _)) => answer = done,
                    Either::Right(_) => {
                        this.say(format!("{line}: the client has left"));
                        return;
                    }
                }
            }
            let right = match (&answer, &fails, &shows) {
                (Ok(shown), None, Some(wanted)) => {
                    shown.trim_start_matches("shows ").replace([' ', '[', ']'], "") == *wanted
                }
                (Ok(_), None, None) => true,
                (Err(why), Some(wanted), _) => why.contains(wanted.as_str()),
                _ => false,
            };
            let answer = answer.unwrap_or_else(|why| why);
            this.say(format!("{line}: {answer}"));
            if !right {
                this.cluster.violated(format!("'{line}' was answered: {answer}"));
            }
        };
        if begin == 1 {
            // In the host's life: it dies with it.
            let life = self.machines.life(via).unwrap_or(LifeId::HARNESS);
            self.machines.executor().spawn(life, work);
            // What comes next meets it under way.
            self.wait(Nanos::from_us(20)).await;
        } else {
            work.await;
        }
        Ok(())
    }

    async fn attempt(
        &self,
        book: &Book,
        number: u32,
        what: &str,
        name: &str,
        via: u16,
        range: (u64, u32),
    ) -> Result<String, String> {
        // A host that has just been started takes a moment, unless it cannot open its disks.
        let limit = self.machines.executor().now() + Nanos::from_secs(40);
        while self.machines.is_up(via)
            && self.cluster.node(via).is_none()
            && self.machines.executor().now() < limit
        {
            self.wait(Nanos::from_ms(10)).await;
        }
        let (Some(node), Some(life)) = (self.cluster.node(via), self.machines.life(via)) else {
            return Err(format!("h{via} is down"));
        };
        let open = self.open.borrow().get(&(life, name.to_owned())).cloned();
        let volume = match open {
            Some(volume) => volume,
            None => match node.open(name).await {
                Ok(volume) => volume,
                Err(error) => return Err(error.to_string()),
            },
        };
        self.open.borrow_mut().insert((life, name.to_owned()), volume.clone());
        let mut rng = Rng::named(u64::from(number), "scenario");
        let result = match what {
            "read" => {
                let read = book.read(&volume, number, range.0, range.1).await;
                match read {
                    Ok(mut tags) => {
                        tags.dedup();
                        return Ok(format!("shows {tags:?}"));
                    }
                    Err(error) => Err(error),
                }
            }
            "write" => {
                let kind = Kind::Write(book.next_tag());
                book.change(&volume, number, kind, Clear::Zero, range, &mut rng).await
            }
            "discard" => {
                book.change(&volume, number, Kind::Zero, Clear::Discard, range, &mut rng).await
            }
            _ => book.change(&volume, number, Kind::Zero, Clear::Zero, range, &mut rng).await,
        };
        match result {
            Ok(()) => Ok("done".into()),
            Err(VolumeError::Gone) => {
                self.open.borrow_mut().remove(&(life, name.to_owned()));
                Err(VolumeError::Gone.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn hits(name: &str) -> u64 {
    mark::reached().get(name).copied().unwrap_or(0)
}

/// Rates at which operations of the kind that word `i` names go wrong: all, or `ppm=1000` of a
/// million.
fn rates<R: Default>(
    c: &Command,
    i: usize,
    of: impl for<'a> FnOnce(&'a mut R, &str) -> Option<&'a mut u32>,
) -> Result<R, String> {
    let mut rates = R::default();
    let kind = c.word(i)?;
    if kind != "none" {
        let rate = of(&mut rates, kind).ok_or_else(|| c.bad("no such fault"))?;
        *rate = c.number_or("ppm", ALWAYS)? as u32;
    }
    Ok(rates)
}

fn of_network<'a>(rates: &'a mut NetRates, kind: &str) -> Option<&'a mut u32> {
    Some(match kind {
        "connection-lost" => &mut rates.lost,
        "frame-damaged" => &mut rates.damaged,
        "packet-delayed" => &mut rates.delayed,
        "answer-lost" => &mut rates.answer_lost,
        _ => return None,
    })
}

fn of_directory<'a>(rates: &'a mut DirectoryRates, kind: &str) -> Option<&'a mut u32> {
    Some(match kind {
        "slow" => &mut rates.slow,
        "answer-lost" => &mut rates.answer_lost,
        "late" => &mut rates.late,
        "stale-read" => &mut rates.stale,
        "watch-odd" => &mut rates.watch,
        "watch-rewound" => &mut rates.rewound,
        "watch-gap" => &mut rates.gap,
        "hint-odd" => &mut rates.hint,
        "revision-back" => &mut rates.revision_back,
        _ => return None,
    })
}

fn of_disk<'a>(rates: &'a mut DiskRates, kind: &str) -> Option<&'a mut u32> {
    Some(match kind {
        "read-error" => &mut rates.read_error,
        "write-error" => &mut rates.write_error,
        "flush-error" => &mut rates.flush_error,
        "disk-full" => &mut rates.full,
        "lost-write" => &mut rates.lost,
        "torn-write" => &mut rates.torn,
        "misdirected-write" => &mut rates.misdirected_write,
        "misdirected-read" => &mut rates.misdirected_read,
        _ => return None,
    })
}

/// Where the used pages are that a command means: in all parts of a medium or one, and as wanted.
fn pages(disk: &SimDisk, c: &Command, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u64>, String> {
    let kinds: &[RegionKind] = match c.options.get("in").map(String::as_str) {
        None => return Ok(disk.find(|_, page| wanted(page))),
        Some("log") => &[RegionKind::Log],
        Some("slots") => &[RegionKind::Slots],
        Some("pages") => &[RegionKind::Pages],
        Some("journal") => &[RegionKind::Journal],
        Some("checkpoint") => &[RegionKind::CheckpointA, RegionKind::CheckpointB],
        Some(_) => return Err(c.bad("no such part of a medium")),
    };
    let mut label = None;
    disk.find(|at, page| {
        if at == 0 {
            label = Superblock::decode(page, 0).ok();
        }
        false
    });
    let label = label.ok_or_else(|| c.bad("the medium has no label"))?;
    let parts: Vec<_> = label.regions.iter().filter(|r| kinds.contains(&r.kind)).collect();
    let inside = |at| parts.iter().any(|r| (r.at..r.at + r.len).contains(&at));
    Ok(disk.find(|at, page| inside(at) && wanted(page)))
}
