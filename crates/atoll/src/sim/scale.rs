//! `atoll sim scale`: what clusters of modelled hardware do, as tables that a document can take.

use crate::cli::args::{ScalePoints, SimScale};
use crate::cli::context::{Context, interrupted};
use crate::cli::out::{Format, Run, yaml};
use atoll_api::{Code, Problem};
use atoll_sim::scale::{Bound, Point, Row, Scale, Sheet, Workload, sheets};
use atoll_world::Nanos;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// A sheet and its rows, one a workload of each point.
type Measured = Vec<(Sheet, Vec<Row>)>;

pub(super) async fn run(context: &Context, asked: SimScale) -> Run {
    let sheets = asked_for(&asked.points).map_or_else(sheets, |sheet| vec![sheet]);
    let all: usize = sheets.iter().map(|s| s.points.len() * s.workloads.len()).sum();
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, mut told) = mpsc::unbounded_channel();
    let (stopped, seed, ops) = (stop.clone(), asked.seed, asked.ops);
    let mut work = tokio::task::spawn_blocking(move || -> Result<Measured, String> {
        let scale = Scale::new(seed, ops, asked.cpu_4k, asked.cpu_1m);
        let mut measured = Vec::new();
        for sheet in sheets {
            let mut rows = Vec::new();
            for &point in &sheet.points {
                for &workload in &sheet.workloads {
                    if stopped.load(Ordering::Relaxed) {
                        return Ok(measured);
                    }
                    let row = scale.measure(point, workload)?;
                    // Nobody listens once the command is being interrupted.
                    let _ = tell.send(row);
                    rows.push(row);
                }
            }
            measured.push((sheet, rows));
        }
        Ok(measured)
    });
    let (mut done, mut was_interrupted) = (0, false);
    let ended = loop {
        tokio::select! {
            biased;
            () = context.interrupt.wait(), if !was_interrupted => {
                was_interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
            Some(row) = told.recv() => {
                done += 1;
                let (name, iops, bound) = (name(&row), row.iops(), limit(&row));
                context.out.note(&format!("{done} of {all}: {name} {iops:.0} IOPS, {bound}"));
            }
            ended = &mut work => break ended,
        }
    };
    if was_interrupted {
        return Err(interrupted(None));
    }
    let measured = ended.map_err(|_| Problem::new(Code::Failed, "a point died; see above"))?;
    let measured = measured.map_err(|why| Problem::new(Code::Failed, why))?;
    context.out.data(&match context.out.format {
        Format::Json => format!("{}\n", value(seed, ops, &measured)),
        Format::Yaml => yaml(&value(seed, ops, &measured)),
        Format::Name => {
            measured.iter().flat_map(|(_, rows)| rows).map(|row| name(row) + "\n").collect()
        }
        Format::Table => measured.iter().map(|(sheet, rows)| table(sheet, rows, false)).collect(),
        Format::Wide => measured.iter().map(|(sheet, rows)| table(sheet, rows, true)).collect(),
    })
}

/// Every combination of what was asked for; none if nothing was.
fn asked_for(asked: &ScalePoints) -> Option<Sheet> {
    let ScalePoints { hosts, cores, volumes, disk, net, clients, core_speed, workload } = asked;
    let counts = [hosts, cores, volumes, core_speed].into_iter().any(Option::is_some);
    if !counts && [disk.len(), net.len(), clients.len(), workload.len()] == [0; 4] {
        return None;
    }
    let default = Point::DEFAULT;
    let list = |asked: &Option<crate::cli::args::Counts>, default: u16| {
        asked.as_ref().map_or(vec![default], |counts| counts.0.clone())
    };
    let cores = list(cores, default.cores);
    // The same load whatever the cores.
    let volumes_a_host = cores.iter().copied().max().unwrap_or(1);
    let mut points = Vec::new();
    for &core_speed in &list(core_speed, default.core_speed) {
        for &place in or(clients, &[default.place]) {
            for &disk in or(disk, &[default.disk]) {
                for &net in or(net, &[default.net]) {
                    for &hosts in &list(hosts, default.hosts) {
                        for &volumes in &list(volumes, hosts * volumes_a_host) {
                            points.extend(cores.iter().map(|&cores| Point {
                                hosts,
                                cores,
                                volumes,
                                disk,
                                net,
                                place,
                                core_speed,
                            }));
                        }
                    }
                }
            }
        }
    }
    let small = [Workload::RandomWrite, Workload::RandomRead];
    Some(Sheet { title: "Points", points, workloads: or(workload, &small).to_vec() })
}

fn or<'a, T>(asked: &'a [T], default: &'a [T]) -> &'a [T] {
    if asked.is_empty() { default } else { asked }
}

/// What binds it, and how busy what is busiest is.
fn limit(row: &Row) -> String {
    let (busiest, used) = row.busiest();
    let used = format!("{} {:.0} %", busiest.name(), used * 100.0);
    match row.bound() {
        Bound::Depth => format!("depth ({used})"),
        _ => used,
    }
}

fn name(row: &Row) -> String {
    format!("{}: {}", row.point, row.workload.name())
}

/// A column of a point: its title and what it shows.
type Column = (&'static str, fn(&Point) -> String);

const COLUMNS: &[Column] = &[
    ("disk", |p| p.disk.name().into()),
    ("hosts", |p| p.hosts.to_string()),
    ("cores", |p| p.cores.to_string()),
    ("volumes", |p| p.volumes.to_string()),
    ("GbE", |p| p.net.name().into()),
    ("clients", |p| p.place.name().into()),
    ("core speed", |p| p.core_speed.to_string()),
];

/// How many times what one core a host does, if that was measured too.
fn times_one_core(row: &Row, rows: &[Row]) -> String {
    let of_one = Point { cores: 1, ..row.point };
    let one = rows.iter().find(|r| r.point == of_one && r.workload == row.workload);
    one.map_or("-".into(), |one| format!("{:.1}", row.iops() / one.iops()))
}

/// A sheet in Markdown: a line a point. What is the same for all points stands above it.
fn table(sheet: &Sheet, rows: &[Row], wide: bool) -> String {
    let is_same = |(_, show): &&Column| {
        sheet.points.iter().all(|point| show(point) == show(&sheet.points[0]))
    };
    let (same, differ): (Vec<_>, Vec<_>) = COLUMNS.iter().partition(is_same);
    let same: Vec<String> =
        same.iter().map(|(title, show)| format!("{title} {}", show(&sheet.points[0]))).collect();
    let mut head: Vec<String> = differ.iter().map(|(title, _)| (*title).into()).collect();
    let compares_cores = sheet.points.iter().any(|p| p.cores != sheet.points[0].cores);
    for workload in &sheet.workloads {
        let name = workload.name();
        let rate = if is_large(*workload) { "MB/s" } else { "IOPS" };
        head.push(format!("{name} {rate}"));
        if compares_cores {
            head.push("x 1 core".into());
        }
        head.extend(["mean us".into(), "p99 us".into()]);
        if wide {
            head.extend(["CPU us/IO".into(), "cpu %".into(), "disk %".into(), "nic %".into()]);
        }
        head.push("bound by".into());
    }
    let mut lines = vec![head];
    for of_point in rows.chunks(sheet.workloads.len()) {
        let point = &of_point[0].point;
        let mut line: Vec<String> = differ.iter().map(|(_, show)| show(point)).collect();
        for row in of_point {
            let rate = if is_large(row.workload) { row.mb_per_s() } else { row.iops() };
            line.push(format!("{rate:.0}"));
            if compares_cores {
                line.push(times_one_core(row, rows));
            }
            line.extend([row.mean, row.p99].map(us));
            if wide {
                line.push(format!("{:.1}", row.cpu_per_io.0 as f64 / 1e3));
                let percent = |used: f64| format!("{:.0}", used * 100.0);
                line.extend([row.cpu, row.disk, row.nic].map(percent));
            }
            line.push(limit(row));
        }
        lines.push(line);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = format!("{}: {}\n\n", sheet.title, same.join(", "));
    for (i, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let _ = writeln!(text, "| {} |", cells.collect::<Vec<_>>().join(" | "));
        if i == 0 {
            let rule: Vec<String> =
                widths.iter().map(|width| "-".repeat((*width).max(3))).collect();
            let _ = writeln!(text, "| {} |", rule.join(" | "));
        }
    }
    text + "\n"
}

fn is_large(workload: Workload) -> bool {
    workload.bytes() > 4096
}

fn us(time: Nanos) -> String {
    time.as_us().to_string()
}

fn value(seed: u64, ops: u64, measured: &Measured) -> Value {
    let row = |row: &Row| {
        let Point { hosts, cores, volumes, disk, net, place, core_speed } = row.point;
        json!({
            "hosts": hosts, "cores": cores, "volumes": volumes, "disk": disk.name(),
            "gbit": net.name(), "clients": place.name(), "core_speed": core_speed,
            "workload": row.workload.name(),
            "operations": row.ops, "virtual_ns": row.span.0, "iops": row.iops(),
            "mb_per_s": row.mb_per_s(), "mean_ns": row.mean.0, "p99_ns": row.p99.0,
            "cpu_ns_per_io": row.cpu_per_io.0, "cpu": row.cpu, "disk_used": row.disk,
            "nic": row.nic, "bound": row.bound().name(),
        })
    };
    let rows: Vec<Value> = measured.iter().flat_map(|(_, rows)| rows).map(row).collect();
    json!({ "kind": "SimScale", "version": 1, "item": { "seed": seed, "ops": ops, "rows": rows } })
}
