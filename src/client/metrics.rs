//! The server's metrics, in the text format of Prometheus. OpenMetrics has the same sample lines.

use super::error::ClientError;

/// The prefix of each name.
const PREFIX: &str = "streamdoor_";

/// The metrics of one moment. Names are without `streamdoor_`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<MetricSample>,
}

#[derive(Clone, Debug, PartialEq)]
struct MetricSample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Parses the text of `/metrics`.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if a line is not a sample.
    pub fn parse(text: &[u8]) -> Result<Metrics, ClientError> {
        let text = std::str::from_utf8(text)
            .map_err(|_| ClientError::protocol("the metrics are not UTF-8"))?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| {
            sample(line)
                .ok_or_else(|| ClientError::protocol("a line of the metrics is not a sample"))
        });
        Ok(Metrics { samples: samples.collect::<Result<_, _>>()? })
    }

    /// The sum over all samples of that name; `None` if there is no such sample.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.values(name).reduce(|sum, value| sum + value)
    }

    /// The largest value of all samples of that name; `None` if there is no such sample.
    pub fn max(&self, name: &str) -> Option<f64> {
        self.values(name).reduce(f64::max)
    }

    /// The buckets of a histogram, summed over all shards and labels. Each is an upper bound, and
    /// the number of values up to it. The last bound is infinite. Empty if there is no such
    /// histogram.
    pub fn buckets(&self, name: &str) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.samples.iter().filter(|sample| sample.name == name) {
            let bound = sample.labels.iter().find(|(key, _)| key == "le");
            let Some(bound) = bound.and_then(|(_, bound)| bound.parse().ok()) else { continue };
            match buckets.iter_mut().find(|bucket| bucket.0 == bound) {
                Some(bucket) => bucket.1 += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        buckets
    }

    /// The sum over the samples of that name whose `label` has the value `is`; `None` if there are
    /// none.
    pub fn sum_where(&self, name: &str, label: &str, is: &str) -> Option<f64> {
        let is_labelled = |sample: &&MetricSample| {
            sample.labels.iter().any(|(key, value)| key == label && value == is)
        };
        let samples = self.samples.iter().filter(|sample| sample.name == name).filter(is_labelled);
        samples.map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// The value of `label` in the largest sample of that name, and the sample; `None` if there is
    /// none.
    pub fn max_labelled(&self, name: &str, label: &str) -> Option<(&str, f64)> {
        let samples = self.samples.iter().filter(|sample| sample.name == name);
        let largest = samples.max_by(|one, other| one.value.total_cmp(&other.value))?;
        let (_, text) = largest.labels.iter().find(|(key, _)| key == label)?;
        Some((text, largest.value))
    }

    fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.samples.iter().filter(move |sample| sample.name == name).map(|sample| sample.value)
    }
}

/// Reads `name{label="value",…} number`. Text after the number is ignored.
fn sample(line: &str) -> Option<MetricSample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    let name = name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    Some(MetricSample { name, labels, value })
}

/// The labels before `}`, and the text after it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &quoted[end..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_summed_over_shards_and_found_by_label() {
        let text = b"# HELP streamdoor_a_total A.\n# TYPE streamdoor_a_total counter\n\
            streamdoor_a_total{shard=\"0\"} 3\nstreamdoor_a_total{shard=\"1\"} 4 1700000000\n\
            streamdoor_e{shard=\"0\",state=\"run\\\"ning\\n\"} 2\n\
            streamdoor_e{state=\"queued\",shard=\"1\",} 5\nother 1.5\n# EOF\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!((metrics.sum("a_total"), metrics.max("a_total")), (Some(7.0), Some(4.0)));
        assert_eq!(metrics.sum_where("e", "state", "run\"ning\n"), Some(2.0));
        assert_eq!(metrics.sum_where("e", "state", "queued"), Some(5.0));
        assert_eq!(metrics.max_labelled("e", "state"), Some(("queued", 5.0)));
        assert_eq!(metrics.max_labelled("other", "state"), None);
        assert_eq!((metrics.sum("other"), metrics.sum("none")), (Some(1.5), None));
    }

    #[test]
    fn buckets_are_summed_and_sorted() {
        let text = b"h_bucket{shard=\"0\",le=\"+Inf\"} 9\nh_bucket{shard=\"0\",le=\"1e-6\"} 4\n\
            h_bucket{shard=\"1\",le=\"1e-6\"} 1\nh_bucket{shard=\"1\",le=\"+Inf\"} 2\n\
            h_bucket{le=\"x\"} 7\nh_sum 3\nh_count 11\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!(metrics.buckets("h"), [(1e-6, 5.0), (f64::INFINITY, 11.0)]);
        assert_eq!(metrics.buckets("g"), []);
    }

    #[test]
    fn what_is_no_sample_is_refused() {
        for text in ["a", "{} 1", "a{ 1", "a{b} 1", "a{b=\"} 1", "a{b=\"\\", "a{} x", "ä 1", "a "]
        {
            assert!(Metrics::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Metrics::parse(b"\xFF").is_err());
        assert_eq!(Metrics::parse(b"").unwrap(), Metrics::default());
    }
}
