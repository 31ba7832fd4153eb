//! The metrics page in the text format of Prometheus, from a snapshot.

use crate::control::{Sample, Value};
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
                let kind = match sample.value {
                    Value::Gauge(_) => "gauge",
                    Value::Counter(_) => "counter",
                    Value::Histogram { .. } => "histogram",
                };
                let _ = writeln!(page, "# HELP {name} {}", sample.help);
                let _ = writeln!(page, "# TYPE {name} {kind}");
                head = false;
            }
            match &sample.value {
                Value::Gauge(value) | Value::Counter(value) => {
                    line(&mut page, sample, "", None, *value);
                }
                Value::Histogram { at_most, sum, count } => {
                    for (bound, count) in at_most {
                        line(&mut page, sample, "_bucket", Some(&bound.to_string()), *count as f64);
                    }
                    line(&mut page, sample, "_bucket", Some("+Inf"), *count as f64);
                    line(&mut page, sample, "_sum", None, *sum);
                    line(&mut page, sample, "_count", None, *count as f64);
                }
            }
        }
    }
    page
}

/// One line; `at_most` is the bound of a bucket.
fn line(page: &mut String, sample: &Sample, suffix: &str, at_most: Option<&str>, value: f64) {
    page.push_str(sample.name);
    page.push_str(suffix);
    let labels = sample.labels.iter().map(|(label, text)| (*label, text.as_str()));
    for (i, (label, text)) in labels.chain(at_most.map(|bound| ("le", bound))).enumerate() {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(page, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
    }
    if !sample.labels.is_empty() || at_most.is_some() {
        page.push('}');
    }
    let _ = writeln!(page, " {value}");
}

#[cfg(test)]
mod tests {
    use super::page;
    use crate::control::{Sample, Value};

    fn sample(name: &'static str, value: Value, label: Option<&str>) -> Sample {
        let labels = label.map(|l| ("volume", l.to_owned())).into_iter().collect();
        Sample { name, help: "Help.", labels, value }
    }

    #[test]
    fn samples_of_one_name_stand_together_and_labels_are_escaped() {
        let samples = [
            sample("a_total", Value::Counter(1.0), Some("x\"y")),
            sample("b", Value::Gauge(0.5), None),
            sample("a_total", Value::Counter(2.0), Some("z")),
        ];
        assert_eq!(
            page(&samples),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total{volume=\"x\\\"y\"} 1\n\
             a_total{volume=\"z\"} 2\n# HELP b Help.\n# TYPE b gauge\nb 0.5\n"
        );
    }

    #[test]
    fn a_histogram_ends_with_a_bucket_of_everything() {
        let histogram =
            |count| Value::Histogram { at_most: vec![(1e-6, 1), (0.5, 3)], sum: 0.75, count };
        let samples = [sample("c", histogram(4), Some("v")), sample("c", histogram(3), None)];
        assert_eq!(
            page(&samples),
            "# HELP c Help.\n# TYPE c histogram\n\
             c_bucket{volume=\"v\",le=\"0.000001\"} 1\nc_bucket{volume=\"v\",le=\"0.5\"} 3\n\
             c_bucket{volume=\"v\",le=\"+Inf\"} 4\nc_sum{volume=\"v\"} 0.75\n\
             c_count{volume=\"v\"} 4\n\
             c_bucket{le=\"0.000001\"} 1\nc_bucket{le=\"0.5\"} 3\nc_bucket{le=\"+Inf\"} 3\n\
             c_sum 0.75\nc_count 3\n"
        );
    }
}
