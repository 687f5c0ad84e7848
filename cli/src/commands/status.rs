//! `status`: shows the running cluster.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::ValueEnum;
use podplane_cluster::{
    data_dir::DataDir, launch, processes::cri_endpoint, settings::service_not_found,
};
use podplane_proto::cluster::{GetStatusResponse, ServiceStatus};
use serde_json::json;

use crate::{
    global::{GlobalOptions, block_on},
    output::{self, table::TextTable},
    pods::not_running,
    report,
};

/// The time that a starting or stopping cluster has to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of nodes beyond which they are not listed one per line.
const FEW: usize = 20;

/// Show the running services, network mode, nodes and CRI sockets
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane status\n  podplane status -o json\n  grpcurl -plaintext -authority localhost -unix $(podplane status scheduler --socket) list\n  curl --unix-socket $(podplane status kubelet --socket) http://localhost/metrics"
)]
pub(crate) struct StatusArgs {
    /// Print only the address of this service: supervisor, apiserver, scheduler, kubelet, …; for a
    /// prefix, of the first service that it matches
    #[arg(value_name = "SERVICE", conflicts_with = "output")]
    service: Option<String>,

    /// Print the HTTP address of SERVICE (/metrics, /livez, /readyz, /debug/log-level); requires
    /// SERVICE
    #[arg(long, requires = "service")]
    http: bool,

    /// Print the path of SERVICE's unix socket, which needs no credentials; requires SERVICE
    ///
    /// It has gRPC and HTTP, for processes of the user of the cluster and of root.
    #[arg(long, requires = "service", conflicts_with = "http")]
    socket: bool,

    /// Print in this format instead of as text
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<StatusFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StatusFormat {
    /// One JSON document
    Json,
}

pub(crate) fn run(args: StatusArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    let found = if dir.is_ours()? {
        block_on(launch::find(&dir, PATIENCE))?
    } else {
        None
    };
    if let Some(service) = &args.service {
        let status = found.ok_or_else(|| not_running(&dir))?;
        let addresses = addresses(&dir, &status, service)?;
        output::line(match (args.http, args.socket) {
            (true, _) => addresses.http,
            (_, true) => addresses.socket,
            _ => addresses.grpc,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    match (args.output, found) {
        (Some(StatusFormat::Json), Some(status)) => output::json(&as_json(&dir, &status))?,
        (Some(StatusFormat::Json), None) => {
            output::json(&json!({"running": false, "dataDir": dir.path()}))?;
            return Ok(ExitCode::FAILURE);
        }
        (None, Some(status)) => text(&dir, &status)?,
        (None, None) => {
            report::print(&not_running(&dir));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The addresses of a service.
struct ServiceAddresses {
    grpc: String,
    http: String,
    /// The path of its socket.
    socket: String,
}

fn addresses(
    dir: &DataDir,
    status: &GetStatusResponse,
    name: &str,
) -> anyhow::Result<ServiceAddresses> {
    if name == "supervisor" {
        let control = dir.control_socket().display().to_string();
        return Ok(ServiceAddresses {
            grpc: format!("unix:{control}"),
            http: status.http_address.clone(),
            socket: control,
        });
    }
    let services = status.services.iter();
    let found = services
        .clone()
        .find(|service| service.name == name)
        .or_else(|| {
            services
                .clone()
                .find(|service| service.name.starts_with(name))
        });
    let found = found.with_context(|| service_not_found(name))?;
    let socket = match found.address.strip_prefix("unix:") {
        Some(path) => path.to_owned(),
        None => dir.socket(&found.name).display().to_string(),
    };
    Ok(ServiceAddresses {
        grpc: found.address.clone(),
        http: found.http_address.clone(),
        socket,
    })
}

fn as_json(dir: &DataDir, status: &GetStatusResponse) -> serde_json::Value {
    let GetStatusResponse {
        server,
        network,
        network_reason,
        pid,
        services,
        nodes,
        cri_endpoint: of_others,
        http_address,
    } = status;
    let service = |service: &ServiceStatus| {
        let ServiceStatus {
            name,
            pid,
            restarts,
            log,
            address,
            http_address,
            nodes,
        } = service;
        json!({"name": name, "pid": pid, "restarts": restarts, "address": address, "httpAddress": http_address, "log": log, "nodes": nodes})
    };
    let node = |node: &String| json!({"name": node, "criSocket": cri_endpoint(dir, of_others.as_deref(), node)});
    json!({
        "running": true,
        "dataDir": dir.path(),
        "pid": pid,
        "server": server,
        "network": {"mode": network, "reason": network_reason},
        "control": format!("unix:{}", dir.control_socket().display()),
        "httpAddress": http_address,
        "services": services.iter().map(service).collect::<Vec<_>>(),
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

fn text(dir: &DataDir, status: &GetStatusResponse) -> anyhow::Result<()> {
    output::line(format_args!("Data directory:  {}", dir.path().display()))?;
    output::line(format_args!("Supervisor:      {}", status.pid))?;
    output::line(format_args!(
        "Control:         unix:{}, {}",
        dir.control_socket().display(),
        status.http_address
    ))?;
    output::line(format_args!("API server:      {}", status.server))?;
    output::line(format_args!(
        "Network:         {} ({})",
        status.network, status.network_reason
    ))?;
    output::line(format_args!(
        "Logs:            {}",
        dir.log("SERVICE").display()
    ))?;
    output::line("")?;
    let row = |service: &ServiceStatus| {
        vec![
            service.name.clone(),
            service
                .pid
                .map_or_else(|| "restarting".into(), |pid| pid.to_string()),
            service.restarts.to_string(),
            // A node's socket is shown below.
            match service.address.starts_with("unix:") {
                true => service.http_address.clone(),
                false => service.address.clone(),
            },
        ]
    };
    let mut table = TextTable::new(vec!["SERVICE", "PID", "RESTARTS", "ADDRESS"]);
    output::line(table.rows(status.services.iter().map(row)))?;
    output::line("")?;
    let row = |node: &String| {
        let endpoint = cri_endpoint(dir, status.cri_endpoint.as_deref(), node);
        vec![node.clone(), endpoint]
    };
    let mut table = TextTable::new(vec!["NODE", "CRI SOCKET"]);
    output::line(table.rows(status.nodes.iter().take(FEW).map(row)))?;
    if let Some(more @ 1..) = status.nodes.len().checked_sub(FEW) {
        output::line(format_args!("and {more} more"))?;
    }
    Ok(())
}
