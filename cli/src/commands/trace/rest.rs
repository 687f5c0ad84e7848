//! The traces of a pod by REST, as the summary of podplane's API server has them.

use std::time::{Duration, SystemTime};

use podplane_api::{core::Pod, trace::DroppedSteps};
use podplane_client::Client;
use podplane_proto::trace::{Attribute, GetPodTraceRequest, GetPodTraceResponse, Span, Trace};
use podplane_summary::{SpanRow, TraceRow};

use super::awaits_more;

/// The name of the first step of a deletion.
const DELETION: &str = "delete";

/// Reads the traces. `server` is the name of the server, for an error.
///
/// # Errors
///
/// If the server is not podplane's, or has no trace of the pod.
pub(crate) async fn of_pod(
    client: &Client,
    server: &str,
    request: GetPodTraceRequest,
) -> anyhow::Result<GetPodTraceResponse> {
    let GetPodTraceRequest {
        namespace,
        name,
        uid,
    } = request;
    anyhow::ensure!(
        uid.is_empty(),
        "with --kubeconfig and --in-cluster a pod has a name: a UID needs --server or --data-dir"
    );
    let path = format!("pods/{namespace}/{name}/trace");
    let mut looks = 0;
    let row = loop {
        let row = client.summary::<TraceRow>(&path).await?;
        looks += 1;
        if !awaits_more(row.as_ref().and_then(last_end), looks).await {
            break row;
        }
    };
    let Some(row) = row else {
        let server = server.trim_end_matches('/');
        anyhow::bail!(
            "only podplane's API server keeps traces, and {server} is another one: `podplane explain` works with it"
        );
    };
    // The trace of a deleted pod is there, too.
    let pod = client.namespaced::<Pod>(&*namespace).get(&name).await;
    let uid = pod.ok().and_then(|pod| pod.metadata.uid);
    Ok(traces(row, namespace, name, uid.unwrap_or_default()))
}

/// The end of the last step: rows do not have the times at which they came.
fn last_end(row: &TraceRow) -> Option<SystemTime> {
    let spans = row.spans.iter();
    let ends = spans.map(|span| nanos(span.start).saturating_add(nanos(span.seconds)));
    SystemTime::from(row.began).checked_add(Duration::from_nanos(ends.max()?))
}

/// The rows as the traces that they were made of. Ids of spans are their places.
fn traces(row: TraceRow, namespace: String, name: String, uid: String) -> GetPodTraceResponse {
    let TraceRow {
        spans,
        began,
        dropped,
        ..
    } = row;
    let began = u64::try_from(began.as_nanosecond()).unwrap_or_default();
    let (mut creation, mut deletion) = (Vec::new(), Vec::new());
    // A parent comes before its parts.
    let mut is_deletion: Vec<bool> = Vec::with_capacity(spans.len());
    for (place, row) in spans.into_iter().enumerate() {
        let parent = row
            .parent
            .and_then(|parent| is_deletion.get(parent).copied());
        // A step whose parent is not known is of the trace before it.
        let before = is_deletion.last().copied().unwrap_or_default();
        let is_root = row.parent.is_none() && row.name == DELETION;
        let is_of_deletion = parent.unwrap_or(is_root || before);
        is_deletion.push(is_of_deletion);
        match is_of_deletion {
            true => deletion.push(span(place, row, began)),
            false => creation.push(span(place, row, began)),
        }
    }
    let trace = |spans: Vec<Span>, dropped: DroppedSteps| {
        (!spans.is_empty()).then(|| Trace {
            trace_id: uid.replace('-', ""),
            spans,
            dropped_spans: dropped.count,
            dropped_attempts: dropped.attempts.into_iter().map(Into::into).collect(),
            ..Trace::default()
        })
    };
    GetPodTraceResponse {
        creation: trace(creation, dropped),
        deletion: trace(deletion, DroppedSteps::default()),
        namespace,
        name,
        uid,
    }
}

fn span(place: usize, row: SpanRow, began: u64) -> Span {
    let id = |place: usize| format!("{:x}", place + 1);
    let start = began.saturating_add(nanos(row.start));
    let attributes = row.attributes.into_iter();
    Span {
        span_id: id(place),
        parent_span_id: row.parent.map(id).unwrap_or_default(),
        name: row.name,
        service: row.service,
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(nanos(row.seconds)),
        error: row.error,
        attributes: attributes
            .map(|(key, value)| Attribute { key, value })
            .collect(),
        links: Vec::new(),
    }
}

fn nanos(seconds: f64) -> u64 {
    let duration = Duration::try_from_secs_f64(seconds.max(0.0));
    let nanos = duration.unwrap_or_default().as_nanos();
    u64::try_from(nanos).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podplane_api::trace::DroppedAttempts;

    use super::*;

    #[test]
    fn spans_belong_to_the_creation_or_the_deletion() {
        let row = |name: &str, start: f64, parent: Option<usize>| SpanRow {
            name: name.into(),
            service: "apiserver".into(),
            process: "apiserver".into(),
            start,
            seconds: 0.25,
            parent,
            attributes: BTreeMap::from([("k".into(), "v".into())]),
            error: None,
        };
        let rows = TraceRow {
            spans: vec![
                row("create", 0.0, None),
                row("bind", 0.5, Some(0)),
                row("lost parent", 1.0, None),
                row("delete", 9.0, None),
                row("remove", 9.5, Some(3)),
            ],
            folds: Vec::new(),
            gaps: Vec::new(),
            dropped: DroppedSteps {
                count: 7,
                attempts: vec![DroppedAttempts {
                    name: "sync".into(),
                    process: "kubelet".into(),
                    count: 3,
                }],
            },
            began: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let answer = traces(rows, "default".into(), "web".into(), "a-b".into());
        let names = |trace: &Trace| {
            let names = trace.spans.iter().map(|span| span.name.clone());
            names.collect::<Vec<_>>()
        };
        let (creation, deletion) = (answer.creation.unwrap(), answer.deletion.unwrap());
        assert_eq!(names(&creation), ["create", "bind", "lost parent"]);
        assert_eq!(names(&deletion), ["delete", "remove"]);
        assert_eq!(
            (creation.trace_id.as_str(), creation.dropped_spans),
            ("ab", 7)
        );
        assert_eq!(creation.dropped_attempts[0].count, 3);
        let bind = &creation.spans[1];
        assert_eq!(
            (bind.span_id.as_str(), bind.parent_span_id.as_str()),
            ("2", "1")
        );
        assert_eq!(bind.start_time_unix_nano, 1_767_225_600_500_000_000);
        assert_eq!(
            bind.end_time_unix_nano - bind.start_time_unix_nano,
            250_000_000
        );
    }
}
