//! `health`: asks servers how they are, for those who can start a program and look at its exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use podplane_client::{Endpoint, endpoint};
use tonic::{Code, Request};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{Outcome, duration};
use crate::{
    global::{Global, block_on},
    output,
};

/// Ask servers whether they serve, by grpc.health.v1
///
/// Succeeds if all of them do. Any gRPC server with health will do: podplane's own, a container runtime's socket, etcd.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane health\n  podplane health 127.0.0.1:7080\n  podplane health unix:/run/containerd/containerd.sock --timeout 1s"
)]
pub(crate) struct Args {
    /// Who is asked: HOST:PORT, a URL, or unix:PATH. Default: the API server
    #[arg(value_name = "ADDR")]
    addresses: Vec<Endpoint>,

    /// One service of the server. Default: the server as a whole
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    service: String,

    /// How long each may take to answer
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "3s")]
    timeout: Duration,
}

pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let addresses = match args.addresses.as_slice() {
        [] => vec![global.server()?],
        given => given.to_vec(),
    };
    block_on(async {
        let mut outcome = Outcome::default();
        for address in addresses {
            let asked = ask(&address, args).await;
            if let Some(said) = outcome.note(asked)? {
                output::line(format_args!("{address} {said}"))?;
            }
        }
        Ok(outcome.exit_code())
    })
}

/// `SERVING`, or an error that has what it said instead.
async fn ask(address: &Endpoint, args: &Args) -> anyhow::Result<&'static str> {
    let mut request = Request::new(HealthCheckRequest {
        service: args.service.clone(),
    });
    request.set_timeout(args.timeout);
    let mut health = HealthClient::new(endpoint::channel(address)?);
    // The timeout of a request is for the server; one that does not answer at all needs a clock here.
    let answer = tokio::time::timeout(args.timeout, health.check(request))
        .await
        .with_context(|| format!("{address} does not answer within {:?}", args.timeout))?;
    let status = match answer {
        Ok(answer) => answer.into_inner().status(),
        Err(error) if error.code() == Code::NotFound => {
            anyhow::bail!("{address} has no service {:?}", args.service)
        }
        Err(error) => {
            return Err(error).with_context(|| format!("ask {address} for its health"));
        }
    };
    anyhow::ensure!(
        status == ServingStatus::Serving,
        "{address} says {}",
        status.as_str_name()
    );
    Ok(status.as_str_name())
}
