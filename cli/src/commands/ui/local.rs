//! The facts that the machine of the nodes knows beyond the API.

use std::{fs, io, path::Path, sync::Arc};

use axum::{
    extract::{Path as UrlPath, Request, State},
    response::Response,
};
use http::StatusCode;
use jiff::Timestamp;
use podplane_api::node::NodeName;
use podplane_cluster::data_dir::DataDir;
use podplane_kubelet::cri::record::{SandboxRecord, SandboxState};
use podplane_summary::{LeaseFileRow, NodeLocal, SandboxRow};
use serde_json::Value;

use super::{UiParts, proxy};
use crate::{
    page::{document, refusal},
    pods, topology,
};

/// The cluster of the data directory on this machine.
#[derive(Debug)]
pub(super) struct LocalCluster {
    dir: DataDir,
    /// The reason why the namespaces of the nodes cannot be entered, if that is so.
    no_namespaces: Option<String>,
}

impl LocalCluster {
    /// Enters the cluster of the directory; `None` if none runs there. The process must have one
    /// thread.
    pub(super) fn enter(data_dir: &Path) -> Option<Self> {
        let dir = DataDir::new(data_dir).ok()?;
        let running = dir.running().ok()??;
        let no_namespaces = match running.kernel {
            true => pods::enter_cluster(&dir)
                .err()
                .map(|error| format!("The networks of the nodes cannot be entered: {error:#}.")),
            false => Some(
                "The cluster is in ledger mode: its nodes have addresses but no network."
                    .to_owned(),
            ),
        };
        Some(Self { dir, no_namespaces })
    }

    /// The known facts of a node; none of one that is elsewhere.
    fn node(&self, name: &NodeName) -> NodeLocal {
        let name = name.as_str();
        let records = pods::sandboxes(&self.dir, name).ok().flatten();
        let Some(records) = records else {
            return NodeLocal::without_network("The node runs on another machine.");
        };
        let network = match &self.no_namespaces {
            Some(why) => Err(why.clone()),
            None => {
                let ready = records
                    .iter()
                    .filter(|record| record.state == SandboxState::Ready);
                topology::read(&self.dir, name, ready)
                    .map_err(|error| format!("Failed to read the network of the node: {error:#}."))
            }
        };
        let local = NodeLocal {
            lease_files: lease_files(&self.dir.nodes().join(name).join("networks")).ok(),
            sandboxes: Some(records.iter().map(sandbox).collect()),
            ..NodeLocal::default()
        };
        match network {
            Ok(network) => local.with_network(network),
            Err(why) => NodeLocal {
                network_unknown: Some(why),
                ..local
            },
        }
    }
}

fn sandbox(record: &SandboxRecord) -> SandboxRow {
    let created = Timestamp::from_nanosecond(record.created_at.into());
    let ips = record.network.iter().flat_map(|network| &network.ips);
    SandboxRow {
        id: record.id.as_str().to_owned(),
        pod: format!("{}/{}", record.metadata.namespace, record.metadata.name),
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
