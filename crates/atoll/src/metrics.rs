//! The metrics page in the text format of Prometheus, from a snapshot.

use crate::control::Sample;
use std::fmt::Write;

/// The page. Samples of one name follow each other, in the order of their first appearance.
pub fn page(samples: &[Sample]) -> String {
    let mut page = String::new();
    let mut names: Vec<&str> = Vec::new();
    for sample in samples {
        if !names.contains(&sample.name) {
            names.push(sample.name);
        }
    }
    for name in names {
        let mut head = true;
        for sample in samples.iter().filter(|sample| sample.name == name) {
            if head {
                let kind = if sample.counter { "counter" } else { "gauge" };
                let _ = writeln!(page, "# HELP {name} {}", sample.help);
                let _ = writeln!(page, "# TYPE {name} {kind}");
                head = false;
            }
            page.push_str(name);
            for (i, (label, value)) in sample.labels.iter().enumerate() {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(page, "{}{label}=\"{value}\"", if i == 0 { '{' } else { ',' });
            }
            if !sample.labels.is_empty() {
                page.push('}');
            }
            let _ = writeln!(page, " {}", sample.value);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::page;
    use crate::control::Sample;

    #[test]
    fn samples_of_one_name_stand_together_and_labels_are_escaped() {
        let sample = |name, value: f64, label: Option<&str>| Sample {
            name,
            help: "Help.",
            counter: name == "a_total",
            labels: label.map(|l| ("volume", l.to_owned())).into_iter().collect(),
            value,
        };
        let samples = [
            sample("a_total", 1.0, Some("x\"y")),
            sample("b", 0.5, None),
            sample("a_total", 2.0, Some("z")),
        ];
        assert_eq!(
            page(&samples),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total{volume=\"x\\\"y\"} 1\n\
             a_total{volume=\"z\"} 2\n# HELP b Help.\n# TYPE b gauge\nb 0.5\n"
        );
    }
}
