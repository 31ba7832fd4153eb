//! `atoll top --profile`: where the time of I/O went between two looks at the profiles of the
//! hosts.
//!
//! Invariants: what a host noted before the first look is never shown, unless it has restarted
//! since; quantiles are the upper bounds of their buckets, and so never too small.

use super::out::{Format, Out};
use atoll_api::types::{Profile, ProfileBucket, ProfileStage};
use std::collections::BTreeMap;

/// Characters of a bar that is as long as the whole read or write.
const BAR: usize = 20;

/// Stages in the order in which they are shown: name, depth, and the one that it is a part of.
const TREE: &[(&str, usize, &str)] = &[
    ("write", 0, "write"),
    ("queue", 1, "write"),
    ("peer", 1, "write"),
    (NETWORK, 2, "write"),
    ("serve", 2, "write"),
    ("log_queue", 1, "write"),
    ("log_write", 1, "write"),
    ("read", 0, "read"),
    ("disk_read", 1, "read"),
    ("reply", 0, ""),
    ("disk_write", 0, ""),
];
/// No host notes it: what of `peer` is not `serve`.
const NETWORK: &str = "network";

/// What happened after `before` and until `after`, host by host. A host that cannot be compared
/// has no stages, and says why.
pub fn between(before: &[Profile], after: &[Profile]) -> Vec<Profile> {
    let one = |now: &Profile| {
        let then = before.iter().find(|then| then.host == now.host);
        match then.filter(|then| then.detail.is_empty()) {
            _ if !now.detail.is_empty() => now.clone(),
            None => Profile {
                host: now.host.clone(),
                detail: format!("host {} did not tell at the look before", now.host),
                ..Profile::default()
            },
            Some(then) if then.uptime_ms > now.uptime_ms => now.clone(),
            Some(then) => Profile {
                uptime_ms: now.uptime_ms - then.uptime_ms,
                stages: now.stages.iter().map(|stage| less(stage, &then.stages)).collect(),
                ..now.clone()
            },
        }
    };
    after.iter().map(one).collect()
}

/// A stage without what it already was.
fn less(now: &ProfileStage, before: &[ProfileStage]) -> ProfileStage {
    let Some(then) = before.iter().find(|then| then.stage == now.stage) else {
        return now.clone();
    };
    let bucket = |bucket: &ProfileBucket| {
        let then = then.buckets.iter().find(|then| then.below_ns == bucket.below_ns);
        let count = bucket.count.saturating_sub(then.map_or(0, |then| then.count));
        (count > 0).then_some(ProfileBucket { count, ..bucket.clone() })
    };
    let noted = now.noted.saturating_sub(then.noted);
    let noted_ns = now.noted_ns.saturating_sub(then.noted_ns);
    ProfileStage {
        count: now.count.saturating_sub(then.count),
        noted,
        noted_ns,
        mean_ns: noted_ns.checked_div(noted).unwrap_or(0),
        buckets: now.buckets.iter().filter_map(bucket).collect(),
        ..now.clone()
    }
}

/// A stage on one host, or on several together.
#[derive(Default)]
struct Sum {
    about: String,
    per_second: f64,
    noted: u64,
    noted_ns: u64,
    /// By upper bound; the last has none.
    buckets: BTreeMap<u64, u64>,
}

impl Sum {
    fn mean_ns(&self) -> Option<u64> {
        self.noted_ns.checked_div(self.noted)
    }

    /// The bound that so many of a thousand are below; none without any.
    fn quantile(&self, per_mille: u64) -> Option<u64> {
        let rank = (self.noted * per_mille).div_ceil(1_000);
        let mut below = 0;
        let reached = |(bound, count): (&u64, &u64)| {
            below += count;
            (below >= rank).then_some(*bound)
        };
        self.buckets.iter().find_map(reached)
    }
}

/// Stages of all those hosts together, by name.
fn sums<'a>(hosts: impl IntoIterator<Item = &'a Profile>) -> BTreeMap<&'a str, Sum> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for host in hosts {
        for stage in &host.stages {
            let sum = sums.entry(&stage.stage).or_default();
            sum.about.clone_from(&stage.about);
            sum.per_second += stage.count as f64 * 1e3 / host.uptime_ms.max(1) as f64;
            sum.noted += stage.noted;
            sum.noted_ns += stage.noted_ns;
            for bucket in &stage.buckets {
                let below = bucket.below_ns.unwrap_or(u64::MAX);
                *sum.buckets.entry(below).or_default() += bucket.count;
            }
        }
    }
    sums
}

/// The table: the cluster; with `-o wide` after it every host, as far as something happened there.
pub fn screen(out: &Out, hosts: &[Profile]) -> String {
    let titles =
        ["STAGE", "PER SECOND", "MEAN", "P50", "P99", "P99.9", "LONGEST", "SHARE", "", "WHAT"];
    let wide = out.format == Format::Wide;
    let first: &[&str] = if wide { &["HOST"] } else { &[] };
    let head: Vec<String> = first.iter().chain(&titles).map(|t| (*t).to_owned()).collect();
    let mut together = sums(hosts);
    // Who asks and who is asked are two hosts: only all of them together tell it, and none missing.
    if hosts.iter().all(|host| host.detail.is_empty()) {
        together.extend(network(&together).map(|network| (NETWORK, network)));
    }
    let mut rows = Vec::new();
    let mut add = |name: &str, sums: &BTreeMap<&str, Sum>| {
        for line in lines(sums) {
            let first = wide.then(|| name.to_owned());
            rows.push(first.into_iter().chain(line).collect());
        }
    };
    add("all", &together);
    for host in hosts.iter().filter(|_| wide) {
        let mut alone = sums([host]);
        alone.retain(|_, sum| sum.noted > 0);
        add(&host.host, &alone);
    }
    out.table(&head, &rows)
}

/// How long requests to other hosts were neither there nor answered; nothing but its mean is known.
fn network(sums: &BTreeMap<&str, Sum>) -> Option<Sum> {
    let (peer, serve) = (sums.get("peer")?, sums.get("serve")?);
    let mean_ns = peer.mean_ns()?.checked_sub(serve.mean_ns()?)?;
    Some(Sum {
        about: "peer without serve: both ways, and the queues on them".into(),
        per_second: peer.per_second,
        noted: 1,
        noted_ns: mean_ns,
        buckets: BTreeMap::new(),
    })
}

fn lines(sums: &BTreeMap<&str, Sum>) -> Vec<Vec<String>> {
    let known = TREE.iter().copied();
    // A newer server may have stages that this program has not heard of.
    let new = sums.keys().filter(|name| !TREE.iter().any(|(known, ..)| known == *name));
    let mut lines = Vec::new();
    for (name, depth, whole) in known.chain(new.map(|name| (*name, 0, ""))) {
        let Some(sum) = sums.get(name) else { continue };
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), span);
        let whole = sums.get(whole).and_then(Sum::mean_ns).filter(|ns| *ns > 0);
        let share = sum.mean_ns().zip(whole).map(|(part, whole)| part as f64 / whole as f64);
        let bar = share.map_or(0, |share| ((share * BAR as f64).round() as usize).min(BAR));
        lines.push(vec![
            format!("{}{name}", "  ".repeat(depth)),
            format!("{:.0}", sum.per_second),
            time(sum.mean_ns()),
            time(sum.quantile(500)),
            time(sum.quantile(990)),
            time(sum.quantile(999)),
            time(sum.buckets.keys().next_back().copied()),
            share.map_or_else(|| "-".into(), |share| format!("{:.0} %", share * 100.0)),
            "#".repeat(bar),
            sum.about.clone(),
        ]);
    }
    lines
}

/// `1.3 us`, `210 us`, `1.5 ms`, `2.1 s`; the bucket that has no bound begins at 17 s.
fn span(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        u64::MAX => "> 17 s".into(),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, spans: &[(Option<u64>, u64)], noted_ns: u64) -> ProfileStage {
        let bucket = |&(below_ns, count)| ProfileBucket { below_ns, count };
        let noted = spans.iter().map(|(_, count)| count).sum();
        ProfileStage {
            stage: name.into(),
            about: format!("about {name}"),
            count: noted * 16,
            sampled: 16,
            noted,
            noted_ns,
            mean_ns: 0,
            buckets: spans.iter().map(bucket).collect(),
        }
    }

    fn host(name: &str, uptime_ms: u64, stages: Vec<ProfileStage>) -> Profile {
        Profile { host: name.into(), uptime_ms, stages, ..Profile::default() }
    }

    #[test]
    fn what_was_before_the_first_look_is_not_shown() {
        let then = stage("peer", &[(Some(1_000), 5), (Some(9_000), 1)], 8_000);
        let now = stage("peer", &[(Some(1_000), 5), (Some(9_000), 4), (None, 1)], 90_000);
        let before = [host("a", 1_000, vec![then.clone()]), host("b", 9_000, vec![then])];
        let after = [
            host("a", 3_000, vec![now.clone()]),
            // It has restarted: what it shows is new.
            host("b", 500, vec![now.clone()]),
            host("c", 9_000, vec![now.clone()]),
            Profile { detail: "away".into(), ..host("d", 0, vec![]) },
        ];
        let between = between(&before, &after);
        let mut less = stage("peer", &[(Some(9_000), 3), (None, 1)], 82_000);
        less.mean_ns = 20_500;
        assert_eq!(between[0], host("a", 2_000, vec![less]));
        assert_eq!(between[1], after[1]);
        assert!(between[2].stages.is_empty() && between[2].detail.contains("look before"));
        assert_eq!(between[3], after[3]);
    }

    #[test]
    fn hosts_add_up_and_quantiles_are_upper_bounds() {
        let one = host("a", 1_000, vec![stage("peer", &[(Some(10), 98)], 500)]);
        let other = host("b", 2_000, vec![stage("peer", &[(Some(20), 1), (None, 1)], 9_500)]);
        let sums = sums([&one, &other]);
        let peer = &sums["peer"];
        assert_eq!((peer.mean_ns(), peer.per_second as u64), (Some(100), 98 * 16 + 16));
        assert_eq!(
            [500, 980, 990, 999].map(|q| peer.quantile(q)).map(Option::unwrap),
            [10, 10, 20, u64::MAX]
        );
        assert_eq!(Sum::default().quantile(500), None);
    }

    #[test]
    fn the_network_is_what_remains_and_only_if_everybody_tells() {
        let hosts = |serve_ns, detail: &str| {
            let asks = host("a", 1_000, vec![stage("peer", &[(Some(100), 10)], 1_000)]);
            let works = vec![stage("serve", &[(Some(100), 5)], serve_ns), stage("new", &[], 0)];
            let silent = Profile { detail: detail.into(), ..host("c", 0, vec![]) };
            [asks, host("b", 1_000, works), silent]
        };
        let out = |format| Out { format, header: true, color: false, quiet: false, verbose: false };
        let table = screen(&out(Format::Table), &hosts(200, ""));
        let stages: Vec<&str> = table.lines().map(|l| l.split("  ").next().unwrap()).collect();
        assert_eq!(stages, ["STAGE", "", "", "", "new"], "{table}");
        assert!(table.contains("    network  160         0.1 us  -"), "{table}");
        for none in [hosts(200, "away"), hosts(900, "")] {
            assert!(!screen(&out(Format::Table), &none).contains("network"));
        }
        let wide = screen(&out(Format::Wide), &hosts(200, ""));
        let lines = |name: &str| wide.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(["all  ", "a  ", "b  ", "c  "].map(lines), [4, 1, 1, 0], "{wide}");
    }

    #[test]
    fn spans_have_units() {
        let spans = [1_024, 81_920, 1_310_720, 2_147_483_648, u64::MAX].map(span);
        assert_eq!(spans, ["1.0 us", "81 us", "1.3 ms", "2.1 s", "> 17 s"]);
    }
}
