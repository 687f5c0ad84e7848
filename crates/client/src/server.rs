//! The flags that name the API server of a process, and the connection to it.

use std::{
    error::Error,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderValue, Uri, header::USER_AGENT};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::{
    Client, CredentialFlags, Endpoint,
    api::{Transport, rest::RestCalls},
    endpoint::EndpointError,
};

/// The time without a byte after which a connection counts as dead. A watch ends by itself before:
/// kube-rs asks for 290 s.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(300);

/// The flags of every process that talks to an API server.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServerFlags {
    /// Connect to podplane's API server at this address: HOST:PORT, a URL, or unix:PATH; of several
    /// servers ADDR,ADDR, of which the next is used when one cannot be reached
    #[arg(
        long,
        env = "PODPLANE_SERVER",
        value_name = "ADDR",
        required_unless_present_any = ["kubeconfig", "in_cluster"]
    )]
    pub server: Option<Endpoint>,

    /// The credentials for it.
    #[command(flatten)]
    pub credentials: CredentialFlags,

    /// Connect to the API server of Kubernetes, or of podplane, that this kubeconfig names, by the
    /// REST API
    #[arg(
        long,
        env = "PODPLANE_KUBECONFIG",
        value_name = "FILE",
        conflicts_with_all = ["server", "in_cluster"]
    )]
    pub kubeconfig: Option<PathBuf>,

    /// Use this context of the kubeconfig [default: its current context]
    #[arg(
        long,
        env = "PODPLANE_CONTEXT",
        value_name = "NAME",
        requires = "kubeconfig"
    )]
    pub context: Option<String>,

    /// Connect to the API server of the cluster that this pod runs in, as its ServiceAccount
    #[arg(long, env = "PODPLANE_IN_CLUSTER", conflicts_with = "server")]
    pub in_cluster: bool,
}

/// The flags name no server that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No flag names a server.
    #[error("--server, --kubeconfig or --in-cluster is required")]
    Missing,
    /// The address or its credentials.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A kubeconfig has its own credentials.
    #[error(
        "--certificate-authority, --client-certificate, --client-key, --tls-server-name and --token-file are for --server: a kubeconfig and a pod have credentials of their own"
    )]
    Credentials,
    /// The kubeconfig cannot be read, or names no server.
    #[error("failed to use the kubeconfig {name}")]
    Kubeconfig {
        /// Its path, or where it was looked for.
        name: String,
        /// The problem.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The kubeconfig does not have the context.
    #[error(
        "invalid --context `{context}`: the kubeconfig {name} {}",
        contexts(known)
    )]
    Context {
        /// The context.
        context: String,
        /// The path of the kubeconfig, or where it was looked for.
        name: String,
        /// The contexts that it has.
        known: Vec<String>,
    },
    /// This process does not run in a pod.
    #[error("--in-cluster: failed to use the ServiceAccount of this pod")]
    InCluster(#[source] Box<InClusterError>),
    /// The connection cannot be prepared, for instance with an invalid certificate.
    #[error("failed to prepare the connection to {server}")]
    Connection {
        /// The server's address.
        server: Uri,
        /// The problem.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ServerFlags {
    /// Returns the flags for podplane's API server at an address.
    pub fn of(server: Endpoint) -> Self {
        Self {
            server: Some(server),
            ..Self::default()
        }
    }

    /// A client of the server. It connects at the first call, and needs a tokio runtime.
    ///
    /// The files of `--server`'s credentials and the token of a pod are read again when they
    /// change; those of a kubeconfig are not.
    ///
    /// # Errors
    ///
    /// [`ServerError`]. An unreachable server is an error of each call, not of this function.
    pub async fn connect(&self) -> Result<Client, ServerError> {
        let Self {
            server,
            credentials,
            kubeconfig,
            context,
            in_cluster,
        } = self;
        if let Some(server) = server {
            return Ok(Client::connect(
                &server.clone().with_credentials(credentials)?,
            )?);
        }
        if credentials != &CredentialFlags::default() {
            return Err(ServerError::Credentials);
        }
        let config = match kubeconfig {
            Some(path) => of_kubeconfig(Some(path), context.clone()).await?,
            None if *in_cluster => kube::Config::incluster()
                .map_err(|source| ServerError::InCluster(Box::new(source)))?,
            None => return Err(ServerError::Missing),
        };
        Client::over_rest(config)
    }
}

impl Client {
    /// A client of the REST API of the server that kube-rs' configuration names. It connects at the
    /// first call, and needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ServerError::Connection`] for invalid credentials.
    pub fn over_rest(mut config: kube::Config) -> Result<Self, ServerError> {
        let agent = concat!("podplane/", env!("CARGO_PKG_VERSION"));
        let agent = (USER_AGENT, HeaderValue::from_static(agent));
        config.headers.push(agent);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        // A client repeats nothing by itself.
        config.default_retry = false;
        let server = config.cluster_url.clone();
        let connection = kube::Client::try_from(config);
        let connection = connection.map_err(|source| ServerError::Connection {
            server,
            source: Box::new(source),
        })?;
        let calls = Arc::new(RestCalls::new(connection));
        Ok(Self::over(Transport::Rest(calls)))
    }
}

/// Reads the address and the credentials of a server from a kubeconfig: that of `path`, else those
/// of `$KUBECONFIG`, else `~/.kube/config`; of `context`, else of its current one.
///
/// # Errors
///
/// [`ServerError::Kubeconfig`], and [`ServerError::Context`] if it has other contexts.
pub async fn of_kubeconfig(
    path: Option<&Path>,
    context: Option<String>,
) -> Result<kube::Config, ServerError> {
    let name = path.map_or_else(
        || "of $KUBECONFIG, or ~/.kube/config".to_owned(),
        |path| path.display().to_string(),
    );
    let unusable = |error: KubeconfigError| match error {
        // Its text would name the file once more.
        KubeconfigError::ReadConfig(source, path) => ServerError::Kubeconfig {
            name: path.display().to_string(),
            source: Box::new(source),
        },
        source => ServerError::Kubeconfig {
            name: name.clone(),
            source: Box::new(source),
        },
    };
    let read = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let kubeconfig = read.map_err(unusable)?;
    let known = || kubeconfig.contexts.iter().map(|known| &known.name);
    if let Some(context) = &context
        && !known().any(|known| known == context)
    {
        return Err(ServerError::Context {
            context: context.clone(),
            known: known().cloned().collect(),
            name,
        });
    }
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map_err(unusable)
}

fn contexts(known: &[String]) -> String {
    match known {
        [] => "has no contexts".to_owned(),
        [only] => format!("has only `{only}`"),
        known => format!("has the contexts {}", known.join(", ")),
    }
}

impl fmt::Display for ServerFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.server, &self.kubeconfig, &self.context) {
            (Some(server), _, _) => server.fmt(f),
            (None, Some(path), None) => write!(f, "kubeconfig {}", path.display()),
            (None, Some(path), Some(context)) => {
                write!(f, "context {context} of kubeconfig {}", path.display())
            }
            (None, None, _) => f.write_str("the cluster of this pod"),
        }
    }
}
