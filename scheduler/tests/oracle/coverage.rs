//! The cases that random clusters reached.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::model::{Decision, Verdict};

/// The most clusters in which a case may occur once. The rarest cases are several times as frequent.
const RAREST: u64 = 1_000;

/// The reasons that must occur, with their plugins. A plugin that gives both resolvable and
/// unresolvable refusals for one reason has it twice.
const REFUSALS: [(&str, &str, bool); 21] = [
    ("NodeUnschedulable", "node(s) were unschedulable", true),
    (
        "NodeName",
        "node(s) didn't match the requested node name",
        true,
    ),
    ("TaintToleration", "node(s) had untolerated taint", true),
    (
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
        true,
    ),
    (
        "NodeAffinity",
        "node(s) didn't satisfy plugin(s) [NodeAffinity]",
        true,
    ),
    (
        "NodePorts",
        "node(s) didn't have free ports for the requested pod ports",
        false,
    ),
    ("NodeResourcesFit", "Too many pods", false),
    ("NodeResourcesFit", "Insufficient cpu", false),
    ("NodeResourcesFit", "Insufficient cpu", true),
    ("NodeResourcesFit", "Insufficient memory", false),
    ("NodeResourcesFit", "Insufficient ephemeral-storage", true),
    ("NodeResourcesFit", "Insufficient example.com/gpu", false),
    ("NodeResourcesFit", "Insufficient example.com/gpu", true),
    ("NodeResourcesFit", "Insufficient podplane.io/pod-ips", true),
    ("PodIPs", "Insufficient pod IPs", false),
    ("PodIPs", "Insufficient pod IPs", true),
    (
        "PodTopologySpread",
        "node(s) didn't match pod topology spread constraints",
        false,
    ),
    (
        "PodTopologySpread",
        "node(s) didn't match pod topology spread constraints (missing required label)",
        true,
    ),
    (
        "InterPodAffinity",
        "node(s) didn't match pod affinity rules",
        true,
    ),
    (
        "InterPodAffinity",
        "node(s) didn't match pod anti-affinity rules",
        false,
    ),
    (
        "InterPodAffinity",
        "node(s) didn't satisfy existing pods anti-affinity rules",
        false,
    ),
];

/// The plugins that must give feasible nodes of one cluster different scores.
const SCORERS: [&str; 8] = [
    "TaintToleration",
    "NodeAffinity",
    "NodeResourcesFit",
    "PodIPs",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];

/// The plugins that must skip a pod although nodes are feasible.
const SKIPPING: [&str; 6] = [
    "NodeAffinity",
    "PodIPs",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];

/// The numbers of cases.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// Refused nodes by plugin, reason and unresolvability; a reason with a taint without the taint.
    refusals: BTreeMap<(String, String, bool), u64>,
    /// Clusters in which a plugin gave feasible nodes different scores.
    differing: BTreeMap<String, u64>,
    /// Clusters with feasible nodes for which a plugin scored the pod.
    scoring: BTreeMap<String, u64>,
    /// Clusters with feasible nodes.
    feasible: u64,
    /// Clusters in which default constraints gave feasible nodes different scores.
    by_default: u64,
    /// Pods that were rejected for all nodes.
    rejected: u64,
    /// Nodes that lack several resources.
    several: u64,
}

impl Coverage {
    /// Counts a decision on the pod.
    pub(crate) fn add(&mut self, pod: &Value, decision: &Decision) {
        let Decision::Examined(verdicts) = decision else {
            self.rejected += 1;
            return;
        };
        let mut scores = BTreeMap::<&str, BTreeSet<i64>>::new();
        let mut is_feasible = false;
        for verdict in verdicts.values() {
            match verdict {
                Verdict::Refused(refusal) => {
                    self.several += u64::from(refusal.reasons.len() > 1);
                    for reason in &refusal.reasons {
                        let reason = reason.split(" {").next().unwrap_or_default().to_owned();
                        let case = (refusal.by.clone(), reason, refusal.is_unresolvable);
                        *self.refusals.entry(case).or_default() += 1;
                    }
                }
                Verdict::Feasible { scores: all, .. } => {
                    is_feasible = true;
                    for score in all {
                        scores
                            .entry(&score.plugin)
                            .or_default()
                            .insert(score.normalised);
                    }
                }
            }
        }
        self.feasible += u64::from(is_feasible);
        let own = pod["spec"]["topologySpreadConstraints"].as_array();
        let spread = scores.get("PodTopologySpread").map_or(0, BTreeSet::len);
        self.by_default += u64::from(own.is_none_or(Vec::is_empty) && spread > 1);
        for (plugin, scores) in scores {
            *self.scoring.entry(plugin.to_owned()).or_default() += 1;
            *self.differing.entry(plugin.to_owned()).or_default() += u64::from(scores.len() > 1);
        }
    }

    /// Asserts that every plugin refused and passed, scored and skipped often enough in so many
    /// clusters.
    ///
    /// # Panics
    ///
    /// If a case is missing or rare.
    pub(crate) fn assert_complete(&self, clusters: u64) {
        let least = clusters / RAREST;
        let mut rare = Vec::new();
        let mut expect = |case: String, number: u64| {
            if number < least {
                rare.push(format!("{case}: {number}"));
            }
        };
        for (by, reason, is_unresolvable) in REFUSALS {
            let case = (by.to_owned(), reason.to_owned(), is_unresolvable);
            expect(
                format!("{case:?}"),
                self.refusals.get(&case).copied().unwrap_or(0),
            );
        }
        for plugin in SCORERS {
            let number = self.differing.get(plugin).copied().unwrap_or(0);
            expect(format!("{plugin} gives different scores"), number);
        }
        for plugin in SKIPPING {
            let scored = self.scoring.get(plugin).copied().unwrap_or(0);
            expect(format!("{plugin} skips a pod"), self.feasible - scored);
        }
        expect(
            "default constraints give different scores".to_owned(),
            self.by_default,
        );
        expect("a pod is rejected".to_owned(), self.rejected);
        expect("a node lacks several resources".to_owned(), self.several);
        assert!(
            rare.is_empty(),
            "reached fewer than {least} times: {rare:#?}\nof {self:#?}"
        );
    }
}
