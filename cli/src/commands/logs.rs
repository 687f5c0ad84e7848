//! `logs`: prints the way of a pod through the network, line by line, as `kubectl logs` would.

use std::process::ExitCode;

use anyhow::Context as _;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use podplane_api::names;
use podplane_client::{ApiError, Reason};
use tonic::{
    body::Body,
    codegen::{Service as _, http},
};

use super::{NamespaceArgs, completion::candidates};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output,
    report::{UsageError, unanswered},
};

/// Print the history of a pod from its object and events
///
/// No container runs in a pod, so there are no container logs. `podplane trace` shows the duration
/// of each step of a pod's start.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane logs web-0\n  podplane logs web-0 -f\n  podplane logs web-0 -n kube-system --tail 5"
)]
pub(crate) struct LogsArgs {
    /// Name of the pod, or pod/NAME
    #[arg(value_name = "POD", add = candidates::of(ResourceKind::Pod))]
    pod: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Follow: print new lines until the pod is deleted
    #[arg(short, long)]
    follow: bool,

    /// Show only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<u32>,
}

pub(crate) fn run(args: LogsArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    block_on(async {
        let mut channel = podplane_client::endpoint::channel(&global.server()?)?;
        std::future::poll_fn(|context| channel.poll_ready(context))
            .await
            .map_err(|error| unanswered(&error.into()))?;
        let answer = channel.call(request(&args)?).await;
        let answer = answer.map_err(|error| unanswered(&error.into()))?;
        let is_refused = !answer.status().is_success();
        let mut body = answer.into_body().into_data_stream();
        let mut refusal = Vec::new();
        let mut line = Vec::new();
        while let Some(data) = body.next().await {
            let data = data.context("failed to read the log")?;
            if is_refused {
                refusal.extend_from_slice(&data);
                continue;
            }
            for piece in data.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(piece);
                if let Some(whole) = line.strip_suffix(b"\n") {
                    output::text(String::from_utf8_lossy(whole))?;
                    line.clear();
                }
            }
        }
        match is_refused {
            true => Err(refused(&refusal).into()),
            false => Ok(ExitCode::SUCCESS),
        }
    })
}

fn request(args: &LogsArgs) -> anyhow::Result<http::Request<Body>> {
    let LogsArgs {
        pod,
        namespace: NamespaceArgs { namespace },
        follow,
        tail,
    } = args;
    let pod = ["pod/", "pods/"]
        .iter()
        .find_map(|kind| pod.strip_prefix(kind))
        .unwrap_or(pod);
    for (what, name, mistakes) in [
        ("pod name", pod, names::dns1123_subdomain(pod)),
        ("namespace", namespace, names::dns1123_label(namespace)),
    ] {
        if !mistakes.is_empty() {
            let mistakes = mistakes.join("; ");
            return Err(UsageError(format!("invalid {what} {name:?}: {mistakes}")).into());
        }
    }
    let tail = tail.map(|lines| format!("&tailLines={lines}"));
    let tail = tail.unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?follow={follow}{tail}");
    let request = http::Request::get(path).body(Body::empty());
    request.context("invalid request for the log")
}

/// The error in a `Status`.
fn refused(status: &[u8]) -> ApiError {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let reason = Reason::parse(text("reason")).unwrap_or(Reason::InternalError);
    ApiError::new(reason, text("message"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parse_args;

    #[test]
    fn asks_for_the_log_of_the_pod() {
        for (line, path) in [
            (
                "logs web",
                "/api/v1/namespaces/default/pods/web/log?follow=false",
            ),
            (
                "logs pod/web -n x -f --tail 5",
                "/api/v1/namespaces/x/pods/web/log?follow=true&tailLines=5",
            ),
        ] {
            let args = parse_args(line.split(' ')).unwrap();
            assert_eq!(request(&args).unwrap().uri(), path);
        }
        for words in [["logs", "a b"], ["logs", "a?x=b"], ["logs", "a/../b"]] {
            let refused = request(&parse_args(words).unwrap()).unwrap_err();
            let name = words[1];
            assert!(
                refused
                    .to_string()
                    .starts_with(&format!("invalid pod name {name:?}: "))
            );
        }
    }

    #[test]
    fn quotes_the_refusal_of_the_server() {
        let status =
            br#"{"kind": "Status", "reason": "NotFound", "message": "pods \"x\" not found"}"#;
        assert_eq!(refused(status), ApiError::not_found("pods", "x"));
    }
}
