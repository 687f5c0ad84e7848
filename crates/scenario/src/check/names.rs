//! Checks of names: kinds, services, flags, nodes, processes.

use std::collections::BTreeSet;

use podplane_test_cluster::link;

use super::{CONTROL_PLANE, Checker};
use crate::{
    document::Path,
    format::{Network, Scalar},
    load::services,
    plan::glob,
    problem::{listed, suggestion},
    rule::Cel,
};

impl Checker<'_> {
    /// Checks that the API server serves a kind; `word` is the value at `path`, or its beginning.
    pub(super) fn kind(&mut self, path: &Path, word: &str) {
        let known = &self.catalog.kinds;
        if !known.contains_key(&word.to_lowercase()) {
            let hint = suggestion(word, known.keys().map(String::as_str));
            self.wrong(path, format!("unknown kind {word:?}{hint}"));
        }
    }

    /// Parses an expression about objects of a kind.
    pub(super) fn cel(&mut self, path: &Path, text: &str, kind: &str) -> Option<Cel> {
        let ty = self.catalog.kinds.get(&kind.to_lowercase()).copied();
        let parsed = Cel::parse(text).and_then(|cel| match ty.flatten() {
            Some(ty) => cel.of(text, ty),
            None => Ok(cel),
        });
        self.rule(path, text, parsed)
    }

    /// Checks that some service has this method, if one is named.
    pub(super) fn method(&mut self, path: &Path, name: Option<&str>) {
        if let Some(Err(error)) = name.map(link::check_method) {
            self.wrong(path, error.to_string());
        }
    }

    pub(super) fn unknown_service(&self, service: &str) -> String {
        let known = self.catalog.flags.keys().map(String::as_str);
        format!(
            "unknown service {service:?}; there are {}{}",
            services(self.catalog),
            suggestion(service, known)
        )
    }

    /// Checks that a service has a flag and takes the value; `path` is that of all of its flags.
    pub(super) fn flag(&mut self, path: &Path, service: &str, flag: &str, value: &Scalar) {
        let Some(known) = self.catalog.flags.get(service) else {
            return;
        };
        if !known.contains(flag) {
            let hint = suggestion(flag, known.iter().map(String::as_str));
            let see = if hint.is_empty() {
                format!(": see podplane {service} --help")
            } else {
                hint
            };
            self.wrong_key(
                &path.key(flag),
                format!("{service} has no flag {flag:?}{see}"),
            );
        } else if let Err(message) = (self.catalog.value)(service, flag, &value.to_string()) {
            self.wrong(&path.key(flag), message);
        }
    }

    /// Marks an earlier step, or this one, as the point from which events are counted.
    pub(super) fn mark(&mut self, path: &Path, name: &str) {
        if self.steps.iter().any(|step| step == name) {
            self.marks.insert(name.to_owned());
            return;
        }
        let hint = suggestion(name, self.steps.iter().map(String::as_str));
        self.wrong(
            path,
            format!("neither this step nor one before it has the name {name:?}{hint}"),
        );
    }

    pub(super) fn node(&mut self, path: &Path, name: &str) {
        let Some(nodes) = &self.nodes else { return };
        let is_known = match glob(name) {
            Some(pattern) => nodes.iter().any(|node| pattern.is_match(node)),
            None => nodes.contains(name),
        };
        if !is_known {
            let each: Vec<_> = nodes.iter().take(10).collect();
            let more = if nodes.len() > 10 { ", …" } else { "" };
            let hint = suggestion(name, nodes.iter().map(String::as_str));
            let message = format!(
                "there is no node {name:?} at this step; there are {}{more}{hint}",
                listed(&each)
            );
            self.wrong(path, message);
        }
    }

    /// Checks the name of a process that makes calls, which go over a link of its own.
    pub(super) fn caller(&mut self, path: &Path, name: &str) {
        self.process(path, name);
        let is_meant =
            |process: &str| glob(name).map_or(process == name, |pattern| pattern.is_match(process));
        let of_runtime = name
            .strip_prefix("cri-")
            .or(is_meant("cri-node-0").then_some("NODE"));
        if let Some(node) = of_runtime {
            self.wrong(
                path,
                format!("{name:?} makes no calls: name its caller, kubelet-{node}"),
            );
        } else if is_meant("apiserver") {
            self.wrong(
                path,
                format!("{name:?} makes no calls: name its caller, such as scheduler"),
            );
        }
    }

    /// Checks the name of a single process, which cannot be a pattern.
    pub(super) fn one_process(&mut self, path: &Path, name: &str) {
        if name.contains('*') {
            self.wrong(
                path,
                "invalid pattern: must be the full name of one process",
            );
        } else {
            self.process(path, name);
        }
    }

    /// Checks the name of a process, as `podplane status` shows it, or a pattern.
    pub(super) fn process(&mut self, path: &Path, name: &str) {
        let of_nodes = |name: &str| name.starts_with("kubelet-") || name.starts_with("cri-");
        self.names_one_node |= of_nodes(name) && !name.contains("-nodes-");
        if self.nodes.is_none() && (of_nodes(name) || name.contains('*')) {
            return;
        }
        let of_nodes = self
            .nodes
            .iter()
            .flatten()
            .flat_map(|node| [format!("kubelet-{node}"), format!("cri-{node}")]);
        // Nodes of ledger mode may share processes.
        let shared = (self.network != Network::Kernel)
            .then(|| ["kubelet-nodes-0", "cri-nodes-0"].map(String::from));
        let known: BTreeSet<String> = CONTROL_PLANE
            .map(String::from)
            .into_iter()
            .chain(of_nodes)
            .chain(shared.into_iter().flatten())
            .collect();
        let is_known = match glob(name) {
            Some(pattern) => known.iter().any(|process| pattern.is_match(process)),
            None => {
                known.contains(name)
                    || name.starts_with("kubelet-nodes-")
                    || name.starts_with("cri-nodes-")
            }
        };
        if !is_known {
            let hint = suggestion(name, known.iter().map(String::as_str));
            let message = format!(
                "there is no process {name:?} at this step; there are {}, and kubelet-NODE and cri-NODE of each node{hint}",
                CONTROL_PLANE.join(", ")
            );
            self.wrong(path, message);
        }
    }
}
