use super::*;
use crate::{
    config::IpPolicy,
    testing::{AsInfo as _, NodeBuilder, PodBuilder},
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Tries every ready pod; returns the placed ones, and the messages of the others.
fn settle(scheduler: &mut Scheduler, now: Duration) -> (Vec<String>, Vec<String>) {
    let (mut placed, mut messages) = (Vec::new(), Vec::new());
    while let Some(Attempt { pod, outcome, .. }) = scheduler.attempt(now) {
        match outcome {
            Ok(_) => placed.push(pod.key.name.clone()),
            Err(message) => messages.push(message),
        }
    }
    (placed, messages)
}

/// Story A: one node, two hostNetwork pods first, then nine others.
fn story(policy: IpPolicy, node: &NodeBuilder) -> (Scheduler, usize, usize, Vec<String>) {
    let mut scheduler = Scheduler::new(policy);
    scheduler.apply_node(Arc::new(node.node()), s(0));
    for n in 0..2 {
        let pod = PodBuilder::new(&format!("host-{n}")).host_network();
        scheduler.apply_pod(pod.info(), s(0));
    }
    for n in 0..9 {
        scheduler.apply_pod(PodBuilder::new(&format!("other-{n}")).info(), s(1));
    }
    let (placed, messages) = settle(&mut scheduler, s(1));
    let host = placed
        .iter()
        .filter(|name| name.starts_with("host"))
        .count();
    let others = placed.len() - host;
    (scheduler, host, others, messages)
}

fn block(cidr: &str, pod_ips: u32) -> NodeBuilder {
    NodeBuilder::new("n").block(cidr, pod_ips)
}

#[test]
fn story_a_has_the_documented_numbers() {
    use IpPolicy::{Off, PodCidr, Resource};
    let ips = "0/1 nodes are available: 1 Insufficient pod IPs.";
    let pods = "0/1 nodes are available: 1 Too many pods.";
    let (p30, p29) = (block("10.255.0.0/30", 1), block("10.255.0.0/29", 5));
    let bare = NodeBuilder::new("n");
    let v6 = block("fd00::/64", 1);
    let waits = "0/1 nodes are available: 1 Insufficient pod IPs. n: waits for its podCIDR.";
    for (policy, node, host, others, message) in [
        (Off, &p30, 2, 9, ""),
        (Off, &p29, 2, 9, ""),
        (PodCidr, &p30, 1, 0, pods),
        (PodCidr, &p29, 2, 3, pods),
        (PodCidr, &block("10.255.0.0/31", 0), 0, 0, pods),
        (PodCidr, &block("10.255.0.0/32", 0), 0, 0, pods),
        (PodCidr, &v6, 2, 9, ""),
        (PodCidr, &bare, 2, 9, ""),
        (Resource, &p30, 2, 1, ips),
        (Resource, &p29, 2, 5, ips),
        (Resource, &block("10.255.0.0/31", 0), 2, 0, ips),
        (Resource, &v6, 2, 1, ips),
        (Resource, &bare, 2, 0, waits),
    ] {
        let (_, found_host, found_others, messages) = story(policy, node);
        let name = format!("{policy:?} {:?}", node.node().spec);
        assert_eq!((found_host, found_others), (host, others), "{name}");
        assert_eq!(messages, vec![message; 11 - host - others], "{name}");
    }
}

/// A full node with a freed address, and pods that wait for one.
fn waiting_for_an_address(pods: impl IntoIterator<Item = PodBuilder>) -> Scheduler {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(block("10.255.0.0/30", 1).node()), s(0));
    scheduler.apply_pod(PodBuilder::new("holder").on("n").info(), s(0));
    for pod in pods {
        scheduler.apply_pod(pod.info(), s(0));
    }
    settle(&mut scheduler, s(0));
    scheduler
}

#[test]
fn a_freed_address_wakes_one_pod_and_the_next_if_it_is_not_used() {
    let pods = (0..50).map(|n| PodBuilder::new(&format!("low-{n:02}")));
    let vip = PodBuilder::new("vip").priority(9);
    let mut scheduler = waiting_for_an_address(pods.chain([vip.clone()]));
    assert_eq!(scheduler.pending().unschedulable, 51);
    scheduler.delete_pod(&PodBuilder::new("holder").on("n").info(), s(20));
    let QueueLengths {
        active,
        backoff,
        unschedulable,
    } = scheduler.pending();
    assert_eq!((active + backoff, unschedulable), (1, 50));
    // The pod that was woken is deleted before its attempt.
    scheduler.delete_pod(&vip.info(), s(20));
    let (placed, messages) = settle(&mut scheduler, s(20));
    assert_eq!((placed, messages.len()), (vec!["low-00".to_owned()], 0));
    assert_eq!(scheduler.pending().unschedulable, 49);
}

#[test]
fn room_that_a_woken_pod_does_not_use_wakes_the_next() {
    let picky = PodBuilder::new("picky").priority(9);
    let mut scheduler = waiting_for_an_address([picky.clone(), PodBuilder::new("plain")]);
    scheduler.delete_pod(&PodBuilder::new("holder").on("n").info(), s(20));
    // Before its attempt a better node appears.
    let better = NodeBuilder::new("better").block("10.255.1.0/24", 253);
    scheduler.apply_node(Arc::new(better.node()), s(20));
    let (mut placed, messages) = settle(&mut scheduler, s(20));
    placed.sort();
    assert_eq!(
        (placed, messages.len()),
        (vec!["picky".into(), "plain".into()], 0)
    );
    assert_eq!(scheduler.pending().unschedulable, 0);
}

#[test]
fn a_changed_node_renews_the_reasons_of_pods_that_it_has_no_room_for() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), s(0));
    for n in 0..3 {
        scheduler.apply_pod(PodBuilder::new(&format!("p{n}")).info(), s(0));
    }
    let short = "0/1 nodes are available: 1 Insufficient pod IPs.";
    let waits = format!("{short} n: waits for its podCIDR.");
    assert_eq!(settle(&mut scheduler, s(0)).1, vec![waits; 3]);
    scheduler.apply_node(Arc::new(block("10.255.0.0/30", 1).node()), s(20));
    let (placed, messages) = settle(&mut scheduler, s(20));
    assert_eq!((placed, messages), (vec!["p0".into()], vec![short.into()]));
    // One at a time, so that many waiting pods do not delay others.
    let next = scheduler.next_deadline().unwrap();
    assert_eq!(next, s(20) + Duration::from_millis(10));
    assert_eq!(settle(&mut scheduler, next).1, [short]);
    assert!(!scheduler.is_ready(s(100)));
}

#[test]
fn a_freed_address_does_not_wake_pods_that_other_filters_keep_away() {
    let big = PodBuilder::new("big").priority(9).ask("cpu", "9");
    let mut scheduler = waiting_for_an_address([big, PodBuilder::new("small")]);
    scheduler.delete_pod(&PodBuilder::new("holder").on("n").info(), s(20));
    let (placed, messages) = settle(&mut scheduler, s(20));
    assert_eq!((placed, messages.len()), (vec!["small".to_owned()], 0));
}

#[test]
fn a_refused_binding_is_tried_on_another_node_at_once() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    let node = |name: &str, block: &str| NodeBuilder::new(name).block(block, 5).node();
    scheduler.apply_node(Arc::new(node("a", "10.0.0.0/29")), s(0));
    scheduler.apply_node(Arc::new(node("b", "10.0.1.0/29")), s(0));
    let pod = PodBuilder::new("p").info();
    scheduler.apply_pod(pod, s(0));
    let refuse = |scheduler: &mut Scheduler, now| {
        let Attempt { pod, outcome, .. } = scheduler.attempt(now).unwrap();
        let node = outcome.unwrap();
        scheduler.bind_refused(&pod.uid, &node, "no address".into(), now);
        node.to_string()
    };
    let first = refuse(&mut scheduler, s(1));
    let second = refuse(&mut scheduler, s(1));
    assert_ne!(first, second);
    let (placed, messages) = settle(&mut scheduler, s(1));
    assert_eq!(placed, [""; 0]);
    assert_eq!(
        messages,
        ["0/2 nodes are available: 2 Insufficient pod IPs."]
    );
    assert_eq!(scheduler.next_deadline(), Some(s(2)));
    scheduler.tick(s(2));
    let (placed, _) = settle(&mut scheduler, s(2));
    assert_eq!(placed, ["p"], "the nodes are tried again");
}

#[test]
fn pod_cidr_policy_counts_host_network_pods() {
    let mut scheduler = Scheduler::new(IpPolicy::PodCidr);
    scheduler.apply_node(Arc::new(block("10.255.0.0/29", 5).node()), s(0));
    let system = PodBuilder::new("kube-proxy")
        .namespace("kube-system")
        .on("n");
    scheduler.apply_pod(system.info(), s(0));
    for n in 0..9 {
        scheduler.apply_pod(PodBuilder::new(&n.to_string()).info(), s(0));
    }
    assert_eq!(settle(&mut scheduler, s(0)).0.len(), 4);
}

#[test]
fn freed_address_serves_exactly_one_pod() {
    let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    let host = PodBuilder::new("host-0").host_network().on("n");
    scheduler.delete_pod(&host.info(), s(60));
    assert!(!scheduler.is_ready(s(60)), "that pod held no address");
    scheduler.delete_pod(&PodBuilder::new("other-0").on("n").info(), s(60));
    let (placed, messages) = settle(&mut scheduler, s(60));
    assert_eq!((placed.len(), messages.len()), (1, 0));
    assert!(!scheduler.is_ready(s(90)));
}

#[test]
fn wakes_no_pod_for_an_event_that_cannot_help() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    let busy = NodeBuilder::new("busy")
        .block("10.0.0.0/24", 253)
        .offer("cpu", "1");
    scheduler.apply_node(Arc::new(busy.node()), s(0));
    scheduler.apply_node(Arc::new(block("10.0.1.0/30", 0).node()), s(0));
    let light = PodBuilder::new("light").host_network().on("busy");
    scheduler.apply_pod(light.info(), s(0));
    scheduler.apply_pod(PodBuilder::new("p").ask("cpu", "2").info(), s(0));
    let message = "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient pod IPs.";
    assert_eq!(settle(&mut scheduler, s(0)).1, [message]);
    // One node has addresses, and now one pod less; but its cpu was short.
    scheduler.delete_pod(&light.info(), s(20));
    assert!(!scheduler.is_ready(s(20)));
}

#[test]
fn does_not_retry_a_pod_deleted_during_its_binding() {
    let mut scheduler = Scheduler::new(IpPolicy::Off);
    scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), s(0));
    let pod = PodBuilder::new("p");
    scheduler.apply_pod(pod.info(), s(0));
    assert_eq!(settle(&mut scheduler, s(0)).0, ["p"]);
    let leaving = serde_json::json!("2026-01-01T00:00:00Z");
    let leaving = pod.set("/metadata/deletionTimestamp", leaving);
    scheduler.apply_pod(leaving.info(), s(1));
    scheduler.bind_failed(&"p".into(), "conflict".into(), s(1));
    assert!(!scheduler.is_ready(s(100)));
    assert!(matches!(
        scheduler.explain(&"p".into()),
        PodExplanation::Unknown
    ));
}

#[test]
fn waits_for_an_address_that_outlives_its_pod() {
    let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    let node = block("10.255.0.0/30", 1);
    scheduler.apply_node(Arc::new(node.clone().allocated("1").node()), s(1));
    scheduler.delete_pod(&PodBuilder::new("other-0").on("n").info(), s(60));
    assert!(!scheduler.is_ready(s(60)), "the sandbox still holds it");
    scheduler.apply_node(Arc::new(node.allocated("0").node()), s(61));
    assert_eq!(settle(&mut scheduler, s(61)).0.len(), 1);
}

#[test]
fn pods_avoid_a_node_whose_addresses_are_orphaned() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    let node = |name: &str, cidr: &str| NodeBuilder::new(name).block(cidr, 5);
    // Four sandboxes of pods that are gone: one address of "a" is free, and all of "b".
    let stuck = node("a", "10.0.0.0/29").allocated("4").orphaned("4");
    let empty = node("b", "10.0.0.8/29").allocated("0").orphaned("0");
    scheduler.apply_node(Arc::new(stuck.node()), s(0));
    scheduler.apply_node(Arc::new(empty.node()), s(0));
    for n in 0..7 {
        scheduler.apply_pod(PodBuilder::new(&format!("p{n}")).info(), s(0));
    }
    let mut placed = Vec::new();
    while let Some(attempt) = scheduler.attempt(s(0)) {
        placed.extend(attempt.outcome.ok().map(|node| node.to_string()));
    }
    placed.sort();
    assert_eq!(placed, ["a", "b", "b", "b", "b", "b"]);
    let waiting = (0..7).map(|n| scheduler.explain(&format!("p{n}").as_str().into()));
    let messages: Vec<_> = waiting
        .filter_map(|explained| match explained {
            PodExplanation::Waiting { examination, .. } => {
                let (node, refusal) = examination.refusals().next()?;
                assert_eq!(node.as_str(), "a");
                Some(refusal.detail.as_ref().unwrap().text.clone())
            }
            _ => None,
        })
        .collect();
    let full = "0 of 5 IPs free: 1 pod, 4 orphaned, as its IPAM plugin reports";
    assert_eq!(messages, [full]);
}

#[test]
fn the_address_of_a_pod_deleted_by_force_is_not_free_before_its_kubelet_reports() {
    let report = |allocated: &str, orphaned: &str| {
        let node = block("10.255.0.0/30", 1);
        Arc::new(node.allocated(allocated).orphaned(orphaned).node())
    };
    // The node's report of the orphaned address may come before or after the deletion.
    for late in [true, false] {
        let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
        scheduler.apply_node(report("1", "0"), s(1));
        let holder = PodBuilder::new("other-0").on("n");
        if late {
            scheduler.delete_pod(&holder.info(), s(60));
            assert!(!scheduler.is_ready(s(60)));
            scheduler.apply_node(report("1", "1"), s(61));
        } else {
            scheduler.apply_node(report("1", "1"), s(60));
            scheduler.delete_pod(&holder.info(), s(61));
        }
        assert!(!scheduler.is_ready(s(61)), "late: {late}");
        scheduler.apply_node(report("0", "0"), s(62));
        assert_eq!(settle(&mut scheduler, s(62)).0.len(), 1, "late: {late}");
    }
    // The sandbox of a pod that has ended is gone before the object.
    let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    scheduler.apply_node(report("1", "0"), s(1));
    let ended = PodBuilder::new("other-0").on("n").ended("Succeeded", "");
    scheduler.delete_pod(&ended.info(), s(60));
    assert_eq!(settle(&mut scheduler, s(60)).0.len(), 1);
}

#[test]
fn pods_wait_for_a_node_and_for_its_block() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_pod(PodBuilder::new("p").info(), s(0));
    let none = "no nodes available to schedule pods".to_owned();
    assert_eq!(settle(&mut scheduler, s(0)).1, [none]);
    scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), s(10));
    let short = "0/1 nodes are available: 1 Insufficient pod IPs. n: waits for its podCIDR.";
    assert_eq!(settle(&mut scheduler, s(10)).1, [short]);
    let relabelled = NodeBuilder::new("n").label("k", "v");
    scheduler.apply_node(Arc::new(relabelled.node()), s(20));
    assert!(!scheduler.is_ready(s(20)), "a label gives no address");
    scheduler.apply_node(Arc::new(block("10.0.0.0/24", 253).node()), s(20));
    assert_eq!(settle(&mut scheduler, s(20)).0, ["p"]);
}

#[test]
fn frees_the_address_of_an_ended_pod_when_its_sandbox_is_gone() {
    let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    let holder = PodBuilder::new("other-0").on("n");
    let terminating = holder.clone().set(
        "/metadata/deletionTimestamp",
        serde_json::json!("2026-01-01T00:00:00Z"),
    );
    scheduler.apply_pod(terminating.info(), s(60));
    assert!(!scheduler.is_ready(s(60)));
    let ended = holder.ended("Succeeded", "");
    scheduler.apply_pod(ended.info(), s(61));
    assert!(!scheduler.is_ready(s(61)), "the phase alone frees nothing");
    scheduler.apply_pod(ended.without_sandbox().info(), s(62));
    assert_eq!(settle(&mut scheduler, s(62)).0.len(), 1);
}

#[test]
fn skips_a_node_without_addresses_until_it_reports() {
    let (mut scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    let refused = PodBuilder::new("other-0").on("n");
    scheduler.apply_pod(
        refused
            .ended("Failed", podplane_api::pod_ips::OUT_OF_POD_IPS)
            .without_sandbox()
            .info(),
        s(60),
    );
    assert!(!scheduler.is_ready(s(60)));
    let report = block("10.255.0.0/30", 1).heartbeat("2026-01-01T00:00:00Z");
    scheduler.apply_node(Arc::new(report.node()), s(61));
    assert_eq!(settle(&mut scheduler, s(61)).0.len(), 1);
}

#[test]
fn failed_binding_frees_the_address_and_is_retried() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(block("10.255.0.0/30", 1).node()), s(0));
    scheduler.apply_pod(PodBuilder::new("a").priority(1).info(), s(0));
    scheduler.apply_pod(PodBuilder::new("b").info(), s(0));
    assert_eq!(settle(&mut scheduler, s(0)).0, ["a"]);
    scheduler.bind_failed(&"a".into(), "no answer".into(), s(20));
    assert_eq!(settle(&mut scheduler, s(20)).0, ["b"]);
    assert!(!scheduler.is_ready(s(21)));
    let (placed, messages) = settle(&mut scheduler, s(22));
    assert_eq!(
        (placed.len(), messages.len()),
        (0, 1),
        "a was tried after its back-off"
    );
}

#[test]
fn older_event_does_not_undo_a_decision() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(block("10.0.0.0/24", 253).node()), s(0));
    let pod = PodBuilder::new("p");
    scheduler.apply_pod(pod.info(), s(0));
    assert_eq!(settle(&mut scheduler, s(0)).0, ["p"]);
    scheduler.apply_pod(pod.clone().ended("Pending", "condition").info(), s(1));
    assert!(!scheduler.is_ready(s(100)));
    assert!(matches!(
        scheduler.explain(&"p".into()),
        PodExplanation::Placed(_, PlacementState::Assumed, _)
    ));
    scheduler.apply_pod(pod.on("n").info(), s(1));
    assert!(matches!(
        scheduler.explain(&"p".into()),
        PodExplanation::Placed(_, PlacementState::Bound, _)
    ));
}

#[test]
fn accepts_the_binding_of_another_client() {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    for (name, cidr) in [("a", "10.0.0.0/30"), ("b", "10.0.0.4/30")] {
        scheduler.apply_node(Arc::new(NodeBuilder::new(name).block(cidr, 1).node()), s(0));
    }
    scheduler.apply_pod(PodBuilder::new("p").info(), s(0));
    assert_eq!(settle(&mut scheduler, s(0)).0, ["p"]); // On "a", the first of equals.
    scheduler.apply_pod(PodBuilder::new("p").on("b").info(), s(0));
    scheduler.bind_failed(&"p".into(), "conflict".into(), s(1));
    scheduler.apply_pod(PodBuilder::new("q").info(), s(1));
    let attempt = scheduler.attempt(s(1)).unwrap();
    assert_eq!(attempt.outcome.unwrap().as_str(), "a");
}

#[test]
fn tries_only_its_own_pods_that_need_a_node() {
    let mut scheduler = Scheduler::new(IpPolicy::Off);
    scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), s(0));
    let json = serde_json::json!("2026-01-01T00:00:00Z");
    let gates = serde_json::json!([{"name": "wait"}]);
    let gated = PodBuilder::new("gated").set("/spec/schedulingGates", gates);
    for pod in [
        PodBuilder::new("other").set("/spec/schedulerName", "mine".into()),
        PodBuilder::new("leaving").set("/metadata/deletionTimestamp", json),
        PodBuilder::new("ended").ended("Failed", ""),
        gated.clone(),
    ] {
        scheduler.apply_pod(pod.info(), s(0));
    }
    assert!(!scheduler.is_ready(s(0)));
    scheduler.apply_pod(PodBuilder::new("gated").info(), s(0));
    assert_eq!(settle(&mut scheduler, s(0)).0, ["gated"]);
}

#[test]
fn explanation_names_the_refusing_nodes() {
    let (scheduler, ..) = story(IpPolicy::Resource, &block("10.255.0.0/30", 1));
    let PodExplanation::Waiting {
        waiting,
        examination,
        ..
    } = scheduler.explain(&"other-8".into())
    else {
        panic!("it waits");
    };
    assert_eq!(waiting.attempts, 1);
    assert_eq!(
        waiting.message,
        "0/1 nodes are available: 1 Insufficient pod IPs."
    );
    let refusals: Vec<_> = examination.refusals().collect();
    assert_eq!(refusals[0].0.as_str(), "n");
    assert_eq!(refusals[0].1.by, "PodIPs");
    assert!(matches!(
        scheduler.explain(&"nobody".into()),
        PodExplanation::Unknown
    ));
}

#[test]
fn placed_pod_wakes_those_that_want_to_be_near_it() {
    let mut scheduler = Scheduler::new(IpPolicy::Off);
    let node = NodeBuilder::new("n").label("zone", "x");
    scheduler.apply_node(Arc::new(node.node()), s(0));
    let labels = serde_json::json!({"app": "db"});
    let term = serde_json::json!({"topologyKey": "zone", "labelSelector": {"matchLabels": labels}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = serde_json::json!({"podAffinity": {required: [term]}});
    let web = PodBuilder::new("web").set("/spec/affinity", affinity);
    scheduler.apply_pod(web.info(), s(0));
    let message = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.";
    assert_eq!(settle(&mut scheduler, s(0)).1, [message]);
    scheduler.apply_pod(PodBuilder::new("other").info(), s(10));
    assert_eq!(settle(&mut scheduler, s(10)).0, ["other"]);
    assert!(!scheduler.is_ready(s(10)), "another app does not help");
    let db = PodBuilder::new("db").set("/metadata/labels", labels);
    scheduler.apply_pod(db.info(), s(10));
    assert_eq!(settle(&mut scheduler, s(10)).0, ["db", "web"]);
}

#[test]
fn unsupported_field_keeps_a_pod_waiting_until_it_is_gone() {
    let mut scheduler = Scheduler::new(IpPolicy::Off);
    scheduler.apply_node(Arc::new(NodeBuilder::new("n").node()), s(0));
    let claim = serde_json::json!([{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]);
    let pod = PodBuilder::new("p").set("/spec/volumes", claim);
    scheduler.apply_pod(pod.info(), s(0));
    let message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims: d.";
    assert_eq!(settle(&mut scheduler, s(0)).1, [message]);
    scheduler.apply_node(Arc::new(NodeBuilder::new("m").node()), s(20));
    assert!(!scheduler.is_ready(s(20)), "no node helps");
    scheduler.apply_pod(PodBuilder::new("p").info(), s(20));
    assert_eq!(settle(&mut scheduler, s(20)).0, ["p"]);
}

/// A full node of one address, held by a pod of that priority, and an attempt for a `vip`.
fn preempting(holder: PodBuilder) -> (Scheduler, Attempt) {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(block("10.255.0.0/30", 1).node()), s(0));
    scheduler.apply_pod(holder.on("n").info(), s(0));
    scheduler.apply_pod(PodBuilder::new("vip").priority(9).info(), s(0));
    let attempt = scheduler.attempt(s(0)).unwrap();
    (scheduler, attempt)
}

#[test]
fn a_pod_takes_the_address_of_a_less_important_one() {
    let holder = PodBuilder::new("low").priority(1);
    let (mut scheduler, attempt) = preempting(holder.clone());
    let preemption = attempt.preemption.unwrap();
    let victims: Vec<_> = preemption
        .victims
        .iter()
        .map(|pod| &*pod.key.name)
        .collect();
    assert_eq!((preemption.node.as_str(), victims), ("n", vec!["low"]));
    assert_eq!(attempt.nominated.unwrap().as_str(), "n");
    assert!(attempt.outcome.is_err());
    // The victim is still there: it is not evicted twice.
    let deleted = serde_json::json!("2026-01-01T00:00:00Z");
    let leaving = holder
        .clone()
        .on("n")
        .set("/metadata/deletionTimestamp", deleted);
    scheduler.apply_pod(leaving.info(), s(1));
    let report = block("10.255.0.0/30", 1).heartbeat("2026-01-01T00:00:01Z");
    scheduler.apply_node(Arc::new(report.node()), s(1));
    scheduler.tick(s(400));
    let again = scheduler.attempt(s(400)).unwrap();
    assert!(again.preemption.is_none());
    assert_eq!(again.nominated.unwrap().as_str(), "n");
    let message = again.outcome.unwrap_err();
    assert!(
        message.ends_with("not eligible due to a terminating pod on the nominated node."),
        "{message}"
    );
    // The address is kept for the pod when the victim has left.
    scheduler.apply_pod(PodBuilder::new("late").info(), s(401));
    scheduler.delete_pod(&holder.on("n").ended("Failed", "").info(), s(401));
    let (placed, _) = settle(&mut scheduler, s(401));
    assert_eq!(placed, ["vip"]);
}

#[test]
fn an_address_is_reserved_for_the_nominated_pod() {
    let holder = PodBuilder::new("low").priority(1);
    let (mut scheduler, _) = preempting(holder.clone());
    // A node with two addresses of which one becomes free: a pod of lower priority may not have it.
    scheduler.apply_node(Arc::new(block("10.255.0.0/29", 2).node()), s(1));
    scheduler.apply_pod(PodBuilder::new("other").priority(2).info(), s(1));
    let (placed, _) = settle(&mut scheduler, s(1));
    assert_eq!(placed, ["vip"], "it needs the victim no more");
}

#[test]
fn a_preemption_ends_the_nominations_of_less_important_pods() {
    let (mut scheduler, first) = preempting(PodBuilder::new("low").priority(1));
    assert!(first.preemption.unwrap().displaced.is_empty());
    scheduler.apply_pod(PodBuilder::new("vvip").priority(10).info(), s(1));
    let attempt = scheduler.attempt(s(1)).unwrap();
    let preemption = attempt.preemption.unwrap();
    let displaced: Vec<_> = preemption
        .displaced
        .iter()
        .map(|pod| &*pod.key.name)
        .collect();
    assert_eq!(displaced, ["vip"]);
    assert_eq!(attempt.nominated.unwrap().as_str(), "n");

    // Attempted again soon, since no change of the cluster would wake it. It has no node to wait
    // for, and the more important pod's is not its.
    let next = scheduler.next_attempt_at(&"vip".into()).unwrap();
    assert!(next <= s(10), "{next:?}");
    scheduler.tick(next.max(s(1)));
    let again = scheduler.attempt(next.max(s(1))).unwrap();
    assert_eq!(again.pod.key.name, "vip");
    assert!(again.outcome.is_err());

    // The room goes to the more important pod.
    let gone = PodBuilder::new("low").priority(1).on("n");
    scheduler.delete_pod(&gone.ended("Failed", "").info(), s(400));
    scheduler.apply_node(
        Arc::new(
            block("10.255.0.0/30", 1)
                .heartbeat("2026-01-01T00:00:01Z")
                .node(),
        ),
        s(400),
    );
    let (placed, _) = settle(&mut scheduler, s(400));
    assert_eq!(placed, ["vvip"]);
}

#[test]
fn pods_of_equal_priority_and_missing_capacity_are_not_preempted() {
    let (_, attempt) = preempting(PodBuilder::new("equal").priority(9));
    assert!(attempt.preemption.is_none());
    assert_eq!(
        attempt.outcome.unwrap_err(),
        "0/1 nodes are available: 1 Insufficient pod IPs."
    );
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    scheduler.apply_node(Arc::new(block("10.255.0.0/31", 0).node()), s(0));
    let host = PodBuilder::new("host").host_network().on("n");
    scheduler.apply_pod(host.info(), s(0));
    scheduler.apply_pod(PodBuilder::new("vip").priority(9).info(), s(0));
    let attempt = scheduler.attempt(s(0)).unwrap();
    assert!(attempt.preemption.is_none());
    let message = attempt.outcome.unwrap_err();
    assert!(
        message.ends_with("1 Preemption is not helpful for scheduling."),
        "{message}"
    );
}

#[test]
fn a_failed_eviction_is_tried_again() {
    let (mut scheduler, _) = preempting(PodBuilder::new("low"));
    scheduler.preemption_failed(&"vip".into(), s(20));
    let attempt = scheduler.attempt(s(20)).unwrap();
    assert!(attempt.preemption.is_some());
}

#[test]
fn the_same_seed_gives_the_same_decisions() {
    let decisions = |seed: u64| {
        let mut scheduler = Scheduler::new(PlacementPolicy {
            seed,
            ..IpPolicy::Resource.into()
        });
        for n in 0..200 {
            let node = NodeBuilder::new(&format!("n{n:03}"));
            let block = format!("10.0.{n}.0/29");
            scheduler.apply_node(Arc::new(node.block(&block, 5).node()), s(0));
        }
        for n in 0..300 {
            scheduler.apply_pod(PodBuilder::new(&format!("p{n}")).info(), s(0));
        }
        let attempts = std::iter::from_fn(|| scheduler.attempt(s(0)));
        let nodes = attempts.map(|attempt| attempt.outcome.unwrap().to_string());
        nodes.collect::<Vec<_>>()
    };
    assert_eq!(decisions(7), decisions(7));
    assert_eq!(decisions(u64::MAX), decisions(u64::MAX));
    assert_ne!(decisions(7), decisions(8));
}
