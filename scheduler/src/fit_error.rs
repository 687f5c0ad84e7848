//! The reasons why no node fits, in the reference's words.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{framework::Rejection, names::NodeName};

/// The number of nodes with details in a message.
const DETAILED: usize = 3;

/// No node can run the pod. Displayed as in the PodScheduled condition and the FailedScheduling
/// event: the reference's sentence, and after it, where the reference reports its attempt to
/// preempt, the shortages of single nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    /// The number of nodes.
    pub nodes: usize,
    /// The rejection for all nodes, if there is one; then no node was examined.
    pub rejection: Option<Rejection>,
    /// The reasons with the number of nodes that each one has.
    pub reasons: BTreeMap<Cow<'static, str>, usize>,
    /// Nodes with their shortages, by name; at most [`FitError::DETAILED`].
    pub details: Vec<(NodeName, String)>,
    /// The number of nodes with shortages that belong into the message.
    pub detailed: usize,
    /// The plugins that rejected the pod or refused a node: the pod waits for an event that one of
    /// them heeds.
    pub rejected_by: BTreeSet<&'static str>,
}

impl FitError {
    /// The number of nodes with details in a message.
    pub const DETAILED: usize = DETAILED;

    /// Counts the reasons of `nodes` nodes.
    pub fn count(&mut self, reasons: Vec<Cow<'static, str>>, nodes: usize) {
        for reason in reasons {
            *self.reasons.entry(reason).or_default() += nodes;
        }
    }
}

impl std::error::Error for FitError {}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        write!(f, "0/{} nodes are available:", self.nodes)?;
        if let Some(rejection) = &self.rejection {
            return write!(f, " {}.", rejection.reason);
        }
        let reasons = self.reasons.iter();
        let mut entries: Vec<_> = reasons
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        entries.sort_unstable(); // As strings: "10 y" comes before "2 x".
        if !entries.is_empty() {
            write!(f, " {}.", entries.join(", "))?;
        }
        for (node, text) in &self.details {
            write!(f, " {node}: {text}.")?;
        }
        match self.detailed.checked_sub(self.details.len()) {
            Some(more @ 1..) => write!(f, " And {more} more such nodes."),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn messages_match_the_reference() {
        let file = include_str!("../tests/data/scheduler_fiterror_messages.json");
        let file: Value = serde_json::from_str(file).unwrap();
        let mut tried = 0;
        for case in file["cases"].as_array().unwrap() {
            let nodes = usize::try_from(case["num_all_nodes"].as_u64().unwrap()).unwrap();
            let given = case["node_reasons"].as_object().unwrap().iter();
            let mut reasons: Vec<Vec<String>> = given
                .map(|(_, reasons)| serde_json::from_value(reasons.clone()).unwrap())
                .collect();
            if let Some(absent) = case["absent_nodes_reason"].as_str() {
                reasons.resize(nodes, vec![absent.to_owned()]);
            }
            let mut error = FitError {
                nodes,
                rejection: case["prefilter_msg"].as_str().map(|reason| Rejection {
                    by: "Test",
                    reason: reason.to_owned(),
                }),
                ..FitError::default()
            };
            for reasons in reasons {
                error.count(reasons.into_iter().map(Cow::Owned).collect(), 1);
            }
            // There is no preemption yet, and so no message about it.
            let preemption = case["postfilter_msg"].as_str().unwrap_or_default();
            let want = case["message"].as_str().unwrap();
            let want = want.trim_end_matches(preemption).trim_end();
            assert_eq!(error.to_string(), want, "{}", case["name"]);
            tried += 1;
        }
        assert_eq!(tried, 6);
    }

    #[test]
    fn message_has_details_of_a_few_nodes() {
        let of = |names: &[&str], detailed| {
            let details = names.iter().map(|name| {
                let text = "lacks a thing".to_owned();
                (NodeName::from(*name), text)
            });
            let mut error = FitError {
                nodes: 9,
                details: details.collect(),
                detailed,
                ..FitError::default()
            };
            error.count(vec!["short".into()], 9);
            error.to_string()
        };
        assert_eq!(of(&[], 0), "0/9 nodes are available: 9 short.");
        assert_eq!(
            of(&["a", "b"], 2),
            "0/9 nodes are available: 9 short. a: lacks a thing. b: lacks a thing."
        );
        let many = of(&["a", "b", "c"], 5);
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
