//! The nodes and pods of a cluster: from a dump, or from the API server.

use std::{cell::RefCell, fs::File, io, path::Path, rc::Rc};

use anyhow::Context as _;
use podplane_api::{
    Object as _,
    apps::ReplicaSet,
    core::{Namespace, Node, Pod, Service},
};
use podplane_audit::DumpCollector;
use podplane_client::ListParams;
use serde_json::Value;

use crate::global::{GlobalOptions, block_on};

/// The objects that decide on the place of a pod.
#[derive(Debug, Default)]
pub(super) struct ClusterObjects {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
    /// Empty for a dump without them: then only the names of namespaces can be selected.
    pub(super) namespaces: Vec<Namespace>,
    /// With the ReplicaSets, for the default spread of pods of workloads.
    pub(super) services: Vec<Service>,
    pub(super) replica_sets: Vec<ReplicaSet>,
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
            services: client.all::<Service>().list(&all).await?.items,
            replica_sets: client.all::<ReplicaSet>().list(&all).await?.items,
            invalid: Vec::new(),
        })
    });
    listed.map_err(|error| global.locate(error))
}

/// Reads a dump of nodes and pods, and of services and ReplicaSets if it has them; `-` for standard input.
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
    Ok(objects.take())
}

impl ClusterObjects {
    fn add(&mut self, kind: &str, mut object: Value) {
        prune(&mut object);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = format!("{} {name}", kind.to_lowercase());
        let added = match kind {
            "Node" => Node::from_json_noting(object).map(|(node, _)| self.nodes.push(node)),
            "Service" => {
                Service::from_json_noting(object).map(|(service, _)| self.services.push(service))
            }
            "ReplicaSet" => {
                ReplicaSet::from_json_noting(object).map(|(set, _)| self.replica_sets.push(set))
            }
            _ => Pod::from_json_noting(object).map(|(mut pod, _)| {
                if pod.uid().is_empty() {
                    pod.metadata.uid = Some(pod.key().to_string());
                }
                self.pods.push(pod);
            }),
        };
        if let Err(error) = added {
            self.invalid.push(format!("{name}: {error}"));
        }
    }
}

/// Removes large fields that no decision reads.
fn prune(object: &mut Value) {
    let remove = |object: &mut Value, pointer: &str, fields: &[&str]| {
        if let Some(Value::Object(parent)) = object.pointer_mut(pointer) {
            for field in fields {
                parent.remove(*field);
            }
        }
    };
    remove(object, "/metadata", &["managedFields", "ownerReferences"]);
    let statuses = ["containerStatuses", "initContainerStatuses"];
    remove(object, "/status", &statuses);
    remove(object, "/spec", &["template"]);
    for list in ["/spec/containers", "/spec/initContainers"] {
        if let Some(Value::Array(containers)) = object.pointer_mut(list) {
            for container in containers {
                remove(container, "", &["env", "volumeMounts", "command", "args"]);
            }
        }
    }
}
