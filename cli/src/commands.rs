//! The commands, one module each: its flags, such as `GetArgs`, and `run`.

pub(crate) mod apply;
pub(crate) mod audit;
mod blocks;
pub(crate) mod capacity;
pub(crate) mod certs;
pub(crate) mod cni;
pub(crate) mod completion;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod describe;
pub(crate) mod down;
pub(crate) mod exec;
pub(crate) mod explain;
mod forget;
pub(crate) mod get;
pub(crate) mod health;
pub(crate) mod kubeconfig;
pub(crate) mod logs;
pub(crate) mod map;
pub(crate) mod node;
mod node_run;
pub(crate) mod ping;
pub(crate) mod plan;
pub(crate) mod plugins;
pub(crate) mod replay;
mod reset_bridge;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod test;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod ui;
pub(crate) mod up;
pub(crate) mod wait;

use std::{path::PathBuf, process::ExitCode, str::FromStr as _, time::Duration};

use podplane_api::{Object, Scope};
use podplane_client::{Api, Client};

use crate::{kind::ResourceKind, report};

/// Which namespace a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct NamespaceArgs {
    /// Use the objects in this namespace; ignored for kinds without namespaces
    #[arg(
        short,
        long,
        env = "PODPLANE_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "default",
        add = completion::candidates::of(ResourceKind::Namespace)
    )]
    pub(crate) namespace: String,
}

/// Which manifests a command reads.
#[derive(Debug, clap::Args)]
pub(crate) struct FileArgs {
    /// Read manifests from a file, a directory (.yaml, .yml, .json), or - for standard input; may
    /// be repeated
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub(crate) filename: Vec<PathBuf>,
}

/// The maximum number of concurrent requests of one command. The server commits requests that
/// arrive together in one write.
const IN_FLIGHT: usize = 32;

/// The objects of a kind: in `namespace`, or in all if it is `None` or the kind is cluster-scoped.
fn api<K: Object>(client: &Client, namespace: Option<&str>) -> Api<K> {
    match (K::SCOPE, namespace) {
        (Scope::Namespaced, Some(namespace)) => client.namespaced(namespace),
        (Scope::Namespaced, None) | (Scope::Cluster, _) => client.all(),
    }
}

/// The outcome of several independent pieces of work.
#[derive(Debug, Default)]
struct BatchOutcome {
    failed: bool,
}

impl BatchOutcome {
    /// Unwraps a result. An error is printed and remembered, and does not end the other work,
    /// unless the server does not answer.
    fn note<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is::<report::OutputClosed>() => Err(error),
            // It would not answer the other requests.
            Err(error) if report::is_unanswered(&error) => Err(error),
            Err(error) => {
                report::print(&error);
                self.failed = true;
                Ok(None)
            }
        }
    }

    fn exit_code(&self) -> ExitCode {
        if self.failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// Parses a command line, which begins with the name of the command, for tests.
#[cfg(test)]
fn parse_args<'a, A: clap::Args>(
    line: impl IntoIterator<Item = &'a str>,
) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("test"));
    let matches = command.try_get_matches_from(line.into_iter().map(str::to_owned))?;
    A::from_arg_matches(&matches)
}

/// Parses a duration of the command line: `30s`, `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err(format!("`{text}` has no unit: write {text}s for seconds"));
    }
    let parsed = jiff::SignedDuration::from_str(text);
    let parsed = parsed.map_err(|_| "want a duration such as 30s or 1m30s")?;
    Duration::try_from(parsed).map_err(|_| "it must not be negative".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_syntax_of_go() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        let refused = |text| duration(text).unwrap_err();
        assert_eq!(refused("3"), "`3` has no unit: write 3s for seconds");
        assert_eq!(refused("-1s"), "it must not be negative");
        assert_eq!(refused("soon"), "want a duration such as 30s or 1m30s");
    }
}
