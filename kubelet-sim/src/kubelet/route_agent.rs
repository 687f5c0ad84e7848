//! The part of a kubelet that reads the other nodes, to make routes to them.
//!
//! A node may read no Node but its own, so the route agent has an identity of its own, which may
//! list and watch Nodes and nothing else.

use std::path::PathBuf;

use podplane_api::core::Node;
use podplane_client::{Cache, Client, CredentialFlags, ListParams, reflector};
use podplane_service_runtime::Tasks;

use super::{KubeletConfig, KubeletRunError};

/// The flags of the route agent.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RouteAgentFlags {
    /// Read the other nodes, for the routes to them, with this client certificate (PEM) instead of
    /// --client-certificate; needs --route-agent-client-key
    #[arg(
        long,
        env = "PODPLANE_ROUTE_AGENT_CLIENT_CERTIFICATE",
        value_name = "FILE",
        requires_all = ["route_agent_client_key", "node_netns"]
    )]
    pub route_agent_client_certificate: Option<PathBuf>,

    /// Use the private key in this file (PEM), which may be the file of
    /// --route-agent-client-certificate
    #[arg(
        long,
        env = "PODPLANE_ROUTE_AGENT_CLIENT_KEY",
        value_name = "FILE",
        requires = "route_agent_client_certificate"
    )]
    pub route_agent_client_key: Option<PathBuf>,
}

impl RouteAgentFlags {
    /// Watches all nodes with the agent's certificate; `None` if it has none.
    ///
    /// # Errors
    ///
    /// Files that cannot be used, or an API server that is not podplane's.
    pub(super) fn watch_nodes(
        &self,
        config: &KubeletConfig,
        tasks: &mut Tasks,
    ) -> Result<Option<Cache<Node>>, KubeletRunError> {
        if self.route_agent_client_certificate.is_none() {
            return Ok(None);
        }
        let credentials = CredentialFlags {
            client_certificate: self.route_agent_client_certificate.clone(),
            client_key: self.route_agent_client_key.clone(),
            token_file: None,
            ..config.server.credentials.clone()
        };
        let server = config.server.server.clone();
        let server = server.ok_or(KubeletRunError::RouteAgent)?;
        let server = server.with_credentials(&credentials)?;
        let client = Client::connect(&server)?;
        let (nodes, driver) = reflector(client.all::<Node>(), ListParams::default());
        tasks.follow("watch of the route agent", driver);
        Ok(Some(nodes))
    }

    /// Returns true if the other nodes are read with a certificate for that alone.
    pub(super) fn is_given(&self) -> bool {
        self.route_agent_client_certificate.is_some()
    }
}
