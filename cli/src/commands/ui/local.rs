//! The facts that the machine of the nodes knows beyond the API.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    extract::{Path as UrlPath, Request, State},
    response::Response,
};
use http::StatusCode;
use jiff::Timestamp;
use podplane_api::node::NodeName;
use podplane_cluster::{data_dir::DataDir, fabric};
use podplane_kubelet::cri::record::{SandboxRecord, SandboxState};
use podplane_netlink::{Link, Netlink, Route};
use podplane_summary::{LeaseFileRow, LinkRow, NodeLocal, RouteRow, SandboxRow};
use serde_json::Value;

use super::{UiParts, proxy};
use crate::{
    page::{document, refusal},
    pods,
};

/// The cluster of the data directory on this machine.
#[derive(Debug)]
pub(super) struct LocalCluster {
    dir: DataDir,
    /// True if the namespaces of the nodes can be entered.
    has_namespaces: bool,
}

impl LocalCluster {
    /// Enters the cluster of the directory; `None` if none runs there. The process must have one
    /// thread.
    pub(super) fn enter(data_dir: &Path) -> Option<Self> {
        let dir = DataDir::new(data_dir).ok()?;
        dir.running().ok()??;
        // A cluster in ledger mode has none, and others' clusters are not entered.
        let has_namespaces = pods::enter_cluster(&dir).is_ok();
        Some(Self {
            dir,
            has_namespaces,
        })
    }

    /// The known facts of a node; none of one that is elsewhere.
    fn node(&self, name: &NodeName) -> NodeLocal {
        let name = name.as_str();
        let records = pods::sandboxes(&self.dir, name).ok().flatten();
        let Some(records) = records else {
            return NodeLocal::default();
        };
        let netns = fabric::node_netns(&self.dir.run(), name);
        let (links, routes) = match self.has_namespaces {
            true => network(&netns, &peers(&records)).unwrap_or_default(),
            false => (None, None),
        };
        NodeLocal {
            lease_files: lease_files(&self.dir.nodes().join(name).join("networks")).ok(),
            sandboxes: Some(records.iter().map(sandbox).collect()),
            routes,
            links,
        }
    }
}

fn pod_of(record: &SandboxRecord) -> String {
    format!("{}/{}", record.metadata.namespace, record.metadata.name)
}

fn sandbox(record: &SandboxRecord) -> SandboxRow {
    let created = Timestamp::from_nanosecond(record.created_at.into());
    let ips = record.network.iter().flat_map(|network| &network.ips);
    SandboxRow {
        id: record.id.as_str().to_owned(),
        pod: pod_of(record),
        state: match record.state {
            SandboxState::Creating => "creating",
            SandboxState::Ready => "ready",
            SandboxState::NotReady => "notReady",
        }
        .to_owned(),
        ips: ips.map(ToString::to_string).collect(),
        created: created.ok().map(|time| time.to_string()),
    }
}

/// The allocation files of host-local, in a directory for each network.
fn lease_files(networks: &Path) -> io::Result<Vec<LeaseFileRow>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(networks) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let dir = entry?.path();
        let network = dir.file_name().unwrap_or_default().to_string_lossy();
        for lease in podplane_host_local::usage(&dir)? {
            let modified = fs::metadata(dir.join(lease.ip.to_string()));
            let modified = modified.and_then(|metadata| metadata.modified());
            let modified = modified
                .ok()
                .and_then(|time| Timestamp::try_from(time).ok());
            found.push(LeaseFileRow {
                network: network.clone().into_owned(),
                ip: lease.ip.to_string(),
                container_id: lease.container_id,
                if_name: lease.ifname.unwrap_or_default(),
                modified: modified.map(|time| time.to_string()),
            });
        }
    }
    found.sort_by(|a, b| (&a.network, &a.ip).cmp(&(&b.network, &b.ip)));
    Ok(found)
}

/// The namespaces of pods, by name.
fn peers(records: &[SandboxRecord]) -> Vec<(String, PathBuf)> {
    let ready = records
        .iter()
        .filter(|record| record.state == SandboxState::Ready);
    let with_network = ready.filter_map(|record| Some((record, record.network.as_ref()?)));
    with_network
        .map(|(record, network)| (pod_of(record), network.netns.clone()))
        .collect()
}

type NetworkRows = (Option<Vec<LinkRow>>, Option<Vec<RouteRow>>);

/// The links and routes of a namespace. `peers` are the namespaces at the other ends of its veths.
fn network(netns: &Path, peers: &[(String, PathBuf)]) -> Option<NetworkRows> {
    let mut netlink = Netlink::open_in(netns).ok()?;
    let links = netlink.links().ok()?;
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, &*link.name)).collect();
    // A veth of a pod names the index of its peer, which is in this namespace.
    let mut pods = BTreeMap::new();
    for (pod, netns) in peers {
        let inside = Netlink::open_in(netns).and_then(|mut netlink| netlink.links());
        let ends = inside.unwrap_or_default();
        for end in ends {
            pods.extend(end.peer.map(|peer| (peer, pod.clone())));
        }
    }
    let rows = links.iter().map(|link| {
        let addresses = netlink.addresses(link.index).unwrap_or_default();
        let name = |index: u32| names.get(&index).map(|name| (*name).to_owned());
        let peer = pods.get(&link.index).filter(|_| link.kind == "veth");
        let Link {
            kind,
            is_up,
            controller,
            ..
        } = link;
        LinkRow {
            name: link.name.clone(),
            kind: Some(kind.clone()).filter(|kind| !kind.is_empty()),
            up: *is_up,
            master: controller.and_then(name),
            peer: peer.cloned(),
            addresses: addresses
                .iter()
                .map(|address| address.net.to_string())
                .collect(),
        }
    });
    let links: Vec<LinkRow> = rows.collect();
    let routes = netlink.routes().ok()?;
    let routes = routes.iter().filter(|route| route.table == Route::MAIN);
    let routes = routes.map(|route| RouteRow {
        destination: route.destination,
        via: route.gateway.map(|gateway| gateway.to_string()),
        dev: route
            .index
            .and_then(|index| names.get(&index).map(|name| (*name).to_owned())),
    });
    let routes = routes.collect();
    Some((Some(links), Some(routes)))
}

/// The node as the API server knows it, with what this machine knows.
pub(super) async fn node(
    State(parts): State<Arc<UiParts>>,
    UrlPath(name): UrlPath<String>,
    request: Request,
) -> Response {
    let answer = match parts.upstream.send(request).await {
        Ok(answer) => answer,
        Err(error) => return proxy::unreachable(&error),
    };
    let (StatusCode::OK, Some(_), Ok(name)) =
        (answer.status(), &parts.local, name.parse::<NodeName>())
    else {
        return answer;
    };
    let reading = Arc::clone(&parts);
    // Files and sockets, which may block.
    let local =
        tokio::task::spawn_blocking(move || reading.local.as_ref().map(|local| local.node(&name)));
    let local = local.await.ok().flatten().unwrap_or_default();
    let merged = async {
        let mut known = proxy::document(answer).await?;
        if let (Some(known), Value::Object(local)) =
            (known.as_object_mut(), serde_json::to_value(local)?)
        {
            known.extend(local);
        }
        anyhow::Ok(known.to_string())
    };
    match merged.await {
        Ok(merged) => document(merged),
        Err(error) => {
            let why = format!("failed to read the node: {error:#}");
            refusal(StatusCode::BAD_GATEWAY, "InternalError", &why)
        }
    }
}
