//! Questions to the schedulers of a cluster.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use futures::future::join_all;
use podplane_client::{Endpoint, endpoint};
use podplane_cluster::trust;
use podplane_proto::scheduler::{
    ExplainPodRequest, ExplainPodResponse, scheduler_service_client::SchedulerServiceClient,
};

use crate::global::GlobalOptions;

/// The explanation of the scheduler that knows most of the pod: a standby knows no decision and no
/// attempt. `named` is the address of another scheduler than those of the data directory.
///
/// # Errors
///
/// The last scheduler's, if none answers in time.
pub(crate) async fn explain(
    global: &GlobalOptions,
    named: Option<&Endpoint>,
    request: &ExplainPodRequest,
    timeout: Duration,
) -> anyhow::Result<ExplainPodResponse> {
    let answers = match named {
        Some(address) => vec![ask(with_credentials(address, global)?, request, timeout).await],
        None => {
            let files = global.scheduler_address_files();
            let asked = files.iter().map(async |file| {
                let address = with_credentials(&address(file)?, global)?;
                ask(address, request, timeout).await
            });
            join_all(asked).await
        }
    };
    let mut best = Err(anyhow::anyhow!(
        "the address of the scheduler is not known: pass --scheduler"
    ));
    // In reverse, so that the first of equals is taken, which leads more often.
    for answer in answers.into_iter().rev() {
        let rank = |answer: &ExplainPodResponse| (answer.decision.is_some(), answer.attempts);
        match (&best, answer) {
            (Ok(known), Ok(answer)) if rank(known) > rank(&answer) => {}
            (Ok(_), Err(_)) => {}
            (_, answer) => best = answer,
        }
    }
    best
}

fn address(file: &Path) -> anyhow::Result<Endpoint> {
    let failed = || {
        format!(
            "failed to read the scheduler's address in {}; start a cluster with podplane up, or pass --scheduler",
            file.display()
        )
    };
    let text = trust::read_to_string(file).with_context(failed)?;
    text.trim().parse().with_context(failed)
}

/// The address with the credentials of the flags, which are shown to servers with TLS alone.
fn with_credentials(address: &Endpoint, global: &GlobalOptions) -> anyhow::Result<Endpoint> {
    match address.has_tls() {
        true => Ok(address.clone().with_credentials(global.credentials())?),
        false => Ok(address.clone()),
    }
}

async fn ask(
    address: Endpoint,
    request: &ExplainPodRequest,
    timeout: Duration,
) -> anyhow::Result<ExplainPodResponse> {
    let mut scheduler = SchedulerServiceClient::new(endpoint::channel(&address)?);
    let answer = tokio::time::timeout(timeout, scheduler.explain_pod(request.clone())).await;
    let answer = answer.with_context(|| {
        format!("the scheduler at {address} does not answer within {timeout:?}")
    })?;
    match answer {
        Ok(answer) => Ok(answer.into_inner()),
        Err(status) => anyhow::bail!("the scheduler at {address}: {}", status.message()),
    }
}
