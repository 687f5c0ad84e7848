//! The configuration of `tuning`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use podplane_cni::{
    skel::Call,
    types::{
        CniError, cni_arg,
        go_json::{self, GoType},
    },
};
use serde::Deserialize;

/// The reference's directory of backups.
const DEFAULT_DATA_DIR: &str = "/run/cni/tuning";

// Keys are folded before decoding, so the names here are lower case.

#[derive(Default, Deserialize)]
#[serde(default)]
struct TuningConf {
    datadir: String,
    sysctl: Sysctls,
    mac: String,
    promisc: bool,
    mtu: i64,
    txqlen: Option<i64>,
    allmulti: Option<bool>,
    runtimeconfig: RuntimeConfig,
    args: NetConfArgs,
}

/// Values by key; a value of `null` is `None`.
type Sysctls = BTreeMap<String, Option<String>>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    mac: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetConfArgs {
    cni: Overrides,
}

/// `args.cni`, which has precedence over everything else.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Overrides {
    sysctl: Sysctls,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<i64>,
    txqlen: Option<i64>,
    allmulti: Option<bool>,
}

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TuningConfig {
    /// The directory of backups.
    pub(super) data_dir: PathBuf,
    /// Kernel settings by key, as written.
    pub(super) sysctls: BTreeMap<String, String>,
    /// The hardware address, as written.
    pub(super) mac: Option<String>,
    pub(super) promiscuous: bool,
    pub(super) mtu: Option<i64>,
    pub(super) all_multicast: Option<bool>,
    pub(super) tx_queue_length: Option<i64>,
}

impl TuningConfig {
    /// Parses the configuration, with the reference's error texts.
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        Self::from_text(&call.stdin, &call.args).map_err(CniError::internal)
    }

    fn from_text(text: &[u8], args: &str) -> Result<Self, String> {
        let failed = |error: String| format!("failed to load netconf: {error}");
        let document = go_json::decode(text, &DOCUMENT).map_err(failed)?;
        let document: TuningConf =
            serde_json::from_value(document).map_err(|error| failed(error.to_string()))?;
        let from_args = cni_arg(args, "MAC", |mac| Ok(mac.to_owned()))?;
        let TuningConf {
            datadir,
            mut sysctl,
            mac,
            promisc,
            mtu,
            txqlen,
            allmulti,
            runtimeconfig,
            args: NetConfArgs { cni: overrides },
        } = document;
        let from_runtime = Some(runtimeconfig.mac).filter(|mac| !mac.is_empty());
        let mac = overrides.mac.or(from_runtime).or(from_args).unwrap_or(mac);
        let data_dir = if datadir.is_empty() {
            DEFAULT_DATA_DIR
        } else {
            &datadir
        };
        sysctl.extend(overrides.sysctl);
        let sysctls = sysctl.into_iter();
        Ok(Self {
            data_dir: Path::new(data_dir).to_owned(),
            sysctls: sysctls
                .map(|(key, value)| (key, value.unwrap_or_default()))
                .collect(),
            mac: Some(mac).filter(|mac| !mac.is_empty()),
            promiscuous: overrides.promisc.unwrap_or(promisc),
            mtu: Some(overrides.mtu.unwrap_or(mtu)).filter(|mtu| *mtu != 0),
            all_multicast: overrides.allmulti.or(allmulti),
            tx_queue_length: overrides.txqlen.or(txqlen),
        })
    }

    /// Returns true if an attribute of the interface itself is to be changed.
    pub(super) fn changes_link(&self) -> bool {
        let Self {
            data_dir: _,
            sysctls: _,
            mac,
            promiscuous,
            mtu,
            all_multicast,
            tx_queue_length,
        } = self;
        mac.is_some()
            || *promiscuous
            || mtu.is_some()
            || all_multicast.is_some()
            || tx_queue_length.is_some()
    }
}

/// Refuses a key of `sysctl` that occurs twice, of which only one could take effect.
pub(super) fn refuse_duplicates(call: &Call) -> Result<(), CniError> {
    let decoded = go_json::decode(&call.stdin, &UNIQUE_SYSCTLS);
    decoded.map(drop).map_err(CniError::internal)
}

/// Parses a hardware address as Go's `net.ParseMAC` does: 6, 8 or 20 bytes, two digits each
/// separated by colons or hyphens, or four digits separated by dots.
///
/// # Errors
/// The reference's text.
pub(super) fn parse_mac(text: &str) -> Result<Vec<u8>, String> {
    let parse = || {
        let separator = text.chars().find(|c| !c.is_ascii_hexdigit())?;
        let digits = match separator {
            ':' | '-' => 2,
            '.' => 4,
            _ => return None,
        };
        let mut bytes = Vec::new();
        for group in text.split(separator) {
            if group.len() != digits || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            for at in (0..digits).step_by(2) {
                bytes.push(u8::from_str_radix(group.get(at..at + 2)?, 16).ok()?);
            }
        }
        matches!(bytes.len(), 6 | 8 | 20).then_some(bytes)
    };
    parse().ok_or_else(|| {
        format!("invalid args {text} for MAC addr: address {text}: invalid MAC address")
    })
}

// The fields that the reference decodes: what is of another type is refused, used or not.

static DOCUMENT: GoType = GoType::Struct(&[
    ("cniVersion", GoType::String),
    ("name", GoType::String),
    ("type", GoType::String),
    ("capabilities", GoType::Map(&GoType::Bool)),
    ("prevResult", GoType::AnyMap),
    ("dataDir", GoType::String),
    ("sysctl", SYSCTL),
    ("mac", GoType::String),
    ("promisc", GoType::Bool),
    ("mtu", GoType::Int),
    ("txQLen", GoType::Pointer(&GoType::Int)),
    ("allmulti", GoType::Pointer(&GoType::Bool)),
    ("runtimeConfig", GoType::Struct(&[("mac", GoType::String)])),
    ("args", GoType::Pointer(&ARGS)),
]);

static ARGS: GoType = GoType::Struct(&[("cni", GoType::Pointer(&OVERRIDES))]);

static OVERRIDES: GoType = GoType::Struct(&[
    ("sysctl", GoType::Pointer(&SYSCTL)),
    ("mac", GoType::Pointer(&GoType::String)),
    ("promisc", GoType::Pointer(&GoType::Bool)),
    ("mtu", GoType::Pointer(&GoType::Int)),
    ("allmulti", GoType::Pointer(&GoType::Bool)),
    ("txQLen", GoType::Pointer(&GoType::Int)),
]);

const SYSCTL: GoType = GoType::Map(&GoType::String);

static UNIQUE_SYSCTLS: GoType = GoType::Struct(&[("sysctl", GoType::UniqueMap(&GoType::String))]);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(config: &Value, args: &str) -> Result<TuningConfig, String> {
        TuningConfig::from_text(config.to_string().as_bytes(), args)
    }

    #[test]
    fn later_sources_override_the_hardware_address() {
        let mac = |config: Value, args: &str| parse(&config, args).unwrap().mac;
        let mut config = json!({"mac": "a"});
        assert_eq!(mac(config.clone(), ""), Some("a".to_owned()));
        assert_eq!(mac(config.clone(), "MAC="), Some("a".to_owned()));
        let args = "IgnoreUnknown=1;K8S_POD_NAME=x;MAC=b";
        assert_eq!(mac(config.clone(), args), Some("b".to_owned()));
        config["runtimeConfig"] = json!({"mac": "c"});
        assert_eq!(mac(config.clone(), args), Some("c".to_owned()));
        config["args"] = json!({"cni": {"mac": "d"}});
        assert_eq!(mac(config.clone(), args), Some("d".to_owned()));
        config["args"] = json!({"cni": {"mac": ""}});
        assert_eq!(mac(config, args), None);
        assert_eq!(
            parse(&json!({}), "K=V").unwrap_err(),
            "ARGS: unknown args [\"K=V\"]"
        );
    }

    #[test]
    fn arguments_override_the_configuration() {
        let config = json!({
            "sysctl": {"a": "1", "b": "2"}, "promisc": true, "mtu": 1400, "allmulti": true, "txQLen": 5,
            "args": {"cni": {"sysctl": {"b": "3", "c": null}, "promisc": false, "mtu": 0, "allmulti": false, "txQLen": 0}},
        });
        let config = parse(&config, "").unwrap();
        let sysctls: Vec<_> = config.sysctls.iter().collect();
        assert_eq!(
            format!("{sysctls:?}"),
            r#"[("a", "1"), ("b", "3"), ("c", "")]"#
        );
        assert_eq!((config.promiscuous, config.mtu), (false, None));
        assert_eq!(
            (config.all_multicast, config.tx_queue_length),
            (Some(false), Some(0))
        );
        assert!(config.changes_link());
        let nothing = parse(&json!({"sysctl": {"a": "1"}}), "").unwrap();
        assert!(!nothing.changes_link());
        assert_eq!(nothing.data_dir, Path::new("/run/cni/tuning"));
    }

    #[test]
    fn parses_the_hardware_addresses_that_go_parses() {
        let six = [0xc2, 0x11, 0x22, 0x33, 0x44, 0x5a];
        for good in ["c2:11:22:33:44:5A", "C2-11-22-33-44-5a", "c211.2233.445a"] {
            assert_eq!(parse_mac(good).unwrap(), six, "{good}");
        }
        assert_eq!(parse_mac("00:00:5e:00:53:01:00:02").unwrap().len(), 8);
        for bad in [
            "",
            "c2",
            "c2112233445a",
            "c2:11:22:33:44",
            "c2:11:22:33:44-5a",
            "c2:11:22:33:44:5g",
            "c2:11:22:33:44:5",
            "c2.11.22.33.44.5a",
            "é2:11:22:33:44:5a",
        ] {
            assert_eq!(
                parse_mac(bad).unwrap_err(),
                format!("invalid args {bad} for MAC addr: address {bad}: invalid MAC address")
            );
        }
    }
}
