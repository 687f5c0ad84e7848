//! The nodes, pods and classes of a cluster: from a dump, or from the API server.

use std::{cell::RefCell, fs::File, io, path::Path, rc::Rc};

use anyhow::Context as _;
use podplane_api::{
    Object,
    apps::ReplicaSet,
    core::{Namespace, Node, Pod, Service},
    kinds::priority_class::system_priority_classes,
    pod_ips::PodIpResource,
    scheduling::PriorityClass,
    strict::StrictError,
};
use podplane_audit::{DumpCollector, WholeObject};
use podplane_client::{Client, ListParams};
use podplane_scheduler::{
    pod::{PodInfo, PodReader},
    workloads::without_template,
};

use crate::{
    commands::audit,
    global::{GlobalOptions, block_on},
};

/// The objects that decide on the place of a pod.
#[derive(Debug, Default)]
pub(super) struct ClusterObjects {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<PodInfo>,
    /// Empty for a dump without them: then only the names of namespaces can be selected.
    pub(super) namespaces: Vec<Namespace>,
    /// With the ReplicaSets, for the default spread of pods of workloads.
    pub(super) services: Vec<Service>,
    pub(super) replica_sets: Vec<ReplicaSet>,
    /// Those of the cluster; of a dump also the built-in ones, which it need not have.
    pub(super) classes: Vec<PriorityClass>,
    /// The objects of the dump that are not valid.
    pub(super) invalid: Vec<String>,
}

/// Lists the objects of the API server.
pub(super) fn from_server(
    global: &GlobalOptions,
    pod_ips: &PodIpResource,
) -> anyhow::Result<ClusterObjects> {
    let listed = block_on(async { list(&global.client()?, pod_ips).await });
    listed.map_err(|error| global.locate(error))
}

/// Lists the objects of the cluster that kubectl would reach, or of the kubeconfig.
pub(super) fn from_cluster(
    kubeconfig: Option<&Path>,
    pod_ips: &PodIpResource,
) -> anyhow::Result<ClusterObjects> {
    block_on(async {
        let client = Client::over_rest(audit::source::config(kubeconfig).await?)?;
        list(&client, pod_ips).await
    })
}

async fn list(client: &Client, pod_ips: &PodIpResource) -> anyhow::Result<ClusterObjects> {
    let all = ListParams::default();
    let mut reader = PodReader::new(pod_ips.clone());
    let pods = client.all::<Pod>().list(&all).await?.items;
    Ok(ClusterObjects {
        nodes: client.all::<Node>().list(&all).await?.items,
        pods: pods.iter().map(|pod| reader.read(pod)).collect(),
        namespaces: client.all::<Namespace>().list(&all).await?.items,
        services: client.all::<Service>().list(&all).await?.items,
        replica_sets: client.all::<ReplicaSet>().list(&all).await?.items,
        classes: client.all::<PriorityClass>().list(&all).await?.items,
        invalid: Vec::new(),
    })
}

/// Reads a dump of nodes and pods, and of what else decides if it has that; `-` for standard input.
pub(super) fn from_dump(file: &Path, pod_ips: &PodIpResource) -> anyhow::Result<ClusterObjects> {
    let objects = Rc::new(RefCell::new(ClusterObjects::default()));
    let sink = objects.clone();
    let mut reader = PodReader::new(pod_ips.clone());
    let mut collector = DumpCollector::passing(move |kind, object| {
        sink.borrow_mut().add(kind, object, &mut reader);
    });
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
    fn add(&mut self, kind: &str, object: WholeObject<'_>, reader: &mut PodReader) {
        let added = match kind {
            "Node" => decoded(object).map(|mut node: Node| {
                node.metadata.managed_fields = None;
                self.nodes.push(node);
            }),
            "PriorityClass" => decoded(object).map(|class| self.classes.push(class)),
            "ReplicaSet" => {
                decoded(object).map(|set| self.replica_sets.push(without_template(set)))
            }
            "Service" => decoded(object).map(|service| self.services.push(service)),
            _ => decoded(object).map(|mut pod: Pod| {
                if pod.uid().is_empty() {
                    pod.metadata.uid = Some(pod.key().to_string());
                }
                self.pods.push(reader.read(&pod));
            }),
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
