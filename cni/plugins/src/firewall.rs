//! The plugin `firewall`: lets traffic of the container through the host's firewall.
//!
//! The contract is the reference plugin of that name. The plugin accepts the addresses of the
//! previous result by iptables rules in the chain `FORWARD` or, where firewalld runs, by putting
//! them into one of its zones. An ingress policy can separate containers of different bridges, or
//! of one bridge. The previous result is returned unchanged.

mod config;
mod firewalld;
mod iptables;
mod isolation;

use std::io::{self, Write as _};

use podplane_cni::{
    skel::{Call, Plugin},
    types::{CniError, CniResult, Version, code},
};

use self::{
    config::{BackendChoice, FirewallConfig, IngressPolicy},
    firewalld::Firewalld,
    isolation::Isolation,
};

/// The plugin `firewall`.
#[derive(Debug, Clone, Copy)]
pub struct Firewall;

/// The firewall that accepts the container's traffic.
enum FirewallBackend {
    Iptables,
    Firewalld(Firewalld),
}

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    /// The versions whose DEL has a previous result.
    fn versions(&self) -> &'static [Version] {
        &[Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = FirewallConfig::parse(call)?;
        let previous = previous(&config)?;
        let isolation = isolation(&config)?;
        let backend = FirewallBackend::choose(&config)?;
        let added = match &backend {
            FirewallBackend::Iptables => iptables::add(&config, isolation.as_ref()),
            FirewallBackend::Firewalld(firewalld) => firewalld
                .add(&config)
                .and_then(|()| iptables::isolate(&config, isolation.as_ref())),
        };
        added.inspect_err(|_| {
            if let Err(error) = backend.remove(&config) {
                warn(&error.msg);
            }
        })?;
        Ok(previous)
    }

    /// Removes the rules of both backends unless iptables is configured: firewalld may have been
    /// started since the ADD.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = FirewallConfig::parse(call)?;
        let removed = FirewallBackend::choose(&config).and_then(|backend| backend.remove(&config));
        let removed = removed.and(match config.backend {
            BackendChoice::Iptables => Ok(()),
            _ => iptables::remove(&config),
        });
        removed.and(config.ingress_policy().map(drop))
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = FirewallConfig::parse(call)?;
        previous(&config)?;
        match FirewallBackend::choose(&config)? {
            FirewallBackend::Iptables => iptables::check(&config)?,
            FirewallBackend::Firewalld(firewalld) => firewalld.check(&config)?,
        }
        // A policy that ADD refuses is not checked, as in the reference.
        match isolation(&config) {
            Ok(Some(isolation)) => iptables::check_isolation(&config, &isolation),
            _ => Ok(()),
        }
    }

    /// Does nothing: rules name addresses and not containers, so stale rules cannot be recognised.
    fn gc(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        let config = FirewallConfig::parse(call)?;
        let usable = match config.backend {
            BackendChoice::Firewalld => firewalld::probe(),
            _ => match FirewallBackend::choose(&config)? {
                FirewallBackend::Iptables => iptables::probe(),
                FirewallBackend::Firewalld(_) => Ok(()),
            },
        };
        usable.map_err(|error| {
            CniError::new(code::NOT_AVAILABLE, "the firewall's backend cannot be used")
                .with_details(error.msg)
        })
    }
}

impl FirewallBackend {
    fn choose(config: &FirewallConfig) -> Result<Self, CniError> {
        Ok(match config.backend {
            BackendChoice::Iptables => Self::Iptables,
            BackendChoice::Firewalld => Self::Firewalld(Firewalld::connect()?),
            BackendChoice::Auto => Firewalld::if_running().map_or(Self::Iptables, Self::Firewalld),
        })
    }

    fn remove(&self, config: &FirewallConfig) -> Result<(), CniError> {
        match self {
            Self::Iptables => iptables::remove(config),
            Self::Firewalld(firewalld) => {
                firewalld.remove(config);
                Ok(())
            }
        }
    }
}

fn previous(config: &FirewallConfig) -> Result<CniResult, CniError> {
    let previous = config.previous.clone();
    previous.ok_or_else(|| CniError::internal("missing prevResult from earlier plugin"))
}

fn isolation(config: &FirewallConfig) -> Result<Option<Isolation>, CniError> {
    let is_isolated = match config.ingress_policy()? {
        IngressPolicy::Open => return Ok(None),
        IngressPolicy::SameBridge => false,
        IngressPolicy::Isolated => true,
    };
    let bridge = config.bridge()?.to_owned();
    Ok(Some(Isolation {
        bridge,
        is_isolated,
    }))
}

fn warn(text: &str) {
    _ = writeln!(io::stderr(), "{text}");
}
