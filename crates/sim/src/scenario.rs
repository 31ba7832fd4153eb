//! Stories: a text file of commands, a line `----`, and what the cluster is expected to do.
//!
//! | command | what happens |
//! | --- | --- |
//! | `cluster hosts=3 seed=7` | first; the machines |
//! | `volume v0 size=4MiB on=h0,h1` | its copies; all volumes come before anything else |
//! | `write v0 via=h0 at=0 len=4KiB` | waits for the answer; also `read`, `discard`, `zero` |
//! | `begin write v0 ...` | does not wait; the answer is told when it comes |
//! | `kill h1`, `power h1`, `start h1`, `pause h1`, `resume h1` | the host |
//! | `isolate h1`, `rejoin h1`, `cut h0 h1`, `join h0 h1` | the network |
//! | `cut1 h0 h1`, `join1 h0 h1` | one direction of it |
//! | `directory down`, `directory up` | the directory |
//! | `hang h1`, `unhang h1`, `gone h1`, `back h1`, `flip h1` | disks |
//! | `slow h1 x=100`, `lose h1 writes=1` (and `=0`) | disks |
//! | `run 5s` | time passes |
//! | `healthy within=60s` | waits until every object has all its copies |
//!
//! At the end everything heals, and the same is checked as after a seed.
//!
//! Told are faults, answers and the events that an administrator would see, in tenths of a second;
//! not single messages and disk writes, which change with every tuning.

use crate::checker::Kind;
use crate::cluster::{Cluster, ClusterSpec};
use crate::disk::DiskProfile;
use crate::executor::LifeId;
use crate::fault::DiskRates;
use crate::net::NetProfile;
use crate::rig::{Rig, RigSpec};
use crate::rng::Rng;
use crate::storage::RealStorage;
use crate::trace::Trace;
use crate::workload::{Book, Clear};
use crate::world::SimWorld;
use atoll_format::record::Policy;
use atoll_format::units::parse_size;
use atoll_node::CountedVolume;
use atoll_store::Store;
use atoll_world::Nanos;
use atoll_world::volume::Volumes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

/// Layers whose lines are told.
const TOLD: &[&str] = &["fault", "node", "cluster", "client"];
/// A story ends before that.
const STORY_MAX: Nanos = Nanos::from_secs(600);

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

/// Plays a story; returns its trace.
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
    let machines = commands
        .iter()
        .position(|c| c.words.first().is_none_or(|w| w != "cluster" && w != "volume"));
    let rest = commands.split_off(machines.unwrap_or(commands.len()));
    let first = commands.first().ok_or("a story begins with 'cluster'")?;
    let (hosts, seed) = (first.number("hosts")? as u16, first.number("seed")?);
    let mut spec = ClusterSpec {
        volumes: Vec::new(),
        clients: Vec::new(),
        placement: Some(Vec::new()),
        ops: 0,
        repair_delay_s: 3600,
    };
    for (v, command) in commands[1..].iter().enumerate() {
        if command.word(1)? != format!("v{v}") {
            return Err(command.bad("volumes are called v0, v1, ... in order"));
        }
        let on: Option<Vec<u16>> = command.option("on")?.split(',').map(host).collect();
        let on = on.ok_or_else(|| command.bad("on= lists hosts"))?;
        let policy = Policy { failures_to_tolerate: on.len() as u8 - 1, ..Policy::DEFAULT };
        spec.volumes.push((command.number("size")?, policy));
        spec.placement.as_mut().expect("set above").push(vec![on]);
    }
    let machines = RigSpec {
        hosts,
        disks: 1,
        disk_bytes: 1 << 30,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let trace = Trace::new(true);
    let rig = Rig::new(seed, machines, trace.clone());
    let cluster = Cluster::new(rig.clone(), spec, RealStorage::new(16 << 20));
    let stage = Stage { rig: rig.clone(), cluster: cluster.clone(), open: Rc::default() };
    let end = rig.executor().block_on(STORY_MAX, stage.tell(rest));
    cluster.judge();
    let mut told = String::new();
    for line in trace.take_lines().iter().filter(|l| TOLD.contains(&l.layer)) {
        let at = format!("+{:.1}s", line.at.as_secs_f64());
        let on = line.host.map_or("-".to_owned(), |h| format!("h{h}"));
        writeln!(told, "{at:<8} {on:<3} {:<8} {}", line.layer, line.text).expect("to a string");
    }
    let mut violations = cluster.violations();
    if end.is_err() {
        violations.push("the story does not end".into());
    }
    match violations.as_slice() {
        [] => told += "no violation\n",
        some => some.iter().for_each(|v| told += &format!("VIOLATION: {v}\n")),
    }
    rig.shutdown();
    end.unwrap_or(Ok(())).map(|()| told)
}

#[derive(Clone)]
struct Stage {
    rig: Rig,
    cluster: Cluster<RealStorage>,
    /// As a guest's disk is: opened once in a life of its host.
    open: Rc<RefCell<BTreeMap<(LifeId, String), Opened>>>,
}

type Opened = CountedVolume<SimWorld, Store<SimWorld>>;

impl Stage {
    async fn wait(&self, span: Nanos) {
        let ex = self.rig.executor();
        ex.sleep_until(ex.now() + span).await;
    }

    fn say(&self, text: String) {
        let ex = self.rig.executor();
        ex.trace().fact(ex.now(), None, "client", text);
    }

    async fn tell(self, commands: Vec<Command>) -> Result<(), String> {
        self.cluster.set_up().await?;
        for (n, command) in commands.iter().enumerate() {
            self.carry_out(n as u32, command).await?;
        }
        self.open.borrow_mut().clear();
        self.rig.heal();
        self.cluster.finish(None).await;
        Ok(())
    }

    async fn carry_out(&self, number: u32, c: &Command) -> Result<(), String> {
        let (rig, fabric) = (&self.rig, self.rig.fabric());
        match c.word(0)? {
            "run" => self.wait(span(c.word(1)?).ok_or_else(|| c.bad("run 5s"))?).await,
            "begin" | "write" | "read" | "discard" | "zero" => return self.io(number, c).await,
            "kill" => rig.kill(c.host(1)?, false),
            "power" => rig.kill(c.host(1)?, true),
            "start" => rig.start(c.host(1)?),
            "pause" => rig.pause(c.host(1)?),
            "resume" => rig.resume(c.host(1)?),
            "isolate" => rig.isolate(c.host(1)?, true),
            "rejoin" => rig.isolate(c.host(1)?, false),
            word @ ("cut" | "join" | "cut1" | "join1") => {
                let (a, b) = (c.host(1)?, c.host(2)?);
                fabric.set_cut(a, b, word.starts_with("cut"));
                if !word.ends_with('1') {
                    fabric.set_cut(b, a, word == "cut");
                }
            }
            "directory" => rig.directory().set_down(c.word(1)? == "down"),
            "hang" => rig.disks(c.host(1)?).iter().for_each(|d| d.set_hung(true)),
            "unhang" => rig.disks(c.host(1)?).iter().for_each(|d| d.set_hung(false)),
            "gone" => rig.disks(c.host(1)?).iter().for_each(|d| d.set_gone(true)),
            "back" => rig.disks(c.host(1)?).iter().for_each(|d| d.set_gone(false)),
            "slow" => {
                let factor = c.number("x")?;
                rig.disks(c.host(1)?).iter().for_each(|d| d.set_slow(factor));
            }
            "flip" => {
                for disk in rig.disks(c.host(1)?) {
                    disk.flip();
                }
            }
            "lose" => {
                // Every write is acknowledged and not made, until the next command for this disk.
                let lost = if c.number("writes")? > 0 { 1_000_000 } else { 0 };
                let rates = DiskRates { lost, ..DiskRates::default() };
                rig.disks(c.host(1)?).iter().for_each(|d| d.set_rates(rates));
            }
            "healthy" => {
                let within = span(c.option("within")?).ok_or_else(|| c.bad("within=60s"))?;
                let limit = rig.executor().now() + within;
                while let Some(why) = self.cluster.unhealthy() {
                    if rig.executor().now() > limit {
                        self.cluster.violated(format!("not healthy within {within:?}: {why}"));
                        break;
                    }
                    self.wait(Nanos::from_ms(100)).await;
                }
                self.say("all objects are healthy".into());
            }
            _ => return Err(c.bad("no such command")),
        }
        Ok(())
    }

    async fn io(&self, number: u32, c: &Command) -> Result<(), String> {
        let begin = usize::from(c.word(0)? == "begin");
        let what = c.word(begin)?.to_owned();
        let name = c.word(begin + 1)?.to_owned();
        let volume = name.strip_prefix('v').and_then(|v| v.parse::<usize>().ok());
        let book = volume.and_then(|v| self.cluster.books().get(v)).cloned();
        let book = book.ok_or_else(|| c.bad("no such volume"))?;
        let via = host(c.option("via")?).ok_or_else(|| c.bad("via=h0"))?;
        let (at, len) = (c.number("at")?, c.number("len")?);
        if !at.is_multiple_of(512) || !len.is_multiple_of(512) || len == 0 {
            return Err(c.bad("at and len are multiples of 512"));
        }
        let range = (at / 512, (len / 512) as u32);
        let (this, line) = (self.clone(), c.line.trim_start_matches("begin ").to_owned());
        let work = async move {
            let answer = this.attempt(&book, number, &what, &name, via, range).await;
            this.say(format!("{line}: {answer}"));
        };
        if begin == 1 {
            // In the host's life: it dies with it.
            let life = self.rig.life(via).unwrap_or(LifeId::HARNESS);
            self.rig.executor().spawn(life, work);
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
    ) -> String {
        let (Some(node), Some(life)) = (self.cluster.node(via), self.rig.life(via)) else {
            return format!("h{via} is down");
        };
        let open = self.open.borrow().get(&(life, name.to_owned())).cloned();
        let volume = match open {
            Some(volume) => volume,
            None => match node.open(name).await {
                Ok(volume) => volume,
                Err(error) => return error.to_string(),
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
                        return format!("shows {tags:?}");
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
            Ok(()) => "done".into(),
            Err(error) => error.to_string(),
        }
    }
}
