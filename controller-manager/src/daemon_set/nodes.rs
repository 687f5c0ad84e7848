//! The nodes that a DaemonSet has pods on, and the pods for them.

use podplane_api::{
    Object as _,
    apps::DaemonSet,
    core::{
        Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodSpec, Toleration,
    },
    selector, taints,
};

use crate::{history::HASH_LABEL, pod_control::new_pod, pods::node};

/// The annotation with the generation of the template, from before there were revisions.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// The label of pods with it.
const GENERATION_LABEL: &str = "pod-template-generation";

/// The decision whether a node has a pod of a DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeEligibility {
    /// A pod is created there.
    pub(super) should_run: bool,
    /// A pod that is there stays.
    pub(super) may_stay: bool,
}

/// The demands of a DaemonSet's pods on their nodes.
pub(super) struct Placement<'a> {
    spec: Option<&'a PodSpec>,
    required: Option<selector::NodeSelector>,
    tolerations: Vec<Toleration>,
}

impl<'a> Placement<'a> {
    pub(super) fn of(set: &'a DaemonSet) -> Self {
        let spec = set.spec.as_ref();
        let spec = spec.and_then(|spec| spec.template.spec.as_ref());
        let tolerations = spec.and_then(|spec| spec.tolerations.clone());
        let mut tolerations = tolerations.unwrap_or_default();
        let is_host_network = spec.is_some_and(|spec| spec.host_network == Some(true));
        add_tolerations(&mut tolerations, is_host_network);
        let required = spec.and_then(|spec| {
            let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        Self {
            spec,
            required: required.map(selector::NodeSelector::from),
            tolerations,
        }
    }

    /// Decides as Kubernetes' `NodeShouldRunDaemonPod`: by the name, the selector and the required
    /// affinity of the template, and by the node's taints.
    pub(super) fn eligibility(&self, node: &Node) -> NodeEligibility {
        if !self.is_selected(node) {
            return NodeEligibility {
                should_run: false,
                may_stay: false,
            };
        }
        let all = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        let repelling: Vec<&str> = all
            .filter(|taint| {
                let mut tolerations = self.tolerations.iter();
                !tolerations.any(|toleration| taints::tolerates(toleration, taint))
            })
            .map(|taint| taint.effect.as_str())
            .collect();
        NodeEligibility {
            should_run: !repelling.iter().any(|effect| *effect != "PreferNoSchedule"),
            may_stay: !repelling.contains(&"NoExecute"),
        }
    }

    fn is_selected(&self, node: &Node) -> bool {
        let name = self.spec.and_then(|spec| spec.node_name.as_deref());
        let name = name.unwrap_or_default();
        if !name.is_empty() && name != node.name() {
            return false;
        }
        let labels = node.metadata.labels.as_ref();
        let wanted = self.spec.and_then(|spec| spec.node_selector.as_ref());
        let mut wanted = wanted.into_iter().flatten();
        if !wanted.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value)) {
            return false;
        }
        let required = self.required.as_ref();
        required.is_none_or(|required| required.matches(node))
    }
}

/// Adds the tolerations of all pods of DaemonSets.
fn add_tolerations(tolerations: &mut Vec<Toleration>, is_host_network: bool) {
    let always = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    let network = [("node.kubernetes.io/network-unavailable", "NoSchedule")];
    let network = network.into_iter().filter(|_| is_host_network);
    for (key, effect) in always.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        tolerations.retain(|old| old.key != toleration.key || old.effect != toleration.effect);
        tolerations.push(toleration);
    }
}

/// A pod of the DaemonSet for the node of that name. It is bound to no node: its affinity selects
/// the node by name, in place of the template's required terms, and the scheduler binds it.
pub(super) fn pod_for(set: &DaemonSet, hash: &str, node: &str) -> Pod {
    let template = set.spec.as_ref().map(|spec| spec.template.clone());
    let mut pod = new_pod(set, &template.unwrap_or_default());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    let annotations = set.metadata.annotations.as_ref();
    if let Some(generation) = annotations.and_then(|all| all.get(TEMPLATE_GENERATION)) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.clone());
    }
    let spec = pod.spec.get_or_insert_default();
    let is_host_network = spec.host_network == Some(true);
    add_tolerations(spec.tolerations.get_or_insert_default(), is_host_network);
    let affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_fields: Some(vec![NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_owned()]),
            }]),
            ..NodeSelectorTerm::default()
        }],
    });
    pod
}

/// The name of the node that the pod is on, or was made for.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    if let Some(node) = node(pod) {
        return Some(node);
    }
    let Affinity {
        node_affinity:
            Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(required),
                ..
            }),
        ..
    } = pod.spec.as_ref()?.affinity.as_ref()?
    else {
        return None;
    };
    let terms = required.node_selector_terms.iter();
    let mut fields = terms.flat_map(|term| term.match_fields.iter().flatten());
    let field = fields.find(|field| field.key == "metadata.name" && field.operator == "In")?;
    match field.values.as_deref()? {
        [name] => Some(name),
        _ => None,
    }
}
