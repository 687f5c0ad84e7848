//! The flags by which a command reads any cluster of Kubernetes, and the rights that it needs
//! there.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use podplane_client::{ApiError, Client, Permission, Reason};

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
            return Config::incluster()
                .context("--in-cluster: failed to use the ServiceAccount of this pod");
        }
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let Some(Some(file)) = &self.kubeconfig else {
            return Config::from_kubeconfig(&options)
                .await
                .context("failed to read the kubeconfig that KUBECONFIG names, or ~/.kube/config");
        };
        let name_it = || format!("failed to read the kubeconfig {}", file.display());
        let kubeconfig = Kubeconfig::read_from(file).with_context(name_it)?;
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(name_it)
    }

    /// Names the rules of `needed` that the user lacks, if the error is a refusal for want of one.
    pub(crate) async fn name_missing_rules(
        &self,
        error: anyhow::Error,
        needed: &'static [Permission],
    ) -> anyhow::Error {
        if !is_forbidden(&error) {
            return error;
        }
        let missing = async {
            let client = Client::over_rest(self.config().await?)?;
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
