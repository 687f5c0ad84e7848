//! The server of `Exec`, `Attach` and `PortForward`: HTTP/1.1 on a loopback address, whose
//! connections become SPDY/3.1 sessions. Kubelets and `crictl` reach it at a URL that a call of
//! CRI answers, which can be used once, and for a minute.
//!
//! Kubernetes' API servers and kubelets translate whatever their clients speak to SPDY/3.1 before
//! they come here, also in 1.36 (KEP-4006), so nothing else is spoken.

mod port_forward;
mod remote_command;
mod server;
mod tokens;

use std::{net::SocketAddr, sync::Arc};

use super::{
    containers::process::{ContainerProcess, Processes, exec::ExecCommand},
    record::SandboxRecord,
};

pub use server::{StreamListener, serve};
pub use tokens::TooManyTokens;

/// The request behind a URL.
#[derive(Clone, Debug)]
pub enum StreamRequest {
    /// A command in a container.
    Exec {
        /// The process of the container.
        container: Arc<ContainerProcess>,
        /// The processes of the node, which execute it.
        processes: Arc<Processes>,
        /// The command.
        command: ExecCommand,
        /// The streams that the client wants.
        streams: WantedStreams,
    },
    /// The process of a container itself.
    Attach {
        /// The process.
        container: Arc<ContainerProcess>,
        /// The streams that the client wants.
        streams: WantedStreams,
    },
    /// Ports of a sandbox.
    PortForward(Arc<SandboxRecord>),
}

impl StreamRequest {
    /// The first part of the path of its URL.
    fn path(&self) -> &'static str {
        match self {
            Self::Exec { .. } => "exec",
            Self::Attach { .. } => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// The standard streams that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedStreams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; with a terminal there is none.
    pub stderr: bool,
    /// The process has a terminal, whose size the client sends.
    pub tty: bool,
}

/// The URLs of a server.
#[derive(Debug)]
pub struct StreamUrls {
    address: SocketAddr,
    tokens: tokens::StreamTokens,
}

impl StreamUrls {
    /// A new URL for a request.
    ///
    /// # Errors
    ///
    /// [`TooManyTokens`].
    pub fn url(&self, request: StreamRequest) -> Result<String, TooManyTokens> {
        let path = request.path();
        let token = self.tokens.insert(request)?;
        Ok(format!("http://{}/{path}/{token}", self.address))
    }
}
