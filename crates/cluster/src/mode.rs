//! The choice between pods with devices and pods with addresses only.

use std::path::Path;

use podplane_host::fs;

use crate::{
    fabric::{Fabric, KernelNeeds},
    namespaces,
    settings::{MAX_KERNEL_NODES, Network, Settings},
};

/// The chosen mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Namespaces, interfaces and routes.
    Kernel { reason: String },
    /// Addresses only.
    Ledger { reason: String },
}

impl Mode {
    /// Chooses the requested mode. In kernel mode, this process is now in its own namespaces, with
    /// a tmpfs on `run`.
    ///
    /// # Errors
    ///
    /// Kernel mode was requested and is not possible.
    pub(crate) fn choose(
        settings: &Settings,
        nodes: usize,
        needs: KernelNeeds,
        run: &Path,
    ) -> anyhow::Result<Self> {
        let try_kernel = || -> anyhow::Result<()> {
            anyhow::ensure!(
                nodes <= MAX_KERNEL_NODES,
                "{nodes} nodes are too many for one bridge, which takes {MAX_KERNEL_NODES}"
            );
            namespaces::isolate(run)?;
            Fabric::probe(run, needs)
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

/// Describes the user. To be called inside the user namespace, if there is one, where the machine's
/// root is not mapped.
fn who() -> &'static str {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mapped_to: Option<u32> = map.split_whitespace().nth(1).and_then(|id| id.parse().ok());
    if mapped_to == Some(0) {
        "root"
    } else {
        "this user, in a user namespace,"
    }
}
