//! The check of hardware addresses (`macspoofchk`): drops frames from the container whose sender is
//! not the container's own address.
//!
//! The rules have the reference's layout (`pkg/link/spoofcheck.go`), so that each program's DEL
//! removes the other's rules. In the table `bridge nat`, the chain `PREROUTING` jumps from the port
//! to a chain of the attachment. That chain jumps to a second one, which returns for the address
//! and drops the rest. For GC, a chain made here names its network in its comment; the reference's
//! chains do not, and are left alone.

use super::config::BridgeConfig;
use podplane_cni::{
    runtime::ValidAttachment,
    skel::{Call, text},
    types::CniError,
};
use podplane_netlink::{
    NetlinkError,
    nft::{BaseChain, Batch, Chain, Family, Hook, Nft, Table, expr},
};

const TABLE: Table<'_> = Table {
    family: Family::Bridge,
    name: "nat",
};
const PREROUTING: Chain<'_> = TABLE.chain("PREROUTING");
const CHAIN_PREFIX: &str = "cni-br-iface-";

/// The rules of one attachment.
pub(super) struct MacCheck {
    /// `<container id>-<interface>`.
    id: String,
    network: String,
}

fn failed(what: &str, error: &NetlinkError) -> CniError {
    CniError::internal(format!("failed to {what} spoof-check: {}", text(error)))
}

fn network_comment(network: &str) -> String {
    format!("net: {network}")
}

impl MacCheck {
    pub(super) fn of(call: &Call, config: &BridgeConfig) -> Self {
        Self {
            id: format!("{}-{}", call.container_id, call.ifname),
            network: config.network.clone(),
        }
    }

    fn port_chain(&self) -> String {
        format!("{CHAIN_PREFIX}{}", self.id)
    }

    fn mac_chain(&self) -> String {
        format!("{CHAIN_PREFIX}{}-mac", self.id)
    }

    fn comment(&self) -> String {
        format!("macspoofchk-{}", self.id)
    }

    /// Adds rules that drop every frame from the port with a sender other than `mac`.
    pub(super) fn add(&self, port: &str, mac: &[u8]) -> Result<(), CniError> {
        const BEFORE_DNAT: i32 = -300;
        let mac = mac.try_into();
        let mac = mac
            .map_err(|_| CniError::internal("the container's interface has no Ethernet address"))?;
        let (port_chain, mac_chain, comment) =
            (self.port_chain(), self.mac_chain(), self.comment());
        let (port_chain, mac_chain) = (TABLE.chain(&port_chain), TABLE.chain(&mac_chain));
        let network = network_comment(&self.network);
        let mut batch = Batch::default();
        batch.add_table(TABLE, None);
        let base = BaseChain {
            kind: "filter",
            hook: Hook::Prerouting,
            priority: BEFORE_DNAT,
            policy: true,
        };
        batch.add_chain(PREROUTING, Some(base), None);
        batch.add_chain(port_chain, None, Some(&network));
        batch.add_chain(mac_chain, None, None);
        batch.flush_chain(port_chain);
        batch.flush_chain(mac_chain);
        let mut from_port = expr::incoming_interface(port);
        from_port.push(expr::jump(port_chain.name));
        let mut from_mac = expr::source_mac(mac);
        from_mac.push(expr::return_());
        let comment = Some(comment.as_str());
        batch.add_rule(PREROUTING, from_port, comment);
        batch.add_rule(port_chain, vec![expr::jump(mac_chain.name)], comment);
        batch.add_rule(mac_chain, from_mac, comment);
        batch.add_rule(mac_chain, vec![expr::drop()], comment);
        // Removes rules left by an ADD that was not followed by its DEL.
        self.remove()?;
        let added = Nft::open().and_then(|mut nft| nft.apply(batch));
        added.map_err(|error| failed("setup", &error))
    }

    /// Removes the rules. Missing rules count as success.
    pub(super) fn remove(&self) -> Result<(), CniError> {
        match Nft::open().and_then(|mut nft| self.remove_by(&mut nft)) {
            Err(error) if error.is_unknown_family() => Ok(()), // No nftables, no rules.
            other => other.map_err(|error| failed("teardown", &error)),
        }
    }

    fn remove_by(&self, nft: &mut Nft) -> Result<(), NetlinkError> {
        let comment = self.comment();
        let names = [self.port_chain(), self.mac_chain()];
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut batch = Batch::default();
            for rule in nft.rules(PREROUTING)? {
                if rule.comment == comment {
                    batch.delete_rule(PREROUTING, rule.handle);
                }
            }
            let chains = nft.chains(TABLE)?;
            // The chain that jumps is deleted before its target.
            for name in &names {
                if chains.iter().any(|chain| chain.name == *name) {
                    batch.delete_chain(TABLE.chain(name));
                }
            }
            match nft.apply(batch) {
                // Another process has removed a part since it was listed.
                Err(error) if error.is_not_found() && attempts < 5 => {}
                other => return other,
            }
        }
    }
}

/// Removes the network's rules of attachments that are not among the valid ones.
pub(super) fn collect_garbage(network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let comment = network_comment(network);
    let is_valid = |id: &str| {
        let mut valid = valid.iter();
        valid.any(|valid| format!("{}-{}", valid.container_id, valid.ifname) == id)
    };
    let collect = || {
        let mut nft = Nft::open()?;
        for chain in nft.chains(TABLE)? {
            let id = chain.name.strip_prefix(CHAIN_PREFIX);
            if let Some(id) = id.filter(|id| chain.comment == comment && !is_valid(id)) {
                let check = MacCheck {
                    id: id.to_owned(),
                    network: network.to_owned(),
                };
                check.remove_by(&mut nft)?;
            }
        }
        Ok(())
    };
    match collect() {
        Err(error) if NetlinkError::is_unknown_family(&error) => Ok(()),
        other => other.map_err(|error| failed("collect", &error)),
    }
}
