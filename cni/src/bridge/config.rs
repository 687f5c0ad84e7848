//! The configuration of bridge.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    netlink::parse_mac,
    skel::Call,
    types::{CniError, CniResult, Dns, cni_arg, code, json},
};

// Read with folded keys, so the names here are lower case.
#[derive(Deserialize)]
#[serde(default)]
struct Document {
    bridge: String,
    isgateway: bool,
    isdefaultgateway: bool,
    forceaddress: bool,
    ipmasq: bool,
    mtu: u32,
    hairpinmode: bool,
    promiscmode: bool,
    vlan: i64,
    vlantrunk: Vec<Value>,
    macspoofchk: bool,
    portisolation: bool,
    enabledad: bool,
    disablecontainerinterface: bool,
    ipam: IpamSection,
    dns: Dns,
    args: Args,
    runtimeconfig: Mac,
    prevresult: Option<Value>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            bridge: "cni0".to_owned(),
            isgateway: false,
            isdefaultgateway: false,
            forceaddress: false,
            ipmasq: false,
            mtu: 0,
            hairpinmode: false,
            promiscmode: false,
            vlan: 0,
            vlantrunk: Vec::new(),
            macspoofchk: false,
            portisolation: false,
            enabledad: false,
            disablecontainerinterface: false,
            ipam: IpamSection::default(),
            dns: Dns::default(),
            args: Args::default(),
            runtimeconfig: Mac::default(),
            prevresult: None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamSection {
    r#type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Mac,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mac {
    mac: String,
}

/// What bridge is told.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) bridge: String,
    pub(super) is_gateway: bool,
    pub(super) is_default_gateway: bool,
    pub(super) force_address: bool,
    pub(super) mtu: Option<u32>,
    pub(super) hairpin: bool,
    pub(super) promiscuous: bool,
    pub(super) isolated: bool,
    pub(super) duplicate_address_detection: bool,
    pub(super) container_interface_up: bool,
    pub(super) ipam: String,
    pub(super) dns: Dns,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) previous: Option<CniResult>,
    /// Options that are asked for and cannot be served; checked by ADD, so that DEL still cleans up.
    unsupported: Vec<&'static str>,
}

impl Config {
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        let undecodable = |error: &serde_json::Error| {
            CniError::internal(format!("failed to load netconf: {}", json::go_error(error)))
        };
        let folded = json::parse_folded(&call.stdin).map_err(|error| undecodable(&error))?;
        let document: Document =
            serde_json::from_value(folded).map_err(|error| undecodable(&error))?;
        let by_args =
            cni_arg(&call.args, "MAC", |text| Ok(text.to_owned())).map_err(CniError::internal)?;
        let given = [
            document.runtimeconfig.mac,
            document.args.cni.mac,
            by_args.unwrap_or_default(),
        ];
        let mac = match given.into_iter().find(|mac| !mac.is_empty()) {
            None => None,
            Some(text) => Some(
                parse_mac(&text).ok_or_else(|| invalid(format!("invalid MAC address {text}")))?,
            ),
        };
        let previous = document
            .prevresult
            .map(|value| CniResult::from_value(&value, call.version.as_str()));
        let options = [
            (document.ipmasq, "ipMasq"),
            (document.vlan != 0, "vlan"),
            (!document.vlantrunk.is_empty(), "vlanTrunk"),
            (document.macspoofchk, "macspoofchk"),
        ];
        Ok(Self {
            bridge: document.bridge,
            is_gateway: document.isgateway || document.isdefaultgateway,
            is_default_gateway: document.isdefaultgateway,
            force_address: document.forceaddress,
            mtu: Some(document.mtu).filter(|mtu| *mtu != 0),
            hairpin: document.hairpinmode,
            promiscuous: document.promiscmode,
            isolated: document.portisolation,
            duplicate_address_detection: document.enabledad,
            container_interface_up: !document.disablecontainerinterface,
            ipam: document.ipam.r#type,
            dns: document.dns,
            mac,
            previous: previous.transpose().map_err(|error| {
                CniError::internal(format!("could not parse prevResult: {error}"))
            })?,
            unsupported: options
                .into_iter()
                .filter(|(asked, _)| *asked)
                .map(|(_, name)| name)
                .collect(),
        })
    }

    /// Refuses what contradicts itself, or is not served: never silently ignored.
    pub(super) fn check(&self) -> Result<(), CniError> {
        if self.hairpin && self.promiscuous {
            return Err(CniError::internal(
                "cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        if !self.container_interface_up && !self.ipam.is_empty() {
            return Err(CniError::internal(
                "cannot use IPAM when DisableContainerInterface flag is set",
            ));
        }
        if !self.unsupported.is_empty() {
            let options = self.unsupported.join(", ");
            return Err(invalid(format!(
                "this version of the bridge plugin does not support {options}"
            )));
        }
        Ok(())
    }
}

fn invalid(msg: String) -> CniError {
    CniError::new(code::INVALID_CONFIG, msg)
}
