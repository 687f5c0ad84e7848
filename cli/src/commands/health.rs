//! `health`: asks servers for their health, for tools that run a program and read its exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use podplane_client::{Endpoint, endpoint};
use podplane_cluster::settings::not_found;
use tonic::{Code, Request};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{BatchOutcome, duration};
use crate::{
    global::{GlobalOptions, block_on},
    output,
};

/// Check the health of gRPC servers (grpc.health.v1)
///
/// Works with any gRPC server that has this service, such as podplane's services, a container
/// runtime or etcd. Exit codes: 0 all servers are healthy; 1 some are not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane health\n  podplane health 127.0.0.1:7080\n  podplane health $(podplane status ipam-controller --socket)\n  podplane health unix:/run/containerd/containerd.sock --timeout 1s"
)]
pub(crate) struct HealthArgs {
    /// Check these servers: HOST:PORT, a URL, unix:PATH, or the absolute path of a unix socket
    /// [default: the API server]
    #[arg(value_name = "ADDR")]
    addresses: Vec<Endpoint>,

    /// Check this gRPC service, such as podplane.node.v1.NodeNetworkService [default: the whole
    /// server]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    service: String,

    /// Time out each request after this time, such as 500ms or 3s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "3s")]
    timeout: Duration,
}

pub(crate) fn run(args: &HealthArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let addresses = match args.addresses.as_slice() {
        [] => vec![global.server()?],
        given => given
            .iter()
            .map(|address| global.for_port(address))
            .collect::<Result<_, _>>()?,
    };
    block_on(async {
        let mut outcome = BatchOutcome::default();
        for address in addresses {
            let asked = ask(&address, args).await;
            if let Some(said) = outcome.note(asked)? {
                output::line(format_args!("{address} {said}"))?;
            }
        }
        Ok(outcome.exit_code())
    })
}

/// Returns `SERVING`, or an error with the other answer.
async fn ask(address: &Endpoint, args: &HealthArgs) -> anyhow::Result<&'static str> {
    let mut request = Request::new(HealthCheckRequest {
        service: args.service.clone(),
    });
    request.set_timeout(args.timeout);
    let mut health = HealthClient::new(endpoint::channel(address)?);
    // The timeout of a request is for the server; a server that does not answer at all needs a
    // timer here.
    let answer = tokio::time::timeout(args.timeout, health.check(request))
        .await
        .with_context(|| {
            format!(
                "the server at {address} does not answer within {:?}",
                args.timeout
            )
        })?;
    let status = match answer {
        Ok(answer) => answer.into_inner().status(),
        Err(error) if error.code() == Code::NotFound => {
            anyhow::bail!(not_found(
                "service",
                &args.service,
                &format!("the server at {address} has no health of that name")
            ))
        }
        Err(error) if error.code() == Code::Unavailable => {
            let error = anyhow::Error::from(error);
            anyhow::bail!(
                "the server at {address} does not answer: {}",
                error.root_cause()
            );
        }
        Err(error) => {
            anyhow::bail!(
                "failed to check the health of {address}: {}",
                error.message()
            );
        }
    };
    anyhow::ensure!(
        status == ServingStatus::Serving,
        "the server at {address} says {}",
        status.as_str_name()
    );
    Ok(status.as_str_name())
}
