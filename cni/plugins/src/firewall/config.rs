//! The configuration of `firewall`.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podplane_cni::{
    skel::{Call, previous_result},
    types::{
        CniError, CniResult,
        go_json::{self, GoType},
        json,
    },
};
use serde::Deserialize;

static DOCUMENT: GoType = GoType::Struct(&[
    ("backend", GoType::String),
    ("iptablesAdminChainName", GoType::String),
    ("firewalldZone", GoType::String),
    ("ingressPolicy", GoType::String),
]);

// Keys are folded before decoding, so the names here are lower case.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FirewallConf {
    backend: String,
    iptablesadminchainname: String,
    firewalldzone: String,
    ingresspolicy: String,
}

/// The backend that the configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackendChoice {
    Iptables,
    Firewalld,
    /// Firewalld if it runs, else iptables. Any other name means this too, as in the reference.
    Auto,
}

/// The sources that may reach the containers of the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IngressPolicy {
    /// Every source.
    Open,
    /// Containers on the same bridge, but none on another bridge with such a policy.
    SameBridge,
    /// No other container.
    Isolated,
}

/// The address families of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

#[derive(Debug, Clone)]
pub(super) struct FirewallConfig {
    pub(super) backend: BackendChoice,
    /// The chain of the operator's own rules, which come before those of containers.
    pub(super) admin_chain: String,
    pub(super) zone: String,
    /// The policy as written, unchecked.
    ingress_policy: String,
    /// The result of the plugins earlier in the chain.
    pub(super) previous: Option<CniResult>,
    /// The container's addresses, each with the full prefix length of its family.
    pub(super) addresses: Vec<IpNet>,
}

impl FirewallConfig {
    /// Parses the configuration, with the reference's error texts in the reference's order.
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        let failed = |why: String| CniError::internal(format!("failed to load netconf: {why}"));
        let document = go_json::decode(&call.stdin, &DOCUMENT).map_err(failed)?;
        let document =
            FirewallConf::deserialize(document).map_err(|error| failed(error.to_string()))?;
        let previous = previous_result(call).map_err(|error| CniError {
            msg: format!("could not parse prevResult: {}", error.msg),
            ..error
        })?;
        let FirewallConf {
            backend,
            iptablesadminchainname,
            firewalldzone,
            ingresspolicy,
        } = document;
        check_word("iptablesAdminChainName", &iptablesadminchainname)?;
        let ips = previous.iter().flat_map(|previous| &previous.ips);
        Ok(Self {
            backend: match backend.as_str() {
                "iptables" => BackendChoice::Iptables,
                "firewalld" => BackendChoice::Firewalld,
                _ => BackendChoice::Auto,
            },
            admin_chain: or_default(iptablesadminchainname, "CNI-ADMIN"),
            zone: or_default(firewalldzone, "trusted"),
            ingress_policy: ingresspolicy,
            addresses: ips.map(|ip| IpNet::from(ip.address.addr())).collect(),
            previous,
        })
    }

    /// The parsed ingress policy.
    ///
    /// # Errors
    /// If the policy is unknown.
    pub(super) fn ingress_policy(&self) -> Result<IngressPolicy, CniError> {
        match self.ingress_policy.as_str() {
            "" | "open" => Ok(IngressPolicy::Open),
            "same-bridge" => Ok(IngressPolicy::SameBridge),
            "isolated" => Ok(IngressPolicy::Isolated),
            other => Err(CniError::internal(format!(
                "unknown ingress policy: {}",
                json::go_quote(other)
            ))),
        }
    }

    /// The bridge to isolate: the first interface of the previous result, where the plugin `bridge`
    /// puts it.
    pub(super) fn bridge(&self) -> Result<&str, CniError> {
        let interfaces = self
            .previous
            .iter()
            .flat_map(|previous| &previous.interfaces);
        let first = interfaces.map(|interface| interface.name.as_str()).next();
        let name = first.ok_or_else(|| {
            CniError::internal(format!(
                "interface needs to be set for ingress policy {}, make sure to chain \"firewall\" plugin with \"bridge\"",
                json::go_quote(&self.ingress_policy)
            ))
        })?;
        if name.is_empty() {
            return Err(CniError::internal("got empty bridge name"));
        }
        check_word("name of the first interface in prevResult", name)?;
        Ok(name)
    }

    /// The container's addresses of a family.
    pub(super) fn addresses(&self, family: Family) -> impl Iterator<Item = IpNet> {
        let addresses = self.addresses.iter().copied();
        addresses.filter(move |address| Family::of(*address) == family)
    }

    /// The families in which the container has an address.
    pub(super) fn families(&self) -> BTreeSet<Family> {
        self.addresses.iter().copied().map(Family::of).collect()
    }
}

impl Family {
    fn of(address: IpNet) -> Self {
        match address {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

fn or_default(text: String, default: &str) -> String {
    if text.is_empty() {
        return default.to_owned();
    }
    text
}

/// Refuses control characters: a newline would begin a command of its own in the input of
/// `iptables-restore`.
fn check_word(what: &str, word: &str) -> Result<(), CniError> {
    if word.contains(char::is_control) {
        let word = json::go_quote(word);
        return Err(CniError::internal(format!(
            "invalid {what} {word}: leave control characters out"
        )));
    }
    Ok(())
}
