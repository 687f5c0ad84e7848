//! Whether pods get devices, and why.

use std::path::Path;

use super::{
    fabric::Fabric,
    namespaces,
    settings::{MAX_KERNEL_NODES, Network, Settings},
};

/// What was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Namespaces, interfaces and routes.
    Kernel { reason: String },
    /// Addresses alone.
    Ledger { reason: String },
}

impl Mode {
    /// Takes what was asked for. For kernel mode, this process is now in namespaces of its own, with a tmpfs on `run`.
    ///
    /// # Errors
    ///
    /// If kernel mode was asked for and cannot be had.
    pub(crate) fn choose(settings: &Settings, nodes: usize, run: &Path) -> anyhow::Result<Self> {
        let try_kernel = || -> anyhow::Result<()> {
            anyhow::ensure!(
                nodes <= MAX_KERNEL_NODES,
                "{nodes} nodes are too many for one bridge, which takes {MAX_KERNEL_NODES}"
            );
            namespaces::isolate(run)?;
            Fabric::probe(run)
        };
        match settings.network {
            Network::Auto if settings.cri_endpoint.is_some() => Ok(Self::Ledger {
                reason: "the runtime of --cri-endpoint makes the pods' networks".into(),
            }),
            Network::Ledger => Ok(Self::Ledger {
                reason: "as --network says".into(),
            }),
            Network::Kernel => {
                try_kernel().map_err(|error| {
                    error.context("--network kernel is not possible here; ledger is")
                })?;
                Ok(Self::Kernel {
                    reason: "as --network says".into(),
                })
            }
            Network::Auto => Ok(match try_kernel() {
                Ok(()) => Self::Kernel {
                    reason: format!("{} may make namespaces, bridges and veth pairs", who()),
                },
                Err(error) => Self::Ledger {
                    reason: format!("no kernel mode: {error:#}"),
                },
            }),
        }
    }

    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self, Self::Kernel { .. })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernel { .. } => "kernel",
            Self::Ledger { .. } => "ledger",
        }
    }

    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Kernel { reason } | Self::Ledger { reason } => reason,
        }
    }
}

/// Asked inside the user namespace, if there is one; there the machine's root is nobody.
fn who() -> &'static str {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mapped_to: Option<u32> = map.split_whitespace().nth(1).and_then(|id| id.parse().ok());
    if mapped_to == Some(0) {
        "root"
    } else {
        "this user, in a user namespace,"
    }
}
