//! The reasons why no node fits, in the reference's words.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{filters::FilterRefusal, names::NodeName};

/// The number of nodes with details in a message.
const DETAILED: usize = 3;

/// No node can run the pod. Displayed as in the PodScheduled condition and the FailedScheduling
/// event: the reference's sentence, and after it, where the reference reports its attempt to
/// preempt, the shortages of single nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    /// The number of nodes.
    pub nodes: usize,
    /// For each node, the first filter that refused it, with the reason.
    pub refusals: BTreeMap<NodeName, FilterRefusal>,
}

impl FitError {
    /// The filters that refused a node: the pod waits for an event that one of them heeds.
    pub fn rejected_by(&self) -> BTreeSet<&'static str> {
        self.refusals.values().map(|refusal| refusal.by).collect()
    }
}

impl std::error::Error for FitError {}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        let mut counts = BTreeMap::<&Cow<'static, str>, usize>::new();
        for reason in self.refusals.values().flat_map(|refusal| &refusal.reasons) {
            *counts.entry(reason).or_default() += 1;
        }
        let mut entries: Vec<_> = counts
            .into_iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        entries.sort_unstable(); // As strings: "10 y" comes before "2 x".
        write!(f, "0/{} nodes are available:", self.nodes)?;
        if !entries.is_empty() {
            write!(f, " {}.", entries.join(", "))?;
        }
        let details = self.refusals.iter().filter_map(|(node, refusal)| {
            let detail = refusal.detail.as_ref()?;
            detail.is_in_message.then_some((node, &detail.text))
        });
        let details: Vec<_> = details.collect();
        for (node, text) in details.iter().take(DETAILED) {
            write!(f, " {node}: {text}.")?;
        }
        match details.len().checked_sub(DETAILED) {
            Some(more @ 1..) => write!(f, " And {more} more such nodes."),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::filters::{NodeShortage, Resolvability};

    #[test]
    fn messages_match_the_reference() {
        let file = include_str!("../tests/data/scheduler_fiterror_messages.json");
        let file: Value = serde_json::from_str(file).unwrap();
        let mut tried = 0;
        for case in file["cases"].as_array().unwrap() {
            if case["prefilter_msg"].is_string() {
                continue; // We have no step before the filters that could fail.
            }
            let nodes = usize::try_from(case["num_all_nodes"].as_u64().unwrap()).unwrap();
            let given = case["node_reasons"].as_object().unwrap().iter();
            let mut reasons: Vec<Vec<String>> = given
                .map(|(_, reasons)| serde_json::from_value(reasons.clone()).unwrap())
                .collect();
            if let Some(absent) = case["absent_nodes_reason"].as_str() {
                reasons.resize(nodes, vec![absent.to_owned()]);
            }
            let refusals = reasons.into_iter().enumerate().map(|(n, reasons)| {
                let refusal = FilterRefusal {
                    by: "Test",
                    reasons: reasons.into_iter().map(Cow::Owned).collect(),
                    resolvable: Resolvability::ByPreemption,
                    detail: None,
                };
                (NodeName::from(n.to_string().as_str()), refusal)
            });
            let error = FitError {
                nodes,
                refusals: refusals.collect(),
            };
            // There is no preemption yet, and so no message about it.
            let preemption = case["postfilter_msg"].as_str().unwrap_or_default();
            let want = case["message"].as_str().unwrap();
            let want = want.trim_end_matches(preemption).trim_end();
            assert_eq!(error.to_string(), want, "{}", case["name"]);
            tried += 1;
        }
        assert_eq!(tried, 5);
    }

    #[test]
    fn message_has_details_of_a_few_nodes() {
        let refusal = |is_in_message| FilterRefusal {
            by: "Test",
            reasons: vec!["short".into()],
            resolvable: Resolvability::Never,
            detail: Some(NodeShortage {
                text: "lacks a thing".into(),
                is_in_message,
            }),
        };
        let of = |names: &[&str]| {
            let refusals = names
                .iter()
                .map(|name| (NodeName::from(*name), refusal(*name != "usual")));
            let error = FitError {
                nodes: names.len(),
                refusals: refusals.collect(),
            };
            error.to_string()
        };
        assert_eq!(of(&["usual"]), "0/1 nodes are available: 1 short.");
        assert_eq!(
            of(&["b", "a", "usual"]),
            "0/3 nodes are available: 3 short. a: lacks a thing. b: lacks a thing."
        );
        let many = of(&["a", "b", "c", "d", "e"]);
        assert!(
            many.ends_with(" c: lacks a thing. And 2 more such nodes."),
            "{many}"
        );
    }

    #[test]
    fn cluster_without_nodes_has_its_own_message() {
        let message = FitError::default().to_string();
        assert_eq!(message, "no nodes available to schedule pods");
    }
}
