//! A pod's sheet, with the scheduler's explanation while it waits.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use podplane_api::{
    Object as _, Quantity,
    core::{Container, ContainerState, Event, Pod, Toleration},
    kinds::pod,
    pod_ips, table,
};
use podplane_client::Client;
use podplane_proto::scheduler::{ExplainPodRequest, ExplainPodResponse, PodState};

use super::{annotations, events, events_table, pairs, time};
use crate::{explanation, global::GlobalOptions, output::sheet::Sheet};

/// The time after which the sheet goes without the scheduler's explanation.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn sheet(
    client: &Client,
    global: Option<&GlobalOptions>,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Sheet> {
    let pod = client.namespaced::<Pod>(namespace).get(name).await?;
    let events = events(client, &pod).await?;
    let explained = match global {
        Some(global) if node_name(&pod).is_none() => explain(global, namespace, name).await,
        _ => None,
    };
    Ok(write(&pod, &events, explained.as_ref(), Timestamp::now()))
}

/// The scheduler's explanation; `None` unless one of this cluster answers in time.
async fn explain(
    global: &GlobalOptions,
    namespace: &str,
    name: &str,
) -> Option<ExplainPodResponse> {
    let request = ExplainPodRequest {
        namespace: namespace.into(),
        name: name.into(),
        ..ExplainPodRequest::default()
    };
    let asked = explanation::explain(global, None, &request, EXPLAIN_TIMEOUT);
    asked.await.ok()
}

fn node_name(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty())
}

fn write(
    pod: &Pod,
    events: &[Event],
    explained: Option<&ExplainPodResponse>,
    now: Timestamp,
) -> Sheet {
    let mut sheet = Sheet::default();
    let status = pod.status.as_ref();
    let spec = pod.spec.as_ref();
    let host_ip = status.and_then(|status| status.host_ip.as_deref());
    let node = node_name(pod).map(|node| match host_ip {
        Some(ip) => format!("{node}/{ip}"),
        None => node.into(),
    });
    sheet.field("Name", pod.name());
    sheet.field("Namespace", pod.namespace());
    sheet.field("Node", node.unwrap_or_else(|| table::NONE.into()));
    sheet.field(
        "Start Time",
        time(status.and_then(|status| status.start_time.as_ref())),
    );
    sheet.fields("Labels", pairs(pod.metadata.labels.as_ref(), "="));
    sheet.fields("Annotations", annotations(pod));
    sheet.field("Status", pod::shown_status(pod));
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        let grace = pod
            .metadata
            .deletion_grace_period_seconds
            .unwrap_or_default();
        sheet.field(
            "Terminating",
            format!("by {} (grace period {grace}s)", deleted.0),
        );
    }
    for (key, text) in [
        ("Reason", status.and_then(|status| status.reason.as_deref())),
        (
            "Message",
            status.and_then(|status| status.message.as_deref()),
        ),
    ] {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            sheet.field(key, text);
        }
    }
    sheet.field("IP", pod::ips(pod));
    sheet.field("Host Network", pod_ips::is_host_network(pod).to_string());
    let owners = pod.metadata.owner_references.iter().flatten();
    let controllers = owners.filter(|owner| owner.controller == Some(true));
    for owner in controllers {
        sheet.field("Controlled By", format!("{}/{}", owner.kind, owner.name));
    }
    let containers = spec
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default();
    sheet.section("Containers", |sheet| {
        containers
            .iter()
            .for_each(|each| container(sheet, pod, each));
    });
    conditions(&mut sheet, pod);
    sheet.fields(
        "Node-Selectors",
        pairs(spec.and_then(|spec| spec.node_selector.as_ref()), "="),
    );
    let tolerations = spec
        .iter()
        .flat_map(|spec| spec.tolerations.iter().flatten());
    sheet.fields("Tolerations", tolerations.map(toleration));
    if let Some(explained) = explained {
        scheduling(&mut sheet, explained);
    }
    events_table(&mut sheet, events, now);
    sheet
}

fn container(sheet: &mut Sheet, pod: &Pod, container: &Container) {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let status = statuses
        .into_iter()
        .find(|status| status.name == container.name);
    sheet.section(&container.name, |sheet| {
        sheet.field("Image", container.image.as_deref().unwrap_or(table::NONE));
        if let Some(status) = status {
            sheet.field("State", state(status.state.as_ref()));
            sheet.field("Ready", status.ready.to_string());
            sheet.field("Restart Count", status.restart_count.to_string());
        }
        let resources = container.resources.as_ref();
        for (key, quantities) in [
            (
                "Limits",
                resources.and_then(|resources| resources.limits.as_ref()),
            ),
            (
                "Requests",
                resources.and_then(|resources| resources.requests.as_ref()),
            ),
        ] {
            if let Some(quantities) = quantities {
                sheet.field(key, listed(quantities));
            }
        }
    });
}

fn listed(quantities: &BTreeMap<String, Quantity>) -> String {
    let each: Vec<_> = quantities
        .iter()
        .map(|(resource, quantity)| format!("{resource} {}", quantity.0))
        .collect();
    each.join(", ")
}

fn state(state: Option<&ContainerState>) -> String {
    let because = |what: &str, reason: &Option<String>| match reason.as_deref() {
        Some(reason) if !reason.is_empty() => format!("{what} ({reason})"),
        _ => what.into(),
    };
    match state {
        Some(ContainerState {
            running: Some(running),
            ..
        }) => match &running.started_at {
            Some(started) => format!("Running since {}", started.0),
            None => "Running".into(),
        },
        Some(ContainerState {
            terminated: Some(ended),
            ..
        }) => because("Terminated", &ended.reason),
        Some(ContainerState {
            waiting: Some(waiting),
            ..
        }) => because("Waiting", &waiting.reason),
        Some(_) | None => "Waiting".into(),
    }
}

fn conditions(sheet: &mut Sheet, pod: &Pod) {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = conditions.map(|condition| {
        vec![
            condition.type_.clone(),
            condition.status.clone(),
            text(&condition.reason),
            text(&condition.message),
        ]
    });
    sheet.table(
        "Conditions",
        &["Type", "Status", "Reason", "Message"],
        rows.collect(),
    );
}

/// `key=value:effect op=Exists for 300s`
fn toleration(toleration: &Toleration) -> String {
    let part = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let mut text = part(&toleration.key).unwrap_or_default();
    if let Some(value) = part(&toleration.value) {
        text = format!("{text}={value}");
    }
    if let Some(effect) = part(&toleration.effect) {
        text = format!("{text}:{effect}");
    }
    if toleration.operator.as_deref() == Some("Exists") {
        text = format!("{text} op=Exists");
    }
    if let Some(seconds) = toleration.toleration_seconds {
        text = format!("{text} for {seconds}s");
    }
    text.trim_start().into()
}

fn scheduling(sheet: &mut Sheet, explained: &ExplainPodResponse) {
    let ExplainPodResponse {
        message,
        attempts,
        backoff_seconds,
        verdicts,
        ..
    } = explained;
    let state = match explained.state() {
        PodState::Unspecified | PodState::Unknown => "not seen yet",
        PodState::Queued => "queued",
        PodState::BackingOff => "backing off",
        PodState::Unschedulable => "waiting for something to change that can help",
        PodState::Assumed => "being bound",
        PodState::Bound => "bound",
        PodState::Hypothetical => "hypothetical",
    };
    sheet.section("Scheduling", |sheet| {
        sheet.field("State", state);
        sheet.field("Attempts", attempts.to_string());
        if let Some(seconds) = backoff_seconds {
            sheet.field("Next Attempt", format!("in {seconds:.1}s"));
        }
        if !message.is_empty() {
            sheet.field("Message", message);
        }
        if !verdicts.is_empty() {
            sheet.section("Nodes", |sheet| {
                for verdict in verdicts {
                    let detail = Some(verdict.detail.clone()).filter(|detail| !detail.is_empty());
                    let lines = verdict.reasons.iter().cloned().chain(detail);
                    sheet.fields(&verdict.node_name, lines.collect::<Vec<_>>());
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use podplane_proto::scheduler::NodeVerdict;
    use serde_json::json;

    use super::*;

    #[test]
    fn describes_why_a_pod_waits() {
        let pod: Pod = strict::decode(json!({"metadata": {"name": "web-0", "namespace": "default", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient pod IPs."}]}}))
        .unwrap();
        let event: Event = strict::decode(json!({"metadata": {"name": "e"}, "type": "Warning", "reason": "FailedScheduling",
            "message": "0/1 nodes are available: 1 Insufficient pod IPs.", "reportingComponent": "default-scheduler",
            "eventTime": "2026-01-01T00:00:00.000000Z", "involvedObject": {"kind": "Pod", "name": "web-0"}}))
        .unwrap();
        let explained = ExplainPodResponse {
            state: PodState::Unschedulable.into(),
            attempts: 2,
            verdicts: vec![NodeVerdict {
                node_name: "node-0".into(),
                reasons: vec!["Insufficient pod IPs".into()],
                detail: "waits for its podCIDR".into(),
                plugin: "PodIPs".into(),
            }],
            ..ExplainPodResponse::default()
        };
        let want = "\
Name:            web-0
Namespace:       default
Node:            <none>
Start Time:      <none>
Labels:          app=web
Annotations:     <none>
Status:          Pending
IP:              <none>
Host Network:    false
Containers:
  c:
    Image:     i
    Requests:  cpu 100m, memory 64Mi
Conditions:
  Type           Status   Reason          Message
  PodScheduled   False    Unschedulable   0/1 nodes are available: 1 Insufficient pod IPs.
Node-Selectors:  <none>
Tolerations:     node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
Scheduling:
  State:     waiting for something to change that can help
  Attempts:  2
  Nodes:
    node-0:  Insufficient pod IPs
             waits for its podCIDR
Events:
  Type      Reason             Age   From                Message
  Warning   FailedScheduling   5s    default-scheduler   0/1 nodes are available: 1 Insufficient pod IPs.";
        let now = "2026-01-01T00:00:05Z".parse().unwrap();
        assert_eq!(
            write(&pod, &[event], Some(&explained), now).to_string(),
            want
        );
    }
}
