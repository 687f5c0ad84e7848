//! Questions to the schedulers of a cluster.

use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use podplane_client::{Endpoint, endpoint};
use podplane_proto::scheduler::{
    ExplainPodRequest, ExplainPodResponse, scheduler_service_client::SchedulerServiceClient,
};

use crate::{global::GlobalOptions, report::UnusableInput};

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
        Some(address) => vec![ask(global.for_port(address)?, request, timeout).await],
        None => {
            let schedulers = global.schedulers()?;
            if schedulers.is_empty() {
                // Says so, if there is no cluster at all.
                global.server()?;
            }
            join_all(
                schedulers
                    .into_iter()
                    .map(|address| ask(address, request, timeout)),
            )
            .await
        }
    };
    let mut best = Err(UnusableInput(anyhow::anyhow!(
        "no scheduler runs in {}: start a cluster with `podplane up`, or pass --scheduler",
        global.data_dir.display()
    ))
    .into());
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
