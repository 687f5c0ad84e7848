//! The IPAM plugin `static`: returns the configured addresses, and keeps no state.
//!
//! The contract is the reference plugin of that name, with its order of precedence: the capability
//! `ips` replaces everything, `args.cni.ips` replaces the configuration's addresses, and `IP` of
//! `CNI_ARGS` adds to them.

use std::{
    borrow::Cow,
    io::{self, Write as _},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_cni::{
    skel::{Call, Plugin, previous_result},
    types::{
        CniError, CniResult, Dns, GoIp, IpConfig, Route, Version, canonical_net, cni_args, json,
        parse_cidr, parse_ip, validate,
    },
};
use serde::Deserialize;
use serde_json::Value;

/// The plugin `static`.
#[derive(Debug, Clone, Copy)]
pub struct StaticIpam;

impl Plugin for StaticIpam {
    fn name(&self) -> &'static str {
        "static"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = StaticConfig::parse(call)?;
        for gateway in &config.unused_gateways {
            _ = writeln!(
                io::stderr(),
                "GATEWAY={gateway} is in no subnet of an address of CNI_ARGS: ignored"
            );
        }
        if config.addresses.is_empty() && call.version < Version::V0_3_0 {
            let msg = "cannot convert: no valid IP addresses";
            return Err(CniError::internal(msg));
        }
        Ok(CniResult {
            version: call.version,
            ips: config.addresses,
            routes: config.routes,
            dns: config.dns,
            ..CniResult::default()
        })
    }

    fn del(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    /// Checks that each configured address is in the previous result, with its gateway.
    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = StaticConfig::parse(call)?;
        let previous = previous_result(call)?
            .ok_or_else(|| CniError::internal("Required prevResult missing"))?;
        for wanted in &config.addresses {
            let ip = wanted.address.addr();
            let mut given = previous.ips.iter();
            let given = given.find(|given| given.address.addr() == ip);
            let agrees =
                |given: &IpConfig| wanted.gateway.is_none() || wanted.gateway == given.gateway;
            if !given.is_some_and(agrees) {
                return Err(CniError::internal(format!(
                    "static: Failed to match addr {ip} on interface {}",
                    call.ifname
                )));
            }
        }
        Ok(())
    }

    fn gc(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        StaticConfig::parse(call).map(drop)
    }
}

// Keys are folded before decoding, so the names here are lower case.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StaticConf {
    cniversion: String,
    ipam: Option<StaticIpamConf>,
    runtimeconfig: Ips,
    args: NetConfArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StaticIpamConf {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "type")]
    _type: String,
    addresses: Vec<Option<Address>>,
    routes: Vec<Option<Route>>,
    dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
    gateway: GoIp,
    #[serde(rename = "version")]
    _version: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetConfArgs {
    cni: Ips,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ips {
    ips: Vec<Option<String>>,
}

/// The parsed configuration.
#[derive(Debug)]
struct StaticConfig {
    addresses: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
    /// Gateways of `CNI_ARGS` that are in no subnet of an address of `CNI_ARGS`.
    unused_gateways: Vec<IpAddr>,
}

impl StaticConfig {
    fn parse(call: &Call) -> Result<Self, CniError> {
        Self::read(&call.stdin, &call.args).map_err(CniError::internal)
    }

    /// Parses the configuration, with the reference's error texts in the reference's order.
    fn read(stdin: &[u8], cni_arguments: &str) -> Result<Self, String> {
        let document: StaticConf = json::read_folded(&without_go_addresses(stdin))?;
        let StaticConf {
            cniversion,
            ipam,
            runtimeconfig,
            args,
        } = document;
        let ipam = ipam.ok_or("IPAM config missing 'ipam' key")?;
        let (asked, unused_gateways) = read_cni_args(cni_arguments)?;
        let by_args = read_list(&args.cni.ips)?;
        let by_runtime = read_list(&runtimeconfig.ips)?;
        let addresses = if !by_runtime.is_empty() {
            by_runtime
        } else if !by_args.is_empty() {
            by_args
        } else {
            let mut addresses = Vec::new();
            for address in ipam.addresses {
                let Address {
                    address, gateway, ..
                } = address.unwrap_or_default();
                let net = parse_cidr(&address).map_err(|_| {
                    format!(
                        "the 'address' field is expected to be in CIDR notation, got: '{address}'"
                    )
                })?;
                addresses.push(config(net, gateway.0));
            }
            addresses.extend(asked);
            addresses
        };
        validate::families(&cniversion, addresses.iter().map(|ip| ip.address.addr()))?;
        Ok(Self {
            addresses,
            routes: ipam.routes.into_iter().flatten().collect(),
            dns: ipam.dns,
            unused_gateways,
        })
    }
}

/// Removes the objects `Address` from the document: the reference's types have such a field beside
/// `address`. Go programs that use these types print both, and folding would make them one key.
fn without_go_addresses(stdin: &[u8]) -> Cow<'_, [u8]> {
    const KEY: &str = "Address";
    let is_there = stdin
        .windows(KEY.len())
        .any(|bytes| bytes == KEY.as_bytes());
    if !is_there {
        return stdin.into();
    }
    let Ok(mut document) = serde_json::from_slice::<Value>(stdin) else {
        return stdin.into(); // The parser reports the error.
    };
    let addresses = document.pointer_mut("/ipam/addresses");
    let addresses = addresses.and_then(Value::as_array_mut);
    for address in addresses.into_iter().flatten() {
        if let Some(fields) = address.as_object_mut() {
            fields.retain(|key, value| key != KEY || !value.is_object());
        }
    }
    document.to_string().into_bytes().into()
}

fn config(address: IpNet, gateway: Option<IpAddr>) -> IpConfig {
    IpConfig {
        interface: None,
        address: canonical_net(address),
        gateway,
    }
}

/// Parses `IP` and `GATEWAY` of `CNI_ARGS`, which are lists separated by commas.
///
/// A gateway is given to every address of `IP` whose subnet contains it; addresses of the
/// configuration have their own. Gateways that fit no address are returned apart.
fn read_cni_args(args: &str) -> Result<(Vec<IpConfig>, Vec<IpAddr>), String> {
    let [ips, gateways] = cni_args(args, ["IP", "GATEWAY"], |text| Ok(text.to_owned()))?;
    let mut addresses = Vec::new();
    for item in ips.iter().flat_map(|ips| ips.split(',')) {
        let item = item.trim();
        let net = parse_cidr(item).map_err(|_| {
            format!("the 'ip' field is expected to be in CIDR notation, got: '{item}'")
        })?;
        addresses.push(config(net, None));
    }
    let mut unused = Vec::new();
    for item in gateways.iter().flat_map(|gateways| gateways.split(',')) {
        let gateway =
            parse_ip(item.trim()).map_err(|_| format!("invalid gateway address: {item}"))?;
        let mut is_used = false;
        for ip in &mut addresses {
            if ip.address.contains(&gateway) {
                ip.gateway = Some(gateway);
                is_used = true;
            }
        }
        if !is_used {
            unused.push(gateway);
        }
    }
    Ok((addresses, unused))
}

fn read_list(items: &[Option<String>]) -> Result<Vec<IpConfig>, String> {
    let read = |item: &Option<String>| {
        let item = item.as_deref().unwrap_or_default();
        let net = parse_cidr(item).map_err(|_| {
            format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{item}'")
        })?;
        Ok(config(net, None))
    };
    items.iter().map(read).collect()
}
