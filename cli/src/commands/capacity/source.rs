//! The nodes, pods and classes of a cluster: from a dump, or from the API server.

use std::{cell::RefCell, fs::File, io, path::Path, rc::Rc};

use anyhow::Context as _;
use podplane_api::{
    Object,
    core::{Container, Namespace, Node, Pod},
    kinds::priority_class::system_priority_classes,
    meta::ObjectMeta,
    scheduling::PriorityClass,
    strict::StrictError,
};
use podplane_audit::{DumpCollector, WholeObject};
use podplane_client::ListParams;

use crate::global::{GlobalOptions, block_on};

/// The objects that decide on the place of a pod.
#[derive(Debug, Default)]
pub(super) struct ClusterObjects {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
    /// Empty for a dump without them: then only the names of namespaces can be selected.
    pub(super) namespaces: Vec<Namespace>,
    /// Those of the cluster; of a dump also the built-in ones, which it need not have.
    pub(super) classes: Vec<PriorityClass>,
    /// The objects of the dump that are not valid.
    pub(super) invalid: Vec<String>,
}

/// Lists the objects of the API server.
pub(super) fn from_server(global: &GlobalOptions) -> anyhow::Result<ClusterObjects> {
    let listed = block_on(async {
        let client = global.client()?;
        let all = ListParams::default();
        Ok(ClusterObjects {
            nodes: client.all::<Node>().list(&all).await?.items,
            pods: client.all::<Pod>().list(&all).await?.items,
            namespaces: client.all::<Namespace>().list(&all).await?.items,
            classes: client.all::<PriorityClass>().list(&all).await?.items,
            invalid: Vec::new(),
        })
    });
    listed.map_err(|error| global.locate(error))
}

/// Reads a dump of nodes, pods and perhaps PriorityClasses; `-` for standard input.
pub(super) fn from_dump(file: &Path) -> anyhow::Result<ClusterObjects> {
    let objects = Rc::new(RefCell::new(ClusterObjects::default()));
    let sink = objects.clone();
    let mut collector =
        DumpCollector::passing(move |kind, object| sink.borrow_mut().add(kind, object));
    let name_it = || match file == Path::new("-") {
        true => "failed to read standard input".to_owned(),
        false => format!("failed to read {}", file.display()),
    };
    match file == Path::new("-") {
        true => collector.read(io::stdin().lock()),
        false => collector.read(File::open(file).with_context(name_it)?),
    }
    .with_context(name_it)?;
    let mut objects = objects.take();
    objects.classes.extend(system_priority_classes());
    Ok(objects)
}

impl ClusterObjects {
    fn add(&mut self, kind: &str, object: WholeObject<'_>) {
        let added = match kind {
            "Node" => decoded(object).map(|mut node: Node| {
                prune(&mut node.metadata);
                if let Some(status) = &mut node.status {
                    status.images = None;
                }
                self.nodes.push(node);
            }),
            "PriorityClass" => decoded(object).map(|class| self.classes.push(class)),
            _ => decoded(object).map(|pod| self.pods.push(pruned(pod))),
        };
        if let Err((name, error)) = added {
            let kind = kind.to_lowercase();
            self.invalid.push(format!("{kind} {name}: {error}"));
        }
    }
}

/// Decodes an object, or returns its name and what is wrong.
fn decoded<K: Object>(object: WholeObject<'_>) -> Result<K, (String, StrictError)> {
    let document = match object {
        WholeObject::Value(document) => document,
        WholeObject::Json(text) => match K::from_slice(text) {
            Ok(object) => return Ok(object),
            // Decoded again for the path of the invalid field.
            Err(_) => serde_json::from_slice(text).unwrap_or_default(),
        },
    };
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let name = name.to_owned();
    let decoded = K::from_json_noting(document);
    decoded
        .map(|(object, _)| object)
        .map_err(|error| (name, error))
}

/// Gives the pod a UID if it has none, and removes large fields that no decision reads.
fn pruned(mut pod: Pod) -> Pod {
    if pod.uid().is_empty() {
        pod.metadata.uid = Some(pod.key().to_string());
    }
    prune(&mut pod.metadata);
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.init_container_statuses = None;
    }
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        let containers = spec.containers.iter_mut();
        for container in containers.chain(spec.init_containers.iter_mut().flatten()) {
            *container = Container {
                name: std::mem::take(&mut container.name),
                ports: container.ports.take(),
                resources: container.resources.take(),
                restart_policy: container.restart_policy.take(),
                ..Container::default()
            };
        }
    }
    pod
}

fn prune(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.owner_references = None;
}
