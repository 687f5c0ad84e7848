//! The scheduler's decisions against those of a slow, obvious model, on random clusters.
//!
//! The clusters are the same in each run; `PODPLANE_SOAK=1` examines 100,000 others, and
//! `PODPLANE_SEED` repeats these.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod coverage;
mod generator;
mod model;
mod shrink;

use coverage::Coverage;
use model::{Cluster, Decision, Policy, Refusal, Score, Verdict};
use podplane_scheduler::{
    cache::NodeCache,
    config::{IpPolicy, PlacementPolicy},
    explain::{Examination, NodeRefusal, NodeVerdict, examine_cached},
    framework::Resolvability,
    pod::PodReader,
    score::NodeScore,
};
use serde_json::{Value, from_value};

/// The variable with the seed, in decimal, from which all clusters follow.
const SEED: &str = "PODPLANE_SEED";
/// The number of differences after which the test ends.
const MOST_REPORTED: usize = 3;

fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) if is_soak() => fastrand::u64(0..1_000_000) * 1_000_000,
        Err(_) => 0,
    }
}

fn is_soak() -> bool {
    std::env::var_os("PODPLANE_SOAK").is_some()
}

/// The number of clusters.
fn count() -> u64 {
    match is_soak() {
        true => 100_000,
        false => 5_000,
    }
}

/// The model's decision.
fn by_model(cluster: &Value) -> Decision {
    model::decide(&Cluster {
        nodes: cluster["nodes"].as_array().unwrap(),
        pods: cluster["pods"].as_array().unwrap(),
        namespaces: cluster["namespaces"].as_array().unwrap(),
        services: cluster["services"].as_array().unwrap(),
        replica_sets: cluster["replicaSets"].as_array().unwrap(),
        pod: &cluster["pod"],
        policy: match cluster["policy"].as_str() {
            Some("off") => Policy::Off,
            Some("pod-cidr") => Policy::PodCidr,
            _ => Policy::Resource,
        },
    })
}

/// The scheduler's decision, in the model's terms.
fn by_scheduler(cluster: &Value) -> serde_json::Result<Decision> {
    let ips = match cluster["policy"].as_str() {
        Some("off") => IpPolicy::Off,
        Some("pod-cidr") => IpPolicy::PodCidr,
        _ => IpPolicy::Resource,
    };
    let policy = PlacementPolicy::from(ips);
    let pods = from_value::<Vec<_>>(cluster["pods"].clone())?;
    let mut reader = PodReader::new(policy.pod_ip_resource.clone());
    let mut cache = NodeCache::of(
        from_value::<Vec<_>>(cluster["nodes"].clone())?,
        pods.iter().map(|pod| reader.read(pod)),
        &from_value::<Vec<_>>(cluster["namespaces"].clone())?,
        &policy.pod_ip_resource,
    );
    for service in from_value::<Vec<_>>(cluster["services"].clone())? {
        cache.cluster_mut().apply_service(&service);
    }
    for set in from_value::<Vec<_>>(cluster["replicaSets"].clone())? {
        cache.cluster_mut().apply_replica_set(&set);
    }
    let examination = examine_cached(&mut cache, policy, &from_value(cluster["pod"].clone())?);
    Ok(decision(examination, ips))
}

fn decision(examination: Examination, ips: IpPolicy) -> Decision {
    if let Some(rejection) = examination.rejection {
        return Decision::Rejected {
            by: rejection.by.to_owned(),
            reason: rejection.reason,
        };
    }
    let verdicts = examination.nodes.into_iter();
    Decision::Examined(
        verdicts
            .map(|NodeVerdict { node, result }| (node.to_string(), verdict(result, ips)))
            .collect(),
    )
}

fn verdict(result: Result<NodeScore, NodeRefusal>, ips: IpPolicy) -> Verdict {
    match result {
        Ok(score) => Verdict::Feasible {
            total: score.total,
            scores: score
                .plugins
                .iter()
                .map(|score| Score {
                    plugin: score.plugin.to_owned(),
                    raw: score.raw,
                    normalised: score.normalised,
                    weight: score.weight,
                })
                .collect(),
            pods: score.pods,
            free_pod_ips: match ips {
                IpPolicy::Resource => score.free_pod_ips,
                IpPolicy::PodCidr | IpPolicy::Off => 0,
            },
        },
        Err(refusal) => Verdict::Refused(Refusal {
            by: refusal.by.to_owned(),
            reasons: refusal
                .reasons
                .iter()
                .map(|reason| reason.to_string())
                .collect(),
            is_unresolvable: refusal.resolvable == Resolvability::Never,
        }),
    }
}

/// True if the decisions on the cluster differ. A cluster that cannot be decoded has none.
fn differs(cluster: &Value) -> bool {
    by_scheduler(cluster).is_ok_and(|decision| decision != by_model(cluster))
}

/// The smallest cluster that shows the difference, with both decisions on it.
fn report(seed: u64, cluster: &Value) -> String {
    let smallest = shrink::shrink(cluster, differs);
    format!(
        "the decisions differ with {SEED}={seed}\n{smallest:#}\nscheduler: {:#?}\nmodel: {:#?}",
        by_scheduler(&smallest).unwrap(),
        by_model(&smallest),
    )
}

#[test]
fn scheduler_decides_as_the_model_of_the_reference_does() {
    let first = seed();
    eprintln!("{SEED}={first}");
    let mut coverage = Coverage::default();
    let mut differences = Vec::new();
    for seed in first..first + count() {
        let cluster = generator::cluster(seed);
        let decision = by_scheduler(&cluster).unwrap();
        if decision != by_model(&cluster) {
            differences.push(report(seed, &cluster));
            if differences.len() == MOST_REPORTED {
                break;
            }
        }
        coverage.add(&cluster["pod"], &decision);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    coverage.assert_complete(count());
}
