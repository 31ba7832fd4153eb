//! The page of a run: every lane is there, and every fault that the run counted; it is well-formed,
//! and small enough to be opened.

use atoll_sim::fault::FaultKind;
use atoll_sim::run::{Options, run_one};
use atoll_sim::timeline::page;

/// Every element is closed, in order; returns how many there were.
fn well_formed(page: &str) -> usize {
    const VOID: &[&str] = &["meta", "input", "!doctype"];
    let (mut open, mut elements, mut rest) = (Vec::new(), 0, page);
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        let name = tag.split([' ', '\n']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "near {}", rest.get(..80).unwrap_or(rest));
        } else if !VOID.contains(&name) {
            elements += 1;
            // What is inside is no markup.
            if matches!(name, "script" | "style") {
                let close = format!("</{name}>");
                rest = &rest[rest.find(&close).expect("it is closed") + close.len()..];
            } else {
                open.push(name);
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    elements
}

#[test]
fn a_page_shows_all_hosts_and_all_faults_of_the_run() {
    for seed in 0..4 {
        let options = Options { ops: 60, trace: true, ..Options::default() };
        let outcome = run_one(seed, &options);
        let hosts = outcome.lines.iter().filter_map(|l| l.host).max().unwrap();
        let page = page(&options, &outcome);
        assert!(well_formed(&page) > 50);
        assert!(page.len() < 3_000_000, "{} bytes", page.len());
        for host in 0..=hosts {
            assert!(page.contains(&format!("<tr data-lane=\"h{host}\">")), "h{host}");
            assert!(page.contains(&format!("[\"h{host}\",[[\"program\",[[")), "h{host}");
        }
        for (kind, count) in FaultKind::ALL.iter().zip(&outcome.faults) {
            let row = format!("<td>{}</td>", kind.name());
            let counted = format!("<td>{count}</td></tr>");
            let shown = page.lines().find(|l| l.contains(&row) && l.ends_with(&counted));
            // An event may come and change nothing.
            let befell = outcome.events.iter().any(|event| event.kind == *kind);
            assert_eq!(shown.is_some(), *count > 0 || befell, "{}", kind.name());
        }
        assert!(page.contains("\"owns v0\"") && page.contains(" in epoch "));
        assert!(page.contains("<td class=\"pass\">holds</td>"));
        // Nothing is fetched.
        assert!(!page.contains("http") && !page.contains("src="));
    }
}

#[test]
fn what_was_found_is_shown_as_violated_and_cannot_change_the_page() {
    let options = Options { ops: 30, reference_store: true, trace: true, ..Options::default() };
    let mut outcome = run_one(1, &options);
    outcome.violations.push("volume v0: copy on h1 of </script><b> shows nothing".into());
    outcome.lines.last_mut().unwrap().text = "@DATA@ </table>".into();
    outcome.lines.last_mut().unwrap().layer = "node";
    let page = page(&options, &outcome);
    well_formed(&page);
    assert!(page.contains("<td class=\"fail\">violated</td><td>every host and every copy"));
    assert!(page.contains("of &lt;/script&gt;&lt;b&gt; shows"));
    assert!(page.contains("1 violations") || page.contains("1 violation"));
}
