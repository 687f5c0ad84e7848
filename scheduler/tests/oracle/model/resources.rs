//! `NodeResourcesFit`, with its score `LeastAllocated`, and `NodeResourcesBalancedAllocation`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Cluster, Policy, Refusal, list, pod_ips, zip};

/// Amounts by resource: cpu in thousandths, others in whole units.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// The cpu of a container without a request, where a score needs one: 100m.
const DEFAULT_CPU: i64 = 100;
/// Its memory: 200 MiB.
const DEFAULT_MEMORY: i64 = 200 << 20;

/// The amounts of a resource list.
pub(crate) fn amounts(of: &Value) -> Amounts {
    let entries = of.as_object().into_iter().flatten();
    let amount = |resource: &str, text: &Value| {
        let text = text.as_str().unwrap_or_default();
        let whole = |text: &str| text.parse::<i64>().unwrap();
        let thousandths = match text.len().checked_sub(2).map(|at| text.split_at(at)) {
            Some((number, "Ki")) => whole(number) * 1024 * 1000,
            Some((number, "Mi")) => whole(number) * (1 << 20) * 1000,
            Some((number, "Gi")) => whole(number) * (1 << 30) * 1000,
            _ => text
                .strip_suffix('m')
                .map_or_else(|| whole(text) * 1000, whole),
        };
        match resource {
            "cpu" => thousandths,
            _ => thousandths.div_euclid(1000) + i64::from(thousandths.rem_euclid(1000) > 0),
        }
    };
    entries
        .map(|(resource, text)| (resource.clone(), amount(resource, text)))
        .collect()
}

fn add(to: &mut Amounts, other: &Amounts) {
    for (resource, amount) in other {
        *to.entry(resource.clone()).or_default() += amount;
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (resource, amount) in other {
        let known = to.entry(resource.clone()).or_default();
        *known = (*known).max(*amount);
    }
}

/// The request of a pod: the sum of its containers and sidecars, or for each resource the largest
/// step of its initialization, an init container with the sidecars started before it, if that is
/// more; instead of that the pod's own request for cpu, memory or huge pages; plus the overhead.
/// A container without a request for a resource of `defaults` has that.
fn request(pod: &Value, defaults: &Amounts) -> Amounts {
    let of = |container: &Value| {
        let mut request = amounts(&container["resources"]["requests"]);
        for (resource, amount) in defaults {
            request.entry(resource.clone()).or_insert(*amount);
        }
        request
    };
    let mut sum = Amounts::new();
    for container in list(&pod["spec"]["containers"]) {
        add(&mut sum, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in list(&pod["spec"]["initContainers"]) {
        let mut step = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &step);
            add(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            add(&mut step, &sidecars);
        }
        raise(&mut starting, &step);
    }
    raise(&mut sum, &starting);
    for (resource, amount) in whole_pod(pod) {
        sum.insert(resource, amount);
    }
    add(&mut sum, &amounts(&pod["spec"]["overhead"]));
    sum
}

/// The request that the pod has as a whole, of the resources that may have one.
fn whole_pod(pod: &Value) -> Amounts {
    let mut amounts = amounts(&pod["spec"]["resources"]["requests"]);
    amounts.retain(|resource, _| {
        resource == "cpu" || resource == "memory" || resource.starts_with("hugepages-")
    });
    amounts
}

/// The request of a pod as it is.
pub(crate) fn requested(pod: &Value) -> Amounts {
    request(pod, &Amounts::new())
}

fn defaults() -> Amounts {
    Amounts::from([
        ("cpu".to_owned(), DEFAULT_CPU),
        ("memory".to_owned(), DEFAULT_MEMORY),
    ])
}

/// The request of the pod in question where zero would hide it.
fn requested_non_zero(pod: &Value) -> Amounts {
    request(pod, &defaults())
}

/// The request of a pod on a node where zero would hide it. If the pod has a request as a whole,
/// only a resource that none of its containers requests has a default.
fn held_non_zero(pod: &Value) -> Amounts {
    let mut defaults = defaults();
    if !whole_pod(pod).is_empty() {
        let requested = requested(pod);
        defaults.retain(|resource, _| !requested.contains_key(resource));
    }
    request(pod, &defaults)
}

/// The sum over the pods of a node.
fn sum(cluster: &Cluster<'_>, node: &Value, of: fn(&Value) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    for pod in cluster.pods_on(node) {
        add(&mut sum, &of(pod));
    }
    sum
}

fn get(amounts: &Amounts, resource: &str) -> i64 {
    amounts.get(resource).copied().unwrap_or(0)
}

/// Refuses a node that has no room for one more pod, or too little of a resource that the pod
/// requests, with a reason for each. It is unresolvable if the node has too little of a resource
/// even without pods. Addresses are left out where they are counted by themselves.
pub(crate) fn fit(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let allocatable = amounts(&node["status"]["allocatable"]);
    let used = sum(cluster, node, requested);
    let mut reasons = BTreeSet::new();
    let mut is_unresolvable = false;
    let room = match cluster.policy {
        Policy::PodCidr => pod_ips::pod_cidr_limit(node, get(&allocatable, "pods")),
        Policy::Resource | Policy::Off => get(&allocatable, "pods"),
    };
    if i64::try_from(cluster.pods_on(node).len()).unwrap() + 1 > room {
        reasons.insert("Too many pods".to_owned());
    }
    for (resource, wanted) in requested(cluster.pod) {
        let is_counted_elsewhere =
            cluster.policy == Policy::Resource && resource == pod_ips::RESOURCE;
        let all = get(&allocatable, &resource);
        if wanted > 0 && !is_counted_elsewhere && wanted > all - get(&used, &resource) {
            reasons.insert(format!("Insufficient {resource}"));
            is_unresolvable |= wanted > all;
        }
    }
    (!reasons.is_empty()).then(|| Refusal {
        by: "NodeResourcesFit".into(),
        reasons,
        is_unresolvable,
    })
}

/// The mean over cpu and memory of the percentage that is left with the pod; a resource that the
/// node does not have is left out, and one that is exceeded has 0. Divisions round down.
pub(crate) fn least_allocated(
    cluster: &Cluster<'_>,
    feasible: &[&Value],
) -> Option<Vec<(i64, i64)>> {
    let wanted = requested_non_zero(cluster.pod);
    let mut scores = Vec::new();
    for node in feasible {
        let allocatable = amounts(&node["status"]["allocatable"]);
        let held = sum(cluster, node, held_non_zero);
        let (mut total, mut resources) = (0, 0);
        for resource in ["cpu", "memory"] {
            let capacity = get(&allocatable, resource);
            let left = capacity - get(&held, resource) - get(&wanted, resource);
            if capacity > 0 {
                total += (left * 100 / capacity).max(0);
                resources += 1;
            }
        }
        scores.push(if resources == 0 { 0 } else { total / resources });
    }
    zip(scores.clone(), scores)
}

/// 100 less the standard deviation, in percent, of the fractions of cpu and memory that are used
/// with the pod. Pods that request neither are skipped.
pub(crate) fn balanced(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let wanted = requested(cluster.pod);
    if get(&wanted, "cpu") == 0 && get(&wanted, "memory") == 0 {
        return None;
    }
    let mut scores = Vec::new();
    for node in feasible {
        let allocatable = amounts(&node["status"]["allocatable"]);
        let held = sum(cluster, node, requested);
        let mut fractions = Vec::new();
        for resource in ["cpu", "memory"] {
            let capacity = get(&allocatable, resource);
            let used = get(&held, resource) + get(&wanted, resource);
            if capacity > 0 {
                fractions.push((float(used) / float(capacity)).min(1.0));
            }
        }
        let deviation = match fractions.as_slice() {
            [one, other] => ((one - other) / 2.0).abs(),
            _ => 0.0,
        };
        scores.push(truncated((1.0 - deviation) * 100.0));
    }
    zip(scores.clone(), scores)
}

#[expect(clippy::cast_precision_loss, reason = "the reference's conversion")]
pub(crate) fn float(number: i64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the reference's conversion"
)]
pub(crate) fn truncated(number: f64) -> i64 {
    number as i64
}
