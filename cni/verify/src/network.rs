//! A network of one check, with a ledger: the attachments that were asked for, and their addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use podplane_cni::types::{CniResult, Version};
use serde_json::{Value, json};

use super::{
    Halt, Severity,
    exchange::{Exchange, Interruption, PlainCall, PluginEnd, PluginInput},
    session::Session,
    step::CallLine,
    template::{KnownRange, known_ranges, objection, with_ranges},
};

/// An attachment: a container, and the name of an interface in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AttachmentKey {
    pub(super) id: String,
    pub(super) ifname: String,
}

impl AttachmentKey {
    pub(super) fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ifname: "eth0".to_owned(),
        }
    }

    pub(super) fn interface(mut self, ifname: &str) -> Self {
        ifname.clone_into(&mut self.ifname);
        self
    }
}

/// The holdings of a live attachment.
#[derive(Debug, Clone)]
pub(super) struct Holdings {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) result: Value,
    /// The ADD that made it.
    pub(super) add: CallLine,
}

/// The outcome of an ADD.
#[derive(Debug)]
pub(super) enum AddOutcome {
    /// The ADD gave addresses.
    Given(Vec<IpAddr>),
    /// The ADD failed, as it may.
    Refused,
    /// The ADD was killed, so its outcome is unknown.
    Unknown,
}

/// The attachments that fill a network.
#[derive(Debug)]
pub(super) struct FilledNetwork {
    pub(super) keys: Vec<AttachmentKey>,
    /// The ADD that found no address.
    pub(super) refusal: Exchange,
}

#[derive(Debug, Default)]
struct Ledger {
    live: BTreeMap<AttachmentKey, Holdings>,
    /// Attachments that were asked for and not deleted since.
    touched: BTreeSet<AttachmentKey>,
}

/// A network of a check. See the module.
pub(super) struct Network<'a> {
    pub(super) session: &'a Session,
    number: u32,
    pub(super) config: Value,
    data_dir: PathBuf,
    /// Set if the network has the template's ranges, and so as many addresses as any other with
    /// them.
    is_of_template: bool,
    ranges: Vec<KnownRange>,
    ledger: Mutex<Ledger>,
}

impl<'a> Network<'a> {
    /// A new network. Results are judged by `ranges`.
    pub(super) fn new(
        session: &'a Session,
        number: u32,
        config: Value,
        data_dir: PathBuf,
        ranges: Vec<KnownRange>,
    ) -> Self {
        Self {
            session,
            number,
            is_of_template: false,
            ranges,
            config,
            data_dir,
            ledger: Mutex::default(),
        }
    }

    /// Marks the network as one with the template's ranges.
    pub(super) fn of_the_template(mut self) -> Self {
        self.is_of_template = true;
        self
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Changes the ranges in the configuration. Ledger and directory stay.
    pub(super) fn set_ranges(&mut self, ranges: &Value) {
        self.is_of_template = false;
        self.config = with_ranges(&self.config, ranges);
        // Addresses of the earlier ranges may still be held.
        self.ranges.extend(known_ranges(&self.config));
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of this network's files, if it exists by now.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        let name = self.config["name"].as_str().unwrap_or_default();
        let nested = self.data_dir.join(name);
        [&nested, &self.data_dir]
            .into_iter()
            .find(|dir| dir.is_dir())
            .cloned()
    }

    pub(super) fn held(&self, key: &AttachmentKey) -> Option<Holdings> {
        self.ledger().live.get(key).cloned()
    }

    pub(super) fn live(&self) -> Vec<AttachmentKey> {
        self.ledger().live.keys().cloned().collect()
    }

    /// A call as a runtime makes it. CHECK gets the result of the ADD, and so does DEL from 0.4.0
    /// on.
    pub(super) fn call(&self, command: &str, key: &AttachmentKey) -> PluginInput {
        let mut plain = PlainCall {
            config: self.config.to_string(),
            has_result: false,
        };
        let mut config = self.config.clone();
        let version: Version = config["cniVersion"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        if matches!(command, "CHECK" | "DEL")
            && version >= Version::V0_4_0
            && let Some(held) = self.held(key)
        {
            config["prevResult"] = held.result;
            plain.has_result = true;
        }
        if command == "ADD" {
            self.ledger().touched.insert(key.clone());
        }
        let mut env = vec![("CNI_COMMAND", command.to_owned())];
        if !matches!(command, "GC" | "STATUS" | "VERSION") {
            env.extend([
                ("CNI_CONTAINERID", key.id.clone()),
                ("CNI_NETNS", self.session.netns()),
                ("CNI_IFNAME", key.ifname.clone()),
            ]);
        }
        env.push(("CNI_PATH", self.session.plugin_dir()));
        PluginInput {
            network: Some(self.number),
            env,
            stdin: config.to_string().into_bytes(),
            plain: Some(plain),
            is_junk: false,
        }
    }

    pub(super) fn add(&self, key: &AttachmentKey) -> Result<AddOutcome, Halt> {
        self.add_exchange(key, Interruption::None)
            .map(|(added, _)| added)
    }

    /// Makes an ADD. A success is entered in the ledger, and judged.
    pub(super) fn add_exchange(
        &self,
        key: &AttachmentKey,
        interruption: Interruption,
    ) -> Result<(AddOutcome, Exchange), Halt> {
        let call = self.call("ADD", key);
        let exchange = self.session.interrupt(&call, interruption)?;
        let added = match exchange.end {
            PluginEnd::Exit(0) => AddOutcome::Given(self.enter(key, &exchange)),
            PluginEnd::Interrupted => AddOutcome::Unknown,
            _ => AddOutcome::Refused,
        };
        Ok((added, exchange))
    }

    /// Enters the addresses of an ADD. The entry is made after the plugin's answer and deleted
    /// before a DEL begins, so an address with two entries has really been given twice.
    pub(super) fn enter(&self, key: &AttachmentKey, exchange: &Exchange) -> Vec<IpAddr> {
        let Ok(result) = CniResult::parse(&exchange.stdout, "") else {
            return Vec::new(); // The format has been judged already.
        };
        let step = self.session.step(exchange);
        for ip in &result.ips {
            if let Some(objection) = objection(&self.ranges, ip.address, ip.gateway) {
                self.session.find(
                    "result-range",
                    Severity::Violation,
                    objection,
                    "an address that the configured range gives",
                    vec![step.clone()],
                );
            }
        }
        let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        let mut ledger = self.ledger();
        let before = ledger.live.get(key).map(|held| held.addresses.clone());
        let owner = |ip: &IpAddr| {
            let mut others = ledger.live.iter().filter(|(other, _)| *other != key);
            others.find(|(_, held)| held.addresses.contains(ip))
        };
        let twice: Vec<_> = addresses
            .iter()
            .filter_map(|ip| {
                let (other, held) = owner(ip)?;
                let seen = format!(
                    "{ip} is given to {}/{} while {}/{} has it",
                    key.id, key.ifname, other.id, other.ifname
                );
                Some((seen, held.add.clone()))
            })
            .collect();
        let held = Holdings {
            addresses: addresses.clone(),
            result: serde_json::from_slice(&exchange.stdout).unwrap_or_default(),
            add: step.clone(),
        };
        if before.is_none() {
            ledger.live.insert(key.clone(), held);
        }
        drop(ledger);
        for (seen, first) in twice {
            self.session.find(
                "add-unique",
                Severity::Violation,
                seen,
                "an address that no live attachment has",
                vec![first, step.clone()],
            );
        }
        addresses
    }

    /// Makes a DEL. A failure is a finding.
    pub(super) fn del(&self, key: &AttachmentKey) -> Result<Exchange, Halt> {
        self.del_exchange(key, Interruption::None)
    }

    pub(super) fn del_exchange(
        &self,
        key: &AttachmentKey,
        interruption: Interruption,
    ) -> Result<Exchange, Halt> {
        let call = self.call("DEL", key);
        self.forget(key);
        let exchange = self.session.interrupt(&call, interruption)?;
        match exchange.end {
            PluginEnd::Exit(0) => {
                self.ledger().touched.remove(key);
            }
            // With no room for its files it may fail.
            PluginEnd::Exit(_)
                if matches!(exchange.interruption, Interruption::HalfWritten { .. }) => {}
            PluginEnd::Exit(_) => self.session.find(
                "del-succeeds",
                Severity::Violation,
                format!("DEL of {}/{}: {}", key.id, key.ifname, exchange.summary()),
                "success",
                vec![self.session.step(&exchange)],
            ),
            _ => {}
        }
        Ok(exchange)
    }

    /// Removes an attachment from the ledger, before a call that may free its addresses.
    pub(super) fn forget(&self, key: &AttachmentKey) {
        self.ledger().live.remove(key);
    }

    pub(super) fn check(&self, key: &AttachmentKey) -> Result<Exchange, Halt> {
        self.session.call(&self.call("CHECK", key))
    }

    /// Makes a GC. With `None` the list of valid attachments is absent.
    pub(super) fn gc(&self, valid: Option<&[AttachmentKey]>) -> Result<Exchange, Halt> {
        let mut config = self.config.clone();
        if let Some(valid) = valid {
            let entry = |key: &AttachmentKey| json!({"containerID": key.id, "ifname": key.ifname});
            config["cni.dev/valid-attachments"] = valid.iter().map(entry).collect();
            for key in self.live() {
                if !valid.contains(&key) {
                    self.forget(&key);
                }
            }
        }
        let call = self.call("GC", &AttachmentKey::new(""));
        self.session.call(&call.with_stdin(config.to_string()))
    }

    /// Adds attachments until one is refused. Returns `None` if the addresses seem to have no end.
    pub(super) fn fill(&self, prefix: &str) -> Result<Option<FilledNetwork>, Halt> {
        let mut keys = Vec::new();
        if self.is_of_template && self.session.capacity.get() == Some(&None) {
            return Ok(None);
        }
        while keys.len() <= self.session.max_addresses() {
            let key = AttachmentKey::new(format!("{prefix}-{}", keys.len()));
            let (added, exchange) = self.add_exchange(&key, Interruption::None)?;
            match added {
                AddOutcome::Given(_) => keys.push(key),
                _ => {
                    self.ledger().touched.remove(&key);
                    return Ok(Some(FilledNetwork {
                        keys,
                        refusal: exchange,
                    }));
                }
            }
        }
        self.clear()?;
        Ok(None)
    }

    /// Counts the free addresses: adds until there are none, and deletes what was added.
    pub(super) fn free(&self, prefix: &str) -> Result<Option<usize>, Halt> {
        let Some(filled) = self.fill(prefix)? else {
            return Ok(None);
        };
        for key in &filled.keys {
            self.del(key)?;
        }
        Ok(Some(filled.keys.len()))
    }

    /// The number of addresses that are free at the start. It is the same for all networks with
    /// directories of their own.
    pub(super) fn capacity(&self) -> Result<Option<usize>, Halt> {
        match self.session.capacity.get() {
            Some(known) if self.session.has_own_directory() => Ok(*known),
            _ => self.free("before"),
        }
    }

    /// Deletes every attachment that was asked for.
    pub(super) fn clear(&self) -> Result<(), Halt> {
        let touched: Vec<_> = self.ledger().touched.iter().cloned().collect();
        for key in touched {
            self.del(&key)?;
        }
        Ok(())
    }

    /// Forgets all attachments without a DEL: the configuration is invalid, so nothing was given,
    /// and a DEL must fail.
    pub(super) fn abandon(&self) {
        self.ledger().touched.clear();
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }
}

impl Drop for Network<'_> {
    /// Deletes the network's attachments from a store of the plugin's own, which outlives the
    /// verification.
    fn drop(&mut self) {
        let session = self.session;
        if !session.has_own_directory() && session.is_stopped() {
            let touched: Vec<_> = self.ledger().touched.iter().cloned().collect();
            for key in touched {
                session.take_back(&self.call("DEL", &key));
            }
        } else if !session.has_own_directory() {
            _ = self.clear();
        }
        session.forget_history(self.number);
    }
}
