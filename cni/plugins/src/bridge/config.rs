//! The configuration of `bridge`.

use std::collections::BTreeSet;

use podplane_cni::{
    skel::Call,
    types::{CniError, Dns, cni_arg, code, json},
};
use podplane_netlink::parse_mac;
use serde::Deserialize;

use crate::{
    attach::{DnsSection, container::DuplicateDetection},
    masquerade,
};

// Keys are folded before decoding, so the names here are lower case.
#[derive(Deserialize)]
#[serde(default)]
struct BridgeConf {
    name: String,
    bridge: String,
    isgateway: bool,
    isdefaultgateway: bool,
    forceaddress: bool,
    ipmasq: bool,
    ipmasqbackend: Option<String>,
    mtu: u32,
    hairpinmode: bool,
    promiscmode: bool,
    vlan: i64,
    vlantrunk: Option<Vec<Trunk>>,
    preservedefaultvlan: bool,
    macspoofchk: bool,
    portisolation: bool,
    enabledad: bool,
    disablecontainerinterface: bool,
    ipam: IpamSection,
    dns: DnsSection,
    args: NetConfArgs,
    runtimeconfig: Mac,
}

impl Default for BridgeConf {
    fn default() -> Self {
        Self {
            name: String::new(),
            bridge: "cni0".to_owned(),
            isgateway: false,
            isdefaultgateway: false,
            forceaddress: false,
            ipmasq: false,
            ipmasqbackend: None,
            mtu: 0,
            hairpinmode: false,
            promiscmode: false,
            vlan: 0,
            vlantrunk: None,
            preservedefaultvlan: true,
            macspoofchk: false,
            portisolation: false,
            enabledad: false,
            disablecontainerinterface: false,
            ipam: IpamSection::default(),
            dns: DnsSection::default(),
            args: NetConfArgs::default(),
            runtimeconfig: Mac::default(),
        }
    }
}

/// VLANs of a trunk: the range from `minid` to `maxid`, and `id`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Trunk {
    minid: Option<i64>,
    maxid: Option<i64>,
    id: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamSection {
    r#type: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetConfArgs {
    cni: Mac,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mac {
    mac: String,
}

/// The parsed configuration.
#[derive(Debug, Clone)]
pub(super) struct BridgeConfig {
    pub(super) network: String,
    pub(super) bridge: String,
    pub(super) is_gateway: bool,
    pub(super) is_default_gateway: bool,
    pub(super) force_address: bool,
    pub(super) mtu: Option<u32>,
    pub(super) hairpin: bool,
    pub(super) promiscuous: bool,
    pub(super) isolated: bool,
    pub(super) masquerade: bool,
    masquerade_backend: Option<String>,
    pub(super) vlans: Vlans,
    pub(super) check_mac: bool,
    detect_duplicates: bool,
    pub(super) container_interface_up: bool,
    pub(super) ipam: String,
    pub(super) dns: Option<Dns>,
    mac: Option<String>,
}

/// The VLANs of the port.
#[derive(Debug, Clone, Default)]
pub(super) struct Vlans {
    /// The VLAN whose frames are untagged in the container.
    pub(super) access: Option<u16>,
    /// The VLANs whose frames are tagged, in ascending order.
    pub(super) trunk: Vec<u16>,
    /// Keep the port in the bridge's default VLAN.
    pub(super) keep_default: bool,
    /// Make a new bridge with VLAN filtering.
    pub(super) filtering: bool,
}

impl Vlans {
    fn parse(vlan: i64, trunk: Option<&[Trunk]>, keep_default: bool) -> Result<Self, CniError> {
        let invalid = || {
            CniError::internal(format!(
                "invalid VLAN ID {vlan} (must be between 0 and 4094)"
            ))
        };
        let access = u16::try_from(vlan).ok().filter(|vlan| *vlan <= MAX_VLAN);
        let access = Some(access.ok_or_else(invalid)?).filter(|vlan| *vlan != 0);
        let filtering = access.is_some() || trunk.is_some();
        let trunk = trunk.map(collect_trunk).transpose()?.unwrap_or_default();
        if access.is_some() && !trunk.is_empty() {
            return Err(CniError::internal(
                "cannot set vlan and vlanTrunk at the same time",
            ));
        }
        Ok(Self {
            access,
            trunk,
            keep_default,
            filtering,
        })
    }
}

const MAX_VLAN: u16 = 4094;

fn collect_trunk(trunk: &[Trunk]) -> Result<Vec<u16>, CniError> {
    let checked = |id: i64, what: &str| {
        let id = u16::try_from(id)
            .ok()
            .filter(|id| (1..=MAX_VLAN).contains(id));
        id.ok_or_else(|| CniError::internal(format!("incorrect trunk {what} parameter")))
    };
    let mut ids = BTreeSet::new();
    for item in trunk {
        match (item.minid, item.maxid) {
            (Some(min), Some(max)) => {
                let (min, max) = (checked(min, "minID")?, checked(max, "maxID")?);
                if max < min {
                    return Err(CniError::internal(
                        "minID is greater than maxID in trunk parameter",
                    ));
                }
                ids.extend(min..=max);
            }
            (None, Some(_)) => {
                return Err(CniError::internal(
                    "minID and maxID should be configured simultaneously, minID is missing",
                ));
            }
            (Some(_), None) => {
                return Err(CniError::internal(
                    "minID and maxID should be configured simultaneously, maxID is missing",
                ));
            }
            (None, None) => {}
        }
        if let Some(id) = item.id {
            ids.insert(checked(id, "id")?);
        }
    }
    Ok(ids.into_iter().collect())
}

impl BridgeConfig {
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        let document: BridgeConf = json::read_folded(&call.stdin)
            .map_err(|error| CniError::internal(format!("failed to load netconf: {error}")))?;
        let vlans = Vlans::parse(
            document.vlan,
            document.vlantrunk.as_deref(),
            document.preservedefaultvlan,
        )?;
        let by_args =
            cni_arg(&call.args, "MAC", |text| Ok(text.to_owned())).map_err(CniError::internal)?;
        let given = [
            document.runtimeconfig.mac,
            document.args.cni.mac,
            by_args.unwrap_or_default(),
        ];
        Ok(Self {
            network: document.name,
            bridge: document.bridge,
            is_gateway: document.isgateway || document.isdefaultgateway,
            is_default_gateway: document.isdefaultgateway,
            force_address: document.forceaddress,
            mtu: Some(document.mtu).filter(|mtu| *mtu != 0),
            hairpin: document.hairpinmode,
            promiscuous: document.promiscmode,
            isolated: document.portisolation,
            masquerade: document.ipmasq,
            masquerade_backend: document.ipmasqbackend,
            vlans,
            check_mac: document.macspoofchk,
            detect_duplicates: document.enabledad,
            container_interface_up: !document.disablecontainerinterface,
            ipam: document.ipam.r#type,
            dns: document.dns.given(),
            mac: given.into_iter().find(|mac| !mac.is_empty()),
        })
    }

    /// Refuses contradictory settings. Only ADD calls this, so that DEL still cleans up.
    pub(super) fn check(&self) -> Result<(), CniError> {
        if !self.container_interface_up && !self.ipam.is_empty() {
            return Err(CniError::internal(
                "cannot use IPAM when DisableContainerInterface flag is set",
            ));
        }
        if self.hairpin && self.promiscuous {
            return Err(CniError::internal(
                "cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        if self.masquerades() {
            self.masquerade_backend()?;
        }
        self.mac().map(drop)
    }

    pub(super) fn duplicate_detection(&self) -> DuplicateDetection {
        match self.detect_duplicates {
            true => DuplicateDetection::Enabled,
            false => DuplicateDetection::Disabled,
        }
    }

    /// The hardware address to give to the container's interface.
    pub(super) fn mac(&self) -> Result<Option<[u8; 6]>, CniError> {
        let read = |text: &str| {
            let msg = || format!("invalid MAC address {text}");
            parse_mac(text).ok_or_else(|| CniError::new(code::INVALID_CONFIG, msg()))
        };
        self.mac.as_deref().map(read).transpose()
    }

    /// Returns true if masquerading is on and there are addresses to masquerade.
    pub(super) fn masquerades(&self) -> bool {
        self.masquerade && !self.ipam.is_empty()
    }

    /// The backend of masquerading; `None` if the configuration leaves the choice.
    pub(super) fn masquerade_backend(
        &self,
    ) -> Result<Option<masquerade::MasqueradeBackend>, CniError> {
        masquerade::MasqueradeBackend::parse(self.masquerade_backend.as_deref())
    }
}
