//! The pods on nodes, counted by what other pods' constraints can ask of them.
//!
//! A constraint on other pods asks for namespace and labels, so pods that agree in these are one
//! *class*, and a selector is compared with classes in place of pods. The affinity rules of
//! existing pods are kept once each, with the number of their owners on each node. Both grow with
//! the number of workloads rather than with that of pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    sync::Arc,
};

use podplane_api::selector::LabelSelector;

use crate::{
    constraints::{LabelMap, affinity::AffinityRule},
    names::NodeSlot,
    pod::PodInfo,
};

/// The number of pods on each node that has any, by slot.
#[derive(Clone, Debug, Default)]
pub struct NodeCounts(Vec<NodeCount>);

/// The pods of a class or rule on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// The node.
    pub slot: NodeSlot,
    /// The number of pods on it.
    pub pods: u32,
    /// The number of these that are being deleted.
    pub deleting: u32,
}

impl NodeCounts {
    /// The counts, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &NodeCount> {
        self.0.iter()
    }

    fn add(&mut self, slot: NodeSlot, is_deleting: bool) {
        let at = match self.0.binary_search_by_key(&slot, |count| count.slot) {
            Ok(at) => at,
            Err(at) => {
                let none = NodeCount {
                    slot,
                    pods: 0,
                    deleting: 0,
                };
                self.0.insert(at, none);
                at
            }
        };
        if let Some(count) = self.0.get_mut(at) {
            count.pods += 1;
            count.deleting += u32::from(is_deleting);
        }
    }

    /// Removes a pod, and returns true if it was the last one of all.
    fn remove(&mut self, slot: NodeSlot, is_deleting: bool) -> bool {
        if let Ok(at) = self.0.binary_search_by_key(&slot, |count| count.slot)
            && let Some(count) = self.0.get_mut(at)
        {
            count.pods = count.pods.saturating_sub(1);
            count.deleting = count.deleting.saturating_sub(u32::from(is_deleting));
            if count.pods == 0 {
                self.0.remove(at);
            }
        }
        self.0.is_empty()
    }
}

/// Pods of one namespace with the same labels. Two are equal if their pods could be of one class.
#[derive(Clone, Debug)]
struct ClassKey(Arc<PodInfo>);

impl PartialEq for ClassKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.namespace() == other.0.namespace() && self.0.labels == other.0.labels
    }
}

impl Eq for ClassKey {}

impl Hash for ClassKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.namespace().hash(state);
        self.0.labels.hash(state);
    }
}

/// A table whose entries keep their number.
#[derive(Clone, Debug)]
struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    fn insert(&mut self, entry: T) -> usize {
        let id = self.free.pop().unwrap_or(self.entries.len());
        match self.entries.get_mut(id) {
            Some(place) => *place = Some(entry),
            None => self.entries.push(Some(entry)),
        }
        id
    }

    fn remove(&mut self, id: usize) {
        if self.entries.get_mut(id).and_then(Option::take).is_some() {
            self.free.push(id);
        }
    }

    fn get(&self, id: usize) -> Option<&T> {
        self.entries.get(id)?.as_ref()
    }

    fn get_mut(&mut self, id: usize) -> Option<&mut T> {
        self.entries.get_mut(id)?.as_mut()
    }
}

/// An affinity rule of existing pods.
#[derive(Clone, Debug)]
pub struct ExistingRule {
    /// The rule.
    pub rule: Arc<AffinityRule>,
    /// The pods that have it.
    pub owners: NodeCounts,
}

/// A class of pods.
#[derive(Clone, Debug)]
struct PodClass {
    key: ClassKey,
    pods: NodeCounts,
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct PodIndex {
    classes: Slab<PodClass>,
    class_ids: HashMap<ClassKey, usize>,
    classes_by_namespace: BTreeMap<String, BTreeSet<usize>>,
    rules: Slab<ExistingRule>,
    rule_ids: HashMap<Arc<AffinityRule>, usize>,
    /// The rules that name a namespace.
    rules_by_namespace: BTreeMap<String, BTreeSet<usize>>,
    /// The rules that select namespaces by labels.
    rules_of_any_namespace: BTreeSet<usize>,
}

impl PodIndex {
    /// Adds a pod on a node.
    pub fn add(&mut self, slot: NodeSlot, pod: &Arc<PodInfo>) {
        let is_deleting = pod.is_deleting;
        let key = ClassKey(pod.clone());
        let id = match self.class_ids.get(&key) {
            Some(id) => *id,
            None => {
                let id = self.classes.insert(PodClass {
                    key: key.clone(),
                    pods: NodeCounts::default(),
                });
                let namespace = pod.namespace().to_owned();
                self.classes_by_namespace
                    .entry(namespace)
                    .or_default()
                    .insert(id);
                self.class_ids.insert(key, id);
                id
            }
        };
        if let Some(class) = self.classes.get_mut(id) {
            class.pods.add(slot, is_deleting);
        }
        for rule in &pod.needs.affinity {
            let id = self.rule_id(rule);
            if let Some(rule) = self.rules.get_mut(id) {
                rule.owners.add(slot, is_deleting);
            }
        }
    }

    /// Removes a pod from a node.
    pub fn remove(&mut self, slot: NodeSlot, pod: &Arc<PodInfo>) {
        let is_deleting = pod.is_deleting;
        let key = ClassKey(pod.clone());
        if let Some(id) = self.class_ids.get(&key).copied()
            && let Some(class) = self.classes.get_mut(id)
            && class.pods.remove(slot, is_deleting)
        {
            self.classes.remove(id);
            self.class_ids.remove(&key);
            remove_from(&mut self.classes_by_namespace, pod.namespace(), id);
        }
        for rule in &pod.needs.affinity {
            if let Some(id) = self.rule_ids.get(rule).copied()
                && let Some(known) = self.rules.get_mut(id)
                && known.owners.remove(slot, is_deleting)
            {
                self.rules.remove(id);
                self.rule_ids.remove(rule);
                self.rules_of_any_namespace.remove(&id);
                for namespace in &rule.term.namespaces {
                    remove_from(&mut self.rules_by_namespace, namespace, id);
                }
            }
        }
    }

    fn rule_id(&mut self, rule: &Arc<AffinityRule>) -> usize {
        if let Some(id) = self.rule_ids.get(rule) {
            return *id;
        }
        let id = self.rules.insert(ExistingRule {
            rule: rule.clone(),
            owners: NodeCounts::default(),
        });
        self.rule_ids.insert(rule.clone(), id);
        for namespace in &rule.term.namespaces {
            let ids = self.rules_by_namespace.entry(namespace.clone());
            ids.or_default().insert(id);
        }
        if rule.term.namespace_selector.is_some() {
            self.rules_of_any_namespace.insert(id);
        }
        id
    }

    /// The rules of existing pods that may concern pods of a namespace, by its name.
    pub fn rules_for(&self, namespace: &str) -> impl Iterator<Item = &ExistingRule> {
        let named = self.rules_by_namespace.get(namespace);
        let any = &self.rules_of_any_namespace;
        let named = named.into_iter().flatten().filter(|id| !any.contains(id));
        named.chain(any).filter_map(|id| self.rules.get(*id))
    }

    /// The namespaces that have pods on nodes.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.classes_by_namespace.keys().map(String::as_str)
    }

    /// The pods of a namespace with labels for which `selects` is true: their number on each node,
    /// for each class.
    pub fn selected<'a>(
        &'a self,
        namespace: &str,
        selects: impl Fn(&LabelMap) -> bool + 'a,
    ) -> impl Iterator<Item = &'a NodeCount> {
        let ids = self.classes_by_namespace.get(namespace);
        let classes = ids
            .into_iter()
            .flatten()
            .filter_map(|id| self.classes.get(*id));
        let selected = classes.filter(move |class| selects(&class.key.0.labels));
        selected.flat_map(|class| class.pods.iter())
    }

    /// The number of the namespace's pods that the selector selects, those in deletion left out, on
    /// each of `nodes` slots.
    pub fn running_by_node(
        &self,
        namespace: &str,
        selector: Option<&LabelSelector>,
        nodes: usize,
    ) -> Vec<u32> {
        let mut by_node = vec![0_u32; nodes];
        let Some(selector) = selector else {
            return by_node;
        };
        for count in self.selected(namespace, |labels| selector.matches(labels)) {
            if let Some(sum) = by_node.get_mut(count.slot.index()) {
                *sum += count.pods - count.deleting.min(count.pods);
            }
        }
        by_node
    }
}

fn remove_from(ids: &mut BTreeMap<String, BTreeSet<usize>>, namespace: &str, id: usize) {
    if let Some(known) = ids.get_mut(namespace) {
        known.remove(&id);
        if known.is_empty() {
            ids.remove(namespace);
        }
    }
}
