//! Random sequences of calls. Names are few and ranges small, so that sequences reach deep states,
//! and there are faults of every kind.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    dice::Dice,
    document::{JsonDocument, damage},
    side::{DATA_DIR, FileNode, PluginInput, Tree},
};

/// The calls of a test, in order, on a directory whose content is `before`.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) before: Tree,
    /// Each call, and whether ours makes it in the shared directory.
    pub(crate) calls: Vec<(PluginInput, bool)>,
    /// Both programs take turns in the second directory; otherwise ours has it alone.
    pub(crate) is_shared: bool,
}

const IDS: &[&str] = &["c0", "c1", "c2", "c3", "c4"];
const ODD_IDS: &[&str] = &["10.1.2.4", "a.b-c_d", "0", "lock"];
const BAD_IDS: &[&str] = &["-x", "a/b", "é", "", "a b", "c0\n", ".", "_"];
const BAD_IFNAMES: &[&str] = &[
    "",
    ".",
    "..",
    "a/b",
    "a:b",
    "a b",
    "0123456789abcdef",
    "ééééééééé",
    "a\u{2003}b",
    "a\tb",
];
const NETWORK: &str = "podplane-differential";

pub(crate) fn sequence(seed: u64) -> Sequence {
    let dice = &mut Dice::new(seed);
    let world = SequenceContext::new(dice);
    let before = if dice.percent(40) {
        world.earlier_files(dice)
    } else {
        Tree::new()
    };
    // A configuration that is broken from the start gives a short sequence; most are long.
    let (length, faults) = match dice.below(10) {
        0..=1 => (1 + dice.below(4), 70),
        2 => (2 + dice.below(6), 25),
        _ => (6 + dice.below(16), 3),
    };
    let calls = (0..length).map(|_| (world.call(dice, faults), dice.percent(50)));
    Sequence {
        calls: calls.collect(),
        before,
        is_shared: dice.percent(50),
    }
}

/// The properties that all calls of a sequence share.
struct SequenceContext {
    base: JsonDocument,
    /// The configuration of some calls, as if an operator had changed it.
    variant: JsonDocument,
    /// Addresses in and around the ranges.
    addresses: Vec<IpAddr>,
    ids: Vec<&'static str>,
    name: &'static str,
}

impl SequenceContext {
    fn new(dice: &mut Dice) -> Self {
        let mut addresses = Vec::new();
        let base = config(dice, &mut addresses);
        let variant = if dice.percent(50) {
            config(dice, &mut addresses)
        } else {
            let mut variant = base.clone();
            variant.mutate(dice);
            variant
        };
        let many = 2 + dice.below(4);
        let mut ids = IDS[..many].to_vec();
        if dice.percent(10) {
            ids.push(dice.pick(ODD_IDS));
        }
        if addresses.is_empty() {
            addresses.push([10, 1, 2, 3].into());
        }
        Self {
            base,
            variant,
            addresses,
            ids,
            name: NETWORK,
        }
    }

    fn call(&self, dice: &mut Dice, faults: u32) -> PluginInput {
        let mut document = if dice.percent(88) {
            self.base.clone()
        } else {
            self.variant.clone()
        };
        let mut args = String::new();
        match dice.below(20) {
            0 => args = cni_args(dice, &self.addresses),
            1 | 2 => args = format!("IP={}", dice.pick(&self.addresses)),
            3 => {
                let ips = wishes(dice, &self.addresses);
                document.push("args", json!({"cni": {"ips": ips}}).into());
            }
            4 => {
                let ips = wishes(dice, &self.addresses);
                let mut capabilities = json!({"ips": ips});
                if dice.percent(30) {
                    let mut unused = Vec::new();
                    capabilities["ipRanges"] = json!([[range(dice, &mut unused)]]);
                }
                document.push("runtimeConfig", capabilities.into());
            }
            _ => {}
        }
        let commands = [
            ("ADD", 50),
            ("DEL", 26),
            ("CHECK", 12),
            ("GC", 4),
            ("STATUS", 3),
            ("VERSION", 2),
            ("FOO", 1),
            ("add", 1),
            ("", 1),
        ];
        let command = weighted(dice, &commands);
        if matches!(command, "GC") && dice.percent(80) {
            let valid: Vec<Value> = (0..dice.below(3))
                .map(|_| json!({"containerID": dice.pick(&self.ids), "ifname": "eth0"}))
                .collect();
            document.push("cni.dev/valid-attachments", json!(valid).into());
        }
        let mut env = BTreeMap::from([
            ("CNI_COMMAND", command.to_owned()),
            ("CNI_CONTAINERID", dice.pick(&self.ids).to_owned()),
            (
                "CNI_IFNAME",
                weighted(dice, &[("eth0", 9), ("net1", 1)]).to_owned(),
            ),
            ("CNI_NETNS", "/does/not/exist".to_owned()),
            ("CNI_ARGS", args),
            ("CNI_PATH", "/x".to_owned()),
        ]);
        if dice.percent(2) {
            env.insert("CNI_NETNS", "/proc/self/ns/net".to_owned());
            let answer = dice.pick(&["1", "TRUE", "true", "tRue", "0", "yes", ""]);
            env.insert("CNI_NETNS_OVERRIDE", answer.to_owned());
        }
        if dice.percent(faults) {
            break_environment(dice, &mut env);
        }
        let mut config = document.to_string();
        if dice.percent(faults) {
            for _ in 0..=dice.below(2) {
                document.mutate(dice);
            }
            config = document.to_string();
            if dice.percent(25) {
                config = damage(dice, &config);
            }
        }
        PluginInput { env, config }
    }

    /// Files that other programs may have left in the network's directory.
    fn earlier_files(&self, dice: &mut Dice) -> Tree {
        let mut tree = Tree::from([
            ("data".to_owned(), (FileNode::Directory, 0o755)),
            (format!("data/{}", self.name), (FileNode::Directory, 0o755)),
        ]);
        if dice.percent(2) {
            let file = (FileNode::File(Vec::new()), 0o644);
            tree.insert(format!("data/{}", self.name), file);
            return tree;
        }
        for _ in 0..=dice.below(6) {
            for (name, node) in self.earlier_file(dice) {
                let mode = match node {
                    FileNode::Directory => 0o755,
                    FileNode::File(_) => dice.pick(&[0o600, 0o644]),
                    FileNode::Link(_) => 0,
                };
                tree.insert(format!("data/{}/{name}", self.name), (node, mode));
            }
        }
        // A name that was first a directory and then another file has lost its content.
        let is_file = |path: &str| !matches!(tree.get(path), Some((FileNode::Directory, _)));
        let orphans: Vec<_> = tree
            .keys()
            .filter(|path| {
                path.rsplit_once('/')
                    .is_some_and(|(parent, _)| is_file(parent))
            })
            .cloned()
            .collect();
        for orphan in orphans {
            tree.remove(&orphan);
        }
        tree
    }

    fn earlier_file(&self, dice: &mut Dice) -> Vec<(String, FileNode)> {
        let ip = dice.pick(&self.addresses);
        let id = dice.pick(&self.ids);
        let file = |text: &str| FileNode::File(text.into());
        let own = format!("{id}\r\neth0");
        let (name, node) = match dice.below(26) {
            0..=5 => (ip.to_string(), file("other\r\neth0")),
            6 | 7 => (ip.to_string(), file(&own)),
            8 => (ip.to_string(), file(id)),
            9 | 10 => (ip.to_string(), file(dice.pick(&["", "", " \n", "\u{a0}"]))),
            11 => (ip.to_string(), FileNode::File(odd_lease(dice, id))),
            12 => (odd_name(dice, ip), file(&own)),
            13 => (ip.to_string(), FileNode::Directory),
            14 => {
                let name = dice.pick(&["sub", "10.9.9.9"]);
                let text = dice.pick(&["other\r\neth0", &own]);
                return vec![
                    (name.to_owned(), FileNode::Directory),
                    (format!("{name}/{ip}"), file(text)),
                ];
            }
            15 | 16 => {
                let name = dice.pick(&[
                    "notes",
                    ".hidden",
                    "last_reserved_ip.x",
                    "lock",
                    "10.1.2",
                    "zz",
                ]);
                let text = dice.pick(&["", "words", "other\r\neth0", &own, id]);
                (name.to_owned(), file(text))
            }
            17..=21 => (
                dice.pick(&[
                    "last_reserved_ip.0",
                    "last_reserved_ip.0",
                    "last_reserved_ip.1",
                ])
                .to_owned(),
                file(&odd_cursor(dice, ip)),
            ),
            22 => ("last_reserved_ip.0".to_owned(), FileNode::Directory),
            23 if dice.percent(20) => ("lock".to_owned(), FileNode::Directory),
            23 => ("last_reserved_ip.1".to_owned(), FileNode::Directory),
            24 => (ip.to_string(), FileNode::Link("nowhere".into())),
            _ => {
                return vec![
                    ("target".to_owned(), file("linked\r\neth0")),
                    (ip.to_string(), FileNode::Link("target".into())),
                ];
            }
        };
        vec![(name, node)]
    }
}

fn weighted<T: Copy>(dice: &mut Dice, items: &[(T, usize)]) -> T {
    let mut at = dice.below(items.iter().map(|(_, weight)| weight).sum());
    for (item, weight) in items {
        if at < *weight {
            return *item;
        }
        at -= weight;
    }
    items[0].0
}

fn odd_lease(dice: &mut Dice, id: &str) -> Vec<u8> {
    match dice.below(8) {
        0 => format!(" {id}\r\neth0\n"),
        1 => format!("{id}\neth0"),
        2 => format!("{id}\r\n"),
        3 => format!("{id}\r\neth0\r\nmore"),
        4 => format!("\u{a0}{id}\u{2003}"),
        5 => format!("{id}\r\neth0 "),
        6 => format!("{id}{}", " ".repeat(3000)),
        _ => return [id.as_bytes(), b"\r\neth0\xff"].concat(),
    }
    .into_bytes()
}

/// Names that mean the address, more or less.
fn odd_name(dice: &mut Dice, ip: IpAddr) -> String {
    match (ip, dice.below(4)) {
        (IpAddr::V4(ip), 0) => format!("::ffff:{ip}"),
        (IpAddr::V4(ip), 1) => format!("0{ip}"),
        (IpAddr::V4(ip), 2) => format!("{ip}."),
        (IpAddr::V4(ip), _) => format!("{ip}.tmp"),
        (IpAddr::V6(ip), 0) => ip.to_string().to_uppercase(),
        (IpAddr::V6(ip), 1) => ip.to_string().replacen(':', ":0:", 1),
        (IpAddr::V6(ip), 2) => format!("{ip}%eth0"),
        (IpAddr::V6(ip), _) => ip.to_string().replace(':', "_"),
    }
}

fn odd_cursor(dice: &mut Dice, ip: IpAddr) -> String {
    match dice.below(9) {
        0 => "garbage".to_owned(),
        1 => String::new(),
        2 => format!("{ip}\n"),
        3 => format!("::ffff:{ip}"),
        4 => "192.168.77.1".to_owned(),
        5 => "1".repeat(2000),
        _ => ip.to_string(),
    }
}

fn break_environment(dice: &mut Dice, env: &mut BTreeMap<&'static str, String>) {
    let keys: Vec<_> = env.keys().copied().collect();
    match dice.below(8) {
        0 => _ = env.insert("CNI_CONTAINERID", dice.pick(BAD_IDS).to_owned()),
        1 => _ = env.insert("CNI_IFNAME", dice.pick(BAD_IFNAMES).to_owned()),
        2 => _ = env.remove(dice.pick(&keys)),
        3 => {
            env.remove(dice.pick(&keys));
            env.remove(dice.pick(&keys));
        }
        4 => {
            _ = env.insert(
                "CNI_ARGS",
                dice.pick(&[";", "x", "IP", "=", "IP=1=2"]).to_owned(),
            )
        }
        _ => {}
    }
}

fn cni_args(dice: &mut Dice, addresses: &[IpAddr]) -> String {
    let pair = |dice: &mut Dice| match dice.below(16) {
        0..=3 => format!("IP={}", dice.pick(addresses)),
        4 => format!("IP={}/24", dice.pick(addresses)),
        5 => "IP=".to_owned(),
        6 => format!(
            "IP={}",
            dice.pick(&[
                "bad",
                "10.1.2.3/99",
                "/",
                "010.1.2.3",
                "1.2.3",
                "fe80::1%lo"
            ])
        ),
        7..=9 => format!(
            "IgnoreUnknown={}",
            dice.pick(&["1", "true", "TRUE", "True"])
        ),
        10 => format!(
            "IgnoreUnknown={}",
            dice.pick(&["0", "false", "", "z", "\u{e9}"])
        ),
        11 => format!("ip={}", dice.pick(addresses)),
        12 => "K8S_POD_NAME=x".to_owned(),
        13 => dice
            .pick(&["", "A=b=c", "K", "=", "=x", "\"=\u{1}\u{e9}"])
            .to_owned(),
        14 => "CommonArgs=x".to_owned(),
        _ => "FOO=".to_owned(),
    };
    let pairs: Vec<_> = (0..=dice.below(3)).map(|_| pair(dice)).collect();
    pairs.join(";")
}

fn wishes(dice: &mut Dice, addresses: &[IpAddr]) -> Vec<Value> {
    let wish = |dice: &mut Dice| match dice.below(12) {
        0 => format!("{}/28", dice.pick(addresses)).into(),
        1 if dice.percent(30) => {
            let bad = [
                "",
                "x",
                "10.1.2.3/33",
                "1.2.3.4/",
                "::ffff:10.1.2.3",
                "fd00::2/129",
                "10.1.2.3 ",
            ];
            dice.pick(&bad).into()
        }
        2 if dice.percent(20) => Value::Null,
        _ => dice.pick(addresses).to_string().into(),
    };
    let count = weighted(dice, &[(1, 5), (2, 3), (3, 1)]);
    (0..count).map(|_| wish(dice)).collect()
}

fn config(dice: &mut Dice, addresses: &mut Vec<IpAddr>) -> JsonDocument {
    let mut ipam = json!({"type": "host-local", "dataDir": format!("{DATA_DIR}")});
    if dice.percent(2) {
        let odd = ["/proc/nope", "data", "./data//x/../y", "@DIR@/a/b"];
        ipam["dataDir"] = dice.pick(&odd).into();
    }
    match dice.below(10) {
        0..=3 => merge(&mut ipam, range(dice, addresses)),
        4..=6 => ipam["ranges"] = sets(dice, addresses),
        7 => ipam["ranges"] = json!([[range(dice, addresses)]]),
        8 => {
            merge(&mut ipam, range(dice, addresses));
            ipam["ranges"] = sets(dice, addresses);
        }
        // Dual stack, as clusters have it.
        _ => {
            let (v4, v6) = (subnet(dice, Some(4)), subnet(dice, Some(6)));
            let pair = [bounded(dice, v4, addresses), bounded(dice, v6, addresses)];
            ipam["ranges"] = json!([[pair[0]], [pair[1]]]);
        }
    }
    if dice.percent(25) {
        ipam["routes"] = routes(dice);
    }
    if dice.percent(15) {
        let paths = [
            "/dev/null",
            "/does/not/exist",
            "@DIR@/../../resolv.conf",
            "@DIR@/../../resolv.conf",
            "@DIR@/../../resolv.conf",
            "",
            "/proc",
        ];
        ipam["resolvConf"] = dice.pick(&paths).into();
    }
    let mut config = json!({"name": NETWORK, "type": "bridge", "ipam": ipam});
    if dice.percent(10) {
        let mut capability = json!({"ipRanges": sets(dice, addresses)});
        if dice.percent(30) {
            capability["ips"] = json!([]);
        }
        config["runtimeConfig"] = capability;
    }
    if dice.percent(2) {
        let names = [
            "x", "a.b", "", "-x", "a/b", "..", "a b", "é", "lock", "A", "x\n",
        ];
        config["name"] = dice.pick(&names).into();
    }
    let versions = [
        (Some("1.0.0"), 44),
        (Some("0.4.0"), 30),
        (Some("0.3.1"), 20),
        (Some("0.3.0"), 5),
        (Some("0.2.0"), 5),
        (Some("0.1.0"), 4),
        (Some("1.1.0"), 8),
        (Some(""), 2),
        (None, 5),
        (Some("?"), 3),
    ];
    match weighted(dice, &versions) {
        None => {}
        Some("?") => {
            let odd = [
                "1.0",
                "0.4",
                "9.9",
                "abc",
                "1.0.0.0",
                "1.-1.0",
                "+1.0.0",
                "01.0.0",
                " 1.0.0",
                "1..0",
                "0.4.1",
                "1.0.1",
                "1.2.0",
                "99999999999999999999.0.0",
                "1.0.0-rc1",
                "2",
                ".",
                "\"",
                "é",
                "0.3.9",
            ];
            config["cniVersion"] = dice.pick(&odd).into();
        }
        Some(version) => config["cniVersion"] = version.into(),
    }
    config.into()
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

fn sets(dice: &mut Dice, addresses: &mut Vec<IpAddr>) -> Value {
    let set = |dice: &mut Dice, addresses: &mut Vec<IpAddr>| -> Value {
        let family = dice.pick(&[4, 4, 6]);
        let count = weighted(dice, &[(1, 24), (2, 14), (3, 4), (0, 1)]);
        let mut one = |dice: &mut Dice| {
            let family = if dice.percent(97) { Some(family) } else { None };
            let net = subnet(dice, family);
            bounded(dice, net, addresses)
        };
        (0..count).map(|_| one(dice)).collect::<Vec<_>>().into()
    };
    let count = weighted(dice, &[(1, 20), (2, 14), (3, 2), (0, 1)]);
    (0..count)
        .map(|_| set(dice, addresses))
        .collect::<Vec<_>>()
        .into()
}

fn range(dice: &mut Dice, addresses: &mut Vec<IpAddr>) -> Value {
    let net = subnet(dice, None);
    bounded(dice, net, addresses)
}

/// A subnet; most are small and adjacent.
fn subnet(dice: &mut Dice, family: Option<u8>) -> String {
    if dice.percent(2) {
        let odd = [
            "10.1.2.0/31",
            "10.1.2.0/32",
            "fd00::/127",
            "fd00::/128",
            "10.1.2.5/24",
            "fd00::5/64",
            "::ffff:10.1.2.0/120",
            "x",
            "",
            "10.1.2.0",
            "10.1.2.0/33",
            "010.1.2.0/24",
            "10.1.2.0/024",
            " 10.1.2.0/24",
            "fd00::/129",
            "10.1.2.0/-1",
            "10.1.2.0/+9",
            "10.1.2.0/24/3",
            "fd00::%lo/64",
            "255.255.255.252/30",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125",
        ];
        return dice.pick(&odd).to_owned();
    }
    let is_v4 = family.map_or_else(|| dice.percent(65), |family| family == 4);
    let n = dice.below(5);
    match (is_v4, dice.below(12)) {
        (true, 0..=5) => format!("10.1.2.{}/29", n * 8),
        (true, 6..=8) => format!("10.1.3.{}/30", n * 4),
        (true, 9) => format!("10.{}.0.0/16", 8 + n),
        (true, 10) => format!("{}.0.0.0/8", 11 + n),
        (true, _) => format!("10.1.{}.0/24", 2 + n),
        (false, 0..=5) => format!("fd00::{:x}/125", n * 8),
        (false, 6..=8) => format!("fd00:0:0:1::{:x}/126", n * 4),
        (false, 9) => format!("fd0{n}:1::/64"),
        (false, 10) => format!("fd00:{n}::/32"),
        (false, _) => format!("fd00:2:{n}::/112"),
    }
}

/// A range of the subnet: the whole, or with bounds, which are mostly valid. Large subnets are
/// mostly narrowed to a few addresses.
fn bounded(dice: &mut Dice, subnet: String, addresses: &mut Vec<IpAddr>) -> Value {
    let Ok(net) = subnet.parse::<IpNet>() else {
        return json!({"subnet": subnet});
    };
    let mut range = json!({"subnet": subnet});
    let host_bits = net.max_prefix_len() - net.prefix_len();
    let size = 1_i128 << host_bits.min(100);
    let is_large = size > 16;
    let nth = |n: i128| offset(net.network(), n);
    let start = if is_large {
        let low = dice.between(1, 40);
        dice.pick(&[low, size - 8, size / 2])
    } else {
        dice.between(1, size / 2)
    };
    let end = (start + dice.between(1, 6)).min(size - 2);
    if is_large && dice.percent(85) {
        range["rangeStart"] = nth(start).into();
        range["rangeEnd"] = nth(end).into();
    }
    if !is_large && dice.percent(15) {
        range["rangeStart"] = nth(start).into();
    }
    if !is_large && dice.percent(15) {
        range["rangeEnd"] = nth(end).into();
    }
    if dice.percent(20) {
        range["gateway"] = nth(dice.between(start - 1, end + 1)).into();
    }
    if dice.percent(4) {
        let key = dice.pick(&["rangeStart", "rangeEnd", "gateway"]);
        let n = dice.between(-1, 2);
        let odd = [
            nth(0),
            nth(n),
            nth(size),
            nth(size - 1),
            nth(size - 2),
            nth(start),
            nth(end),
            String::new(),
            "x".to_owned(),
            "fd00::3".to_owned(),
            "10.1.2.3".to_owned(),
            "::ffff:10.1.2.3".to_owned(),
            "10.1.2.03".to_owned(),
        ];
        range[key] = dice.pick(&odd).into();
    }
    let from = if is_large { start - 1 } else { 0 };
    let around = (from..from + 9).filter_map(|n| nth(n).parse::<IpAddr>().ok());
    addresses.extend(around);
    range
}

fn offset(base: IpAddr, n: i128) -> String {
    match base {
        IpAddr::V4(ip) => {
            let bits = i128::from(ip.to_bits()) + n;
            let bits = u32::try_from(bits.rem_euclid(1 << 32)).unwrap();
            std::net::Ipv4Addr::from_bits(bits).to_string()
        }
        IpAddr::V6(ip) => {
            let bits = ip.to_bits().wrapping_add_signed(n);
            std::net::Ipv6Addr::from_bits(bits).to_string()
        }
    }
}

fn routes(dice: &mut Dice) -> Value {
    let one = |dice: &mut Dice| match dice.below(12) {
        0..=3 => json!({"dst": "0.0.0.0/0"}),
        4 => json!({"dst": "192.168.0.5/16", "gw": "10.1.2.1"}),
        5 => json!({"dst": "fd09::/64", "gw": "fd00::1"}),
        6 => json!({"dst": "::/0", "gw": ""}),
        7 => {
            json!({"dst": "10.0.0.0/8", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 200})
        }
        8 => json!({"dst": "10.0.0.0/8", "table": 0, "scope": 0, "mtu": 0}),
        9 => json!({"gw": "10.1.2.1"}),
        10 => {
            json!({"dst": dice.pick(&["x", "", "10.0.0.0", "10.0.0.0/33", "::ffff:10.0.0.0/104"])})
        }
        _ => dice.pick(&[
            Value::Null,
            json!({}),
            json!({"dst": "10.0.0.0/8", "gw": "x"}),
        ]),
    };
    (0..=dice.below(3))
        .map(|_| one(dice))
        .collect::<Vec<_>>()
        .into()
}
