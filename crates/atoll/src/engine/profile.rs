//! How long the stages of I/O took on this host since its process began, in the words of the
//! interface and of the metrics page.
//!
//! Invariant: it only reads. What is noted, and how often, is the affair of `atoll_world::stages`.

use super::Engine;
use crate::control::{Sample, Value};
use atoll_api::Problem;
use atoll_api::types::{Profile, ProfileBucket, ProfileStage};
use atoll_world::stages::{BUCKETS, Histogram, upper_bound};
use atoll_world::{Nanos, Stage};

const HELP: &str = "How long stages of I/O took; of queue, peer, serve, log_queue and disk_read \
                    one in 16 is noted and counted, of the others each.";

impl Engine {
    /// What this host has noted.
    ///
    /// # Errors
    /// The host does not serve yet, or a shard does not tell.
    pub async fn profile(&self) -> Result<Profile, Problem> {
        self.running()?;
        let stages = self.shards.figures().await?.stages;
        Ok(Profile {
            host: self.config.host_name.clone(),
            uptime_ms: atoll_real::now().since(self.began).0 / 1_000_000,
            stages: Stage::ALL.into_iter().zip(&stages).map(|(stage, h)| told(stage, h)).collect(),
            detail: String::new(),
        })
    }

    /// The same for Prometheus, of what all shards have noted.
    pub fn stage_samples(&self, stages: &[Histogram]) -> Vec<Sample> {
        let host = &self.config.host_name;
        let sample = |(stage, histogram): (Stage, &Histogram)| Sample {
            name: "atoll_stage_seconds",
            help: HELP,
            labels: vec![("host", host.clone()), ("stage", stage.name().to_owned())],
            value: value(histogram),
        };
        Stage::ALL.into_iter().zip(stages).map(sample).collect()
    }
}

/// What a stage is, for people.
fn about(stage: Stage) -> &'static str {
    match stage {
        Stage::Read => "a client's read, from its last byte to its answer",
        Stage::Write => "a client's write, from its last byte to its answer",
        Stage::Queue => "until it is sent: permits, locks, slots",
        Stage::Peer => "a request to another host, while the log here works",
        Stage::Serve => "the work of the host that is asked",
        Stage::LogQueue => "an operation waits for its batch of the log",
        Stage::LogWrite => "the batch: one device write and flush",
        Stage::DiskRead => "a read of a device",
        Stage::DiskWrite => "a write of a device: log, blocks on their way home",
        Stage::Reply => "until the client's socket has taken its answers",
    }
}

fn told(stage: Stage, histogram: &Histogram) -> ProfileStage {
    let noted = histogram.count();
    let buckets = histogram.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    let bucket = |(index, &count)| {
        let below = upper_bound(index);
        ProfileBucket { below_ns: (below != Nanos::NEVER).then_some(below.0), count }
    };
    ProfileStage {
        stage: stage.name().into(),
        about: about(stage).into(),
        count: noted * stage.sampled(),
        sampled: stage.sampled(),
        noted,
        noted_ns: histogram.sum.0,
        mean_ns: histogram.sum.0.checked_div(noted).unwrap_or(0),
        buckets: buckets.map(bucket).collect(),
    }
}

/// Bounds are powers of two in nanoseconds, 1.024 us to 17 s: four times as many in the API would
/// be a thousand time series a host here.
fn value(histogram: &Histogram) -> Value {
    let mut at_most = Vec::new();
    let mut below = 0;
    for (index, count) in histogram.buckets[..BUCKETS - 1].iter().enumerate() {
        below += count;
        let bound = upper_bound(index);
        if bound.0.is_power_of_two() {
            at_most.push((bound.as_secs_f64(), below));
        }
    }
    Value::Histogram { at_most, sum: histogram.sum.as_secs_f64(), count: histogram.count() }
}

#[cfg(test)]
mod tests {
    use super::{HELP, about, told, value};
    use crate::control::Value;
    use atoll_api::types::ProfileBucket;
    use atoll_world::stages::{Histogram, SAMPLE_EVERY};
    use atoll_world::{Nanos, Stage, Stages};

    fn noted(spans: &[Nanos]) -> Histogram {
        let stages = Stages::default();
        spans.iter().for_each(|span| stages.note(Stage::Queue, *span));
        stages.histogram(Stage::Queue)
    }

    #[test]
    fn every_stage_is_described_and_the_help_names_those_that_are_sampled() {
        let words: Vec<&str> = HELP.split([' ', ',', ';']).collect();
        for stage in Stage::ALL {
            assert!(about(stage).len() <= 60, "{stage:?}");
            assert_eq!(words.contains(&stage.name()), stage.sampled() > 1, "{stage:?}");
        }
        assert!(HELP.contains(&format!("one in {SAMPLE_EVERY} is noted")));
    }

    #[test]
    fn the_interface_has_the_buckets_with_something_in_them() {
        let us = Nanos::from_us;
        let told = told(Stage::Queue, &noted(&[us(1), us(50), us(50), Nanos::from_secs(20)]));
        assert_eq!((told.noted, told.count, told.sampled), (4, 64, 16));
        assert_eq!((told.noted_ns, told.mean_ns), (20_000_101_000, 5_000_025_250));
        let bucket = |below_ns, count| ProfileBucket { below_ns, count };
        let expected = [bucket(Some(1_024), 1), bucket(Some(57_344), 2), bucket(None, 1)];
        assert_eq!(told.buckets, expected);
    }

    #[test]
    fn the_metrics_have_a_bucket_for_every_power_of_two() {
        let us = Nanos::from_us;
        let histogram = noted(&[us(1), us(50), us(60), us(70), Nanos::from_secs(20)]);
        let Value::Histogram { at_most, sum, count } = value(&histogram) else { panic!() };
        assert_eq!((at_most.len(), count), (25, 5));
        assert_eq!(at_most[0], (1.024e-6, 1));
        assert_eq!(at_most[5..7], [(32.768e-6, 1), (65.536e-6, 3)]);
        assert_eq!(at_most[24], (17.179869184, 4));
        assert!((sum - 20.000_181).abs() < 1e-9);
    }
}
