//! The nodes, pods and classes of a cluster: from a dump, or from the API server.

use std::{cell::RefCell, path::Path, rc::Rc};

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
use podplane_client::{ApiError, Client, ListParams, Permission};
use podplane_progress::{PlainLines, Progress};
use podplane_scheduler::{
    pod::{PodInfo, PodReader},
    workloads::without_template,
};

use crate::{
    any_cluster::{AnyClusterFlags, list as to_list},
    commands::audit::source::from_file,
    global::{GlobalOptions, block_on},
    report::UnusableInput,
};

/// The number of objects requested at once; kubectl's number.
const PAGE: i64 = 500;

/// The rights that [`from_cluster`] needs.
const NEEDED: &[Permission] = &[
    to_list("", "nodes"),
    to_list("", "pods"),
    to_list("", "namespaces"),
    to_list("", "services"),
    to_list("apps", "replicasets"),
    to_list("scheduling.k8s.io", "priorityclasses"),
];

/// The objects that decide on the place of a pod.
#[derive(Debug, Default)]
pub(in crate::commands) struct ClusterObjects {
    pub(in crate::commands) nodes: Vec<Node>,
    pub(in crate::commands) pods: Vec<PodInfo>,
    /// Empty for a dump without them: then only the names of namespaces can be selected.
    pub(in crate::commands) namespaces: Vec<Namespace>,
    /// With the ReplicaSets, for the default spread of pods of workloads.
    pub(in crate::commands) services: Vec<Service>,
    pub(in crate::commands) replica_sets: Vec<ReplicaSet>,
    /// Those of the cluster; of a dump also the built-in ones, which it need not have.
    pub(in crate::commands) classes: Vec<PriorityClass>,
    /// The objects of the dump that are not valid.
    pub(in crate::commands) invalid: Vec<String>,
}

/// Lists the objects of the API server.
pub(super) fn from_server(
    global: &GlobalOptions,
    pod_ips: &PodIpResource,
    lines: PlainLines,
) -> anyhow::Result<ClusterObjects> {
    let _progress = Progress::with_lines("reading the cluster", lines);
    let listed = block_on(async { Ok(list(&global.client()?, pod_ips).await?) });
    listed.map_err(|error| global.locate(error))
}

/// Lists the objects of the cluster of the flags.
pub(super) fn from_cluster(
    flags: &AnyClusterFlags,
    pod_ips: &PodIpResource,
    lines: PlainLines,
) -> anyhow::Result<ClusterObjects> {
    let _progress = Progress::with_lines("reading the cluster", lines);
    block_on(async {
        let (client, _) = flags.client().await?;
        match list(&client, pod_ips).await {
            Ok(objects) => Ok(objects),
            Err(error) => Err(flags.name_missing_rules(error.into(), NEEDED).await),
        }
    })
}

/// Lists the objects. Only a page of whole pods is in memory at a time.
pub(in crate::commands) async fn list(
    client: &Client,
    pod_ips: &PodIpResource,
) -> Result<ClusterObjects, ApiError> {
    let mut reader = PodReader::new(pod_ips.clone());
    Ok(ClusterObjects {
        nodes: all(client, |node: Node| node).await?,
        pods: all(client, |pod: Pod| reader.read(&pod)).await?,
        namespaces: all(client, |namespace: Namespace| namespace).await?,
        services: all(client, |service: Service| service).await?,
        replica_sets: all(client, without_template).await?,
        classes: all(client, |class: PriorityClass| class).await?,
        invalid: Vec::new(),
    })
}

/// Lists what `read` makes of all objects of a kind, in pages.
pub(in crate::commands) async fn all<K: Object, T>(
    client: &Client,
    mut read: impl FnMut(K) -> T,
) -> Result<Vec<T>, ApiError> {
    let api = client.all::<K>();
    let mut params = ListParams {
        limit: PAGE,
        ..ListParams::default()
    };
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await?;
        items.extend(page.items.into_iter().map(&mut read));
        match page.continue_token {
            Some(token) => params.continue_token = token,
            None => return Ok(items),
        }
    }
}

/// Reads a dump of nodes and pods, and of what else decides if it has that; `-` for standard input.
pub(super) fn from_dump(
    file: &Path,
    pod_ips: &PodIpResource,
    lines: PlainLines,
) -> anyhow::Result<ClusterObjects> {
    let objects = Rc::new(RefCell::new(ClusterObjects::default()));
    let sink = objects.clone();
    let mut reader = PodReader::new(pod_ips.clone());
    let mut collector = DumpCollector::passing(move |kind, object| {
        sink.borrow_mut().add(kind, object, &mut reader);
    });
    let progress = Progress::with_lines("reading", lines);
    from_file(file, &mut collector, &progress).map_err(UnusableInput)?;
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
