//! The metrics that a service serves at `/metrics`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use podplane_http_client::HttpClient;
use prometheus_parse::{Scrape, Value};

use crate::problem::suggestion;

/// Returns the series of a metric that have these labels, each with its labels and its value.
///
/// # Errors
///
/// If the service does not answer, or there is no such metric or label.
pub(crate) async fn series(
    service: &HttpClient,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Vec<(String, f64)>> {
    let answer = service.get("/metrics").await?.document();
    let answer = answer.context("failed to get /metrics")?;
    read(answer.as_str().unwrap_or_default(), name, labels)
}

fn read(text: &str, name: &str, labels: &BTreeMap<String, String>) -> Result<Vec<(String, f64)>> {
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let scrape = Scrape::parse(lines).context("failed to read the metrics")?;
    let families = || scrape.docs.keys().map(String::as_str);
    let names = || families().chain(scrape.samples.iter().map(|sample| sample.metric.as_str()));
    let is_known = |known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| ["", "_total", "_count", "_sum"].contains(&rest))
    };
    // A family without series counts as 0. An unknown family would do so for ever.
    ensure!(
        names().any(is_known),
        "there is no metric {name}{}",
        suggestion(name, names())
    );
    let of_name = || scrape.samples.iter().filter(|sample| sample.metric == name);
    let known = || of_name().flat_map(|sample| sample.labels.keys().map(String::as_str));
    // A value of a label may appear later. A new name of a label does not, once there are series.
    let stray = labels
        .keys()
        .find(|label| known().all(|known| known != label.as_str()));
    if let Some(stray) = stray.filter(|_| of_name().next().is_some()) {
        bail!("{name} has no label {stray}{}", suggestion(stray, known()));
    }
    let matching = of_name().filter(|sample| {
        labels
            .iter()
            .all(|(label, value)| sample.labels.get(label) == Some(value))
    });
    let number = |value: &Value| match value {
        Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => Some(*number),
        Value::Histogram(_) | Value::Summary(_) => None,
    };
    let mut found: Vec<_> = matching
        .filter_map(|sample| {
            let labels = sample.labels.to_string();
            Some((format!("{name}{{{labels}}}"), number(&sample.value)?))
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP pending Pods.\n# TYPE pending gauge\npending{queue=\"active\"} 2\npending{queue=\"unschedulable\"} 3\n\
        # TYPE seconds histogram\nseconds_sum{verb=\"get\"} 1.5\nseconds_count{verb=\"get\"} 4\nseconds_bucket{le=\"0.1\",verb=\"get\"} 3\n\
        seconds_bucket{le=\"+Inf\",verb=\"get\"} 4\n# HELP none_yet Any.\n# TYPE none_yet counter\n# TYPE done counter\ndone_total 7\n# EOF\n";

    #[test]
    fn selects_series_by_labels() {
        let labels = |labels: &[(&str, &str)]| {
            let owned = labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            owned.collect::<BTreeMap<_, _>>()
        };
        let values = |name: &str, with: &[(&str, &str)]| {
            let found = read(TEXT, name, &labels(with)).unwrap();
            found
                .into_iter()
                .map(|(_, value)| value)
                .collect::<Vec<_>>()
        };
        assert_eq!(values("pending", &[]), [2.0, 3.0]);
        assert_eq!(values("pending", &[("queue", "unschedulable")]), [3.0]);
        assert_eq!(values("seconds_count", &[]), [4.0]);
        assert_eq!(values("done_total", &[]), [7.0]);
        assert!(values("pending", &[("queue", "none")]).is_empty());
        let error = read(TEXT, "pendin", &labels(&[])).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no metric pendin; did you mean \"pending\"?"
        );
        let error = read(TEXT, "pending", &labels(&[("queu", "active")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "pending has no label queu; did you mean \"queue\"?"
        );
        assert!(values("none_yet", &[("of", "any")]).is_empty());
    }
}
