//! The flags by which a command reads any cluster of Kubernetes, and the rights that it needs
//! there.

use std::path::PathBuf;

use kube::Config;
use podplane_client::{ApiError, Client, Permission, Reason, ServerError, of_kubeconfig, refused};
use podplane_progress::Progress;
use podplane_summary::BlockListing;

use crate::report::NoAnswer;

/// The group of the flags that name a cluster, for conflicts with other sources.
pub(crate) const ANY_CLUSTER: &str = "any_cluster";

/// The flags that name a cluster, which is only read.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = ANY_CLUSTER, multiple = true)]
pub(crate) struct AnyClusterFlags {
    /// Read the cluster of this kubeconfig, read-only; without a FILE: of $KUBECONFIG, else
    /// ~/.kube/config
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    kubeconfig: Option<Option<PathBuf>>,

    /// Use this context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,

    /// Read the cluster that this pod runs in, as its ServiceAccount, read-only
    #[arg(long, conflicts_with = "kubeconfig")]
    in_cluster: bool,
}

impl AnyClusterFlags {
    /// Returns true if the flags name a cluster.
    pub(crate) fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.in_cluster
    }

    /// The address and the credentials of the cluster.
    pub(crate) async fn config(&self) -> anyhow::Result<Config> {
        if self.in_cluster {
            let config = Config::incluster();
            return Ok(config.map_err(|error| ServerError::InCluster(Box::new(error)))?);
        }
        let path = self.kubeconfig.iter().flatten().next();
        let path = path.map(PathBuf::as_path);
        Ok(of_kubeconfig(path, self.context.clone()).await?)
    }

    /// A client of the cluster, and the address of its server.
    pub(crate) async fn client(&self) -> anyhow::Result<(Client, String)> {
        let config = self.config().await?;
        let server = config.cluster_url.to_string();
        Ok((Client::over_rest(config)?, server))
    }

    /// A client of the cluster by its REST API alone, and the address of its server.
    pub(crate) async fn kube_client(&self) -> anyhow::Result<(kube::Client, String)> {
        let config = self.config().await?;
        let server = config.cluster_url.clone();
        match kube::Client::try_from(config) {
            Ok(client) => Ok((client, server.to_string())),
            Err(error) => Err(ServerError::Connection {
                server,
                source: Box::new(error),
            }
            .into()),
        }
    }

    /// Adds the address of the server to the error of a call that it does not answer.
    pub(crate) async fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        let is_refused = |error: &kube::Error| matches!(error, kube::Error::Api(_));
        let error = match error.downcast_ref().is_some_and(|error| !is_refused(error)) {
            // Said as for the other clients.
            true => error
                .downcast::<kube::Error>()
                .map_or_else(|error| error, |error| refused(error).into()),
            false => error,
        };
        match self.config().await {
            Ok(config) => NoAnswer::locate(error, config.cluster_url, ""),
            Err(_) => error,
        }
    }

    /// Names the rules of `needed` that the user lacks, if the error is a refusal for want of one,
    /// or the server, if it does not answer.
    pub(crate) async fn name_missing_rules(
        &self,
        error: anyhow::Error,
        needed: &'static [Permission],
    ) -> anyhow::Error {
        if !is_forbidden(&error) {
            return self.locate(error).await;
        }
        let missing = async {
            let (client, _) = self.client().await?;
            Ok::<_, anyhow::Error>(client.missing_rules(needed).await?)
        };
        match missing.await {
            Ok(missing) if !missing.is_empty() => error.context(format!(
                "the cluster does not permit: {} (docs/real-clusters.md has a ClusterRole with all rules)",
                missing.join("; ")
            )),
            // The refusal itself names the first one.
            Ok(_) | Err(_) => error,
        }
    }
}

/// The blocks of nodes as podplane's own server lists them; `None` for another server, an older
/// one, and a user who may not list them.
///
/// # Errors
///
/// Any other error of the call.
pub(crate) async fn block_listing(
    client: &Client,
    progress: &Progress,
) -> Result<Option<BlockListing>, ApiError> {
    match client.summary("blocks").await {
        Err(error) if error.is_not_found() => Ok(None),
        listed => Ok(if_permitted("node blocks", listed, progress)?.flatten()),
    }
}

/// The answer; `None` with a note for a user who may not have it.
///
/// # Errors
///
/// Any other error of the call.
pub(crate) fn if_permitted<T>(
    what: &str,
    listed: Result<T, ApiError>,
    progress: &Progress,
) -> Result<Option<T>, ApiError> {
    match listed {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.reason == Reason::Forbidden => {
            progress.done(&format!(
                "note: the result is without {what}: you may not list them"
            ));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let by_client = error.downcast_ref::<ApiError>();
    let by_kube = error.downcast_ref::<kube::Error>();
    by_client.is_some_and(|error| error.reason == Reason::Forbidden)
        || matches!(by_kube, Some(kube::Error::Api(status)) if status.code == 403)
}

/// The permission to list a resource.
pub(crate) const fn list(group: &'static str, resource: &'static str) -> Permission {
    Permission::on(group, resource, &["list"])
}

/// The permission to list and watch a resource.
pub(crate) const fn follow(group: &'static str, resource: &'static str) -> Permission {
    Permission::on(group, resource, &["list", "watch"])
}

#[cfg(test)]
mod tests {
    use podplane_progress::PlainLines;

    use super::*;

    #[test]
    fn a_refused_list_is_left_out_and_other_errors_are_kept() {
        let progress = Progress::with_lines("", PlainLines::Never);
        let listed = |reason| {
            let refused = Err::<(), _>(ApiError::new(reason, "no"));
            if_permitted("node blocks", refused, &progress)
        };
        assert_eq!(listed(Reason::Forbidden).unwrap(), None);
        let failed = listed(Reason::ServiceUnavailable).unwrap_err();
        assert!(failed.is_unavailable());
        assert_eq!(if_permitted("", Ok(1), &progress).unwrap(), Some(1));
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let text = "{current-context: a, contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]}";
        std::fs::write(&file, text).unwrap();
        let flags = AnyClusterFlags {
            kubeconfig: Some(Some(file)),
            ..AnyClusterFlags::default()
        };
        let error = ApiError::new(Reason::ServiceUnavailable, "gone").into();
        let once = flags.locate(error).await;
        let said = "the server at http://127.0.0.1:1 does not answer";
        assert_eq!(once.to_string(), said);
        let twice = flags.locate(once).await;
        assert_eq!(twice.chain().count(), 2);
        let other = flags.locate(anyhow::anyhow!("another error")).await;
        assert_eq!(other.to_string(), "another error");
    }
}
