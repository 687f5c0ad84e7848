//! The program `bandwidth` beside Debian's, in namespaces of the test's own. `tc` shows the state
//! of the kernel.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use podplane_netlink::{Netlink, Request, Veth, netns};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, require, run_in, run_program,
    without_json_words,
};
use serde_json::{Value, json};

/// A node and a container with a veth pair between them.
struct BandwidthFixture {
    _world: NetnsFixture,
    node: PathBuf,
    container: PathBuf,
}

impl BandwidthFixture {
    fn new() -> Self {
        let world = NetnsFixture::new();
        let (node, container) = (world.netns("node"), world.netns("container"));
        let scene = Self {
            _world: world,
            node,
            container,
        };
        scene.create_pair();
        scene
    }

    fn create_pair(&self) {
        let file = netns::open(&self.container).unwrap();
        let veth = Veth {
            name: "host0",
            peer_name: "eth0",
            peer_netns: Some(file.as_fd()),
            mtu: Some(1442),
            up: true,
            ..Veth::default()
        };
        let mut netlink = Netlink::open_in(&self.node).unwrap();
        netlink.execute([Request::create_veth(&veth)]).unwrap();
    }

    /// Restores the initial state.
    fn reset(&self) {
        let mut netlink = Netlink::open_in(&self.node).unwrap();
        for link in netlink.links().unwrap() {
            if link.name != "lo" {
                netlink.execute([Request::delete_link(link.index)]).unwrap();
            }
        }
        self.create_pair();
    }

    fn run(&self, plugins: &Path, command: &str, config: &Value) -> (i32, String) {
        let program = plugins.join("bandwidth");
        let run = || run_program(&program, [command, "a", ""], &self.container, config);
        netns::in_netns(&self.node, run).unwrap()
    }

    fn tc(&self, args: &[&str]) -> Value {
        let args: Vec<_> = ["-j"].iter().chain(args).copied().collect();
        serde_json::from_str(&run_in(&self.node, "tc", &args)).unwrap()
    }

    /// The queueing disciplines and filters as `tc` shows them, and the links, without numbers that
    /// the kernel assigns.
    fn state(&self) -> Value {
        let mut netlink = Netlink::open_in(&self.node).unwrap();
        let links = netlink.links().unwrap().into_iter().map(|link| {
            json!([
                link.name,
                link.kind,
                link.mtu,
                link.tx_queue_length,
                link.is_up
            ])
        });
        let links: Vec<_> = links.collect();
        let mut filters = self.tc(&["filter", "show", "dev", "host0", "parent", "ffff:"]);
        for filter in filters.as_array_mut().unwrap() {
            let Some(actions) = filter["options"].get_mut("actions") else {
                continue;
            };
            // The reference names the redirection twice; the packet is gone after the first.
            let first = actions[0].take();
            *actions = json!([
                first["kind"],
                first["mirred_action"],
                first["direction"],
                first["to_dev"],
                first["control_action"]
            ]);
        }
        json!({"links": links, "qdiscs": self.tc(&["qdisc", "show"]), "filters": filters})
    }
}

fn ours() -> PathBuf {
    assert!(Path::new(env!("CARGO_BIN_EXE_bandwidth")).exists());
    our_plugins()
}

/// A configuration with a previous result.
fn config(version: &str, more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": version, "name": "net", "type": "bandwidth", "capabilities": {"bandwidth": true},
        "prevResult": {
            "cniVersion": version,
            "interfaces": [{"name": "host0"}, {"name": "eth0", "sandbox": "/netns"}],
            "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 1}],
            "routes": [],
        },
    });
    if version.starts_with("0.") {
        config["prevResult"]["ips"][0]["version"] = "4".into();
    }
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn limits(ingress: [u64; 2], egress: [u64; 2]) -> Value {
    let [[ingress_rate, ingress_burst], [egress_rate, egress_burst]] = [ingress, egress];
    json!({"ingressRate": ingress_rate, "ingressBurst": ingress_burst, "egressRate": egress_rate, "egressBurst": egress_burst})
}

/// An answer in a form that can be compared. The hardware address of the link is the kernel's
/// choice, and 1.1.1 orders the keys of 1.0.0 otherwise than the reference's main branch.
fn comparable(code: i32, answer: &str, version: &str) -> Value {
    if code != 0 {
        return without_json_words((code, answer.to_owned())).1;
    }
    let mut value: Value = serde_json::from_str(answer).unwrap();
    for interface in value["interfaces"].as_array_mut().unwrap() {
        let is_ifb = interface["name"].as_str().unwrap().starts_with("bwp");
        if is_ifb {
            assert_eq!(interface["mac"].as_str().unwrap().len(), 17);
            interface["mac"] = "the kernel's".into();
        }
    }
    if version == "1.0.0" {
        // 1.1.1 prints empty settings of name resolution.
        let object = value.as_object_mut().unwrap();
        object.retain(|key, value| !(key == "dns" && *value == json!({})));
        return value;
    }
    let keys = answer.lines().map(|line| line.split(':').next().unwrap());
    json!([value, keys.collect::<Vec<_>>()])
}

fn cases() -> Vec<Value> {
    let both = limits([8_000_000, 80_000], [16_000_000, 160_000]);
    vec![
        both.clone(),
        limits([8_000_000, 80_000], [0, 0]),
        limits([0, 0], [8_000_000, 80_000]),
        limits([0, 0], [0, 0]),
        json!({}),
        json!({"runtimeConfig": {"bandwidth": both}}),
        json!({"runtimeConfig": {"bandwidth": both}, "egressRate": 9_000_001, "egressBurst": 99_999}),
        json!({"runtimeConfig": {"bandwidth": null}}),
        // A rate of more than 32 bits, the largest burst, the lowest rate, and the values that
        // kubelets use for no limit.
        limits([80_000_000_000, 8_000_000], [34_359_738_368, 8_000_000]),
        limits(
            [800_000_000_000, 34_359_738_351],
            [1_000_000_007, 17_179_869_184],
        ),
        limits([8_000, 80_000], [12_345_678, 7_654_321]),
        limits(
            [1_000_000_000_000_000, 2_147_483_647],
            [1_000_000_000_000_000, 2_147_483_647],
        ),
        // Configurations that are refused.
        limits([8, 0], [0, 0]),
        limits([0, 8], [0, 0]),
        limits([8, 8], [8, 0]),
        limits([8, 8], [0, 8]),
        limits([8, 34_359_738_360], [0, 0]),
        json!({"ingressRate": "x"}),
        json!({"egressBurst": -1}),
        json!({"egressBurst": 1.5}),
        json!({"runtimeConfig": {"bandwidth": 5}}),
        json!({"runtimeConfig": {"bandwidth": {"egressRate": true}}}),
        json!({"runtimeConfig": 5}),
        json!({"prevResult": 5, "ingressRate": 8, "ingressBurst": 8}),
        json!({"prevResult": null, "ingressRate": 8, "ingressBurst": 8}),
        json!({"prevResult": {"ips": []}, "ingressRate": 8, "ingressBurst": 8}),
        json!({"prevResult": {"interfaces": [{"name": "other"}]}, "ingressRate": 8, "ingressBurst": 8}),
    ]
}

#[test]
fn answers_and_limits_like_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (theirs, ours) = (
        (BandwidthFixture::new(), PathBuf::from(DEBIAN)),
        (BandwidthFixture::new(), ours()),
    );
    for version in ["0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        // Only the format of the result depends on the version.
        let many = if version == "1.0.0" { usize::MAX } else { 1 };
        for more in cases().into_iter().take(many) {
            let config = config(version, &more);
            let add = |(scene, plugins): &(BandwidthFixture, PathBuf)| {
                let (code, mut answer) = scene.run(plugins, "ADD", &config);
                if version == "0.2.0" {
                    answer = answer.replace(" \\\"1.1.0\\\"", "");
                }
                let seen = (code, comparable(code, &answer, version), scene.state());
                let checked = (code == 0).then(|| scene.run(plugins, "CHECK", &config));
                scene.reset();
                (seen, checked)
            };
            let ((ours, ours_checked), (theirs, theirs_checked)) = (add(&ours), add(&theirs));
            assert_eq!(ours, theirs, "{version} {more}");
            let text = format!("{version} {more} {ours_checked:?} {theirs_checked:?}");
            match (ours_checked, theirs_checked) {
                (None, None) => {}
                (Some((0, _)), Some((0, _))) => {}
                // 1.1.1 crashes without a limit.
                (Some((0, _)), Some((2, _))) => {}
                (Some(ours), Some(theirs)) if ours == theirs => {}
                _ => panic!("{text}"),
            }
        }
    }
}

#[test]
fn ours_and_debians_delete_each_others_limits() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (ours(), PathBuf::from(DEBIAN));
    let scene = BandwidthFixture::new();
    let links = || {
        let links = Netlink::open_in(&scene.node).unwrap().links().unwrap();
        links.into_iter().map(|link| link.name).collect::<Vec<_>>()
    };
    for more in cases().into_iter().take(6) {
        let config = config("1.0.0", &more);
        for (adds, deletes) in [(&ours, &ours), (&ours, &debians), (&debians, &ours)] {
            let text = format!("{more} {} {}", adds.display(), deletes.display());
            assert_eq!(scene.run(adds, "ADD", &config).0, 0, "{text}");
            let checked = scene.run(&ours, "CHECK", &config);
            assert_eq!(checked, (0, String::new()), "{text}");
            for _ in 0..2 {
                let deleted = scene.run(deletes, "DEL", &config);
                assert_eq!(deleted, (0, String::new()), "{text}");
                assert_eq!(links(), ["lo", "host0"], "{text}");
            }
            scene.reset();
        }
    }
}

#[test]
fn check_reports_each_change() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let scene = BandwidthFixture::new();
    let config = config("1.0.0", &limits([8_000_000, 80_000], [16_000_000, 160_000]));
    assert_eq!(scene.run(&ours(), "ADD", &config).0, 0);
    let both = || {
        let [ours, theirs] =
            [&ours(), Path::new(DEBIAN)].map(|plugins| scene.run(plugins, "CHECK", &config));
        assert_eq!(ours, theirs);
        ours
    };
    assert_eq!(both(), (0, String::new()));
    let links = Netlink::open_in(&scene.node).unwrap().links().unwrap();
    let ifb = links.into_iter().find(|link| link.kind == "ifb").unwrap();
    for (link, good) in [
        ("host0", ["8mbit", "10000", "35000"]),
        (ifb.name.as_str(), ["16mbit", "20000", "70000"]),
    ] {
        let change = |[rate, burst, limit]: [&str; 3]| {
            let args = format!(
                "qdisc change dev {link} root handle 1: tbf rate {rate} burst {burst} limit {limit}"
            );
            run_in(&scene.node, "tc", &args.split(' ').collect::<Vec<_>>());
        };
        let [rate, burst, limit] = good;
        for (other, expected) in [
            (["9mbit", burst, limit], "Rate doesn't match"),
            ([rate, burst, "12345"], "Limit doesn't match"),
            ([rate, "9000", limit], "Buffer doesn't match"),
        ] {
            change(other);
            let (code, answer) = both();
            assert_eq!(code, 1);
            assert!(answer.contains(expected), "{answer}");
        }
        change(good);
        assert_eq!(both(), (0, String::new()));
    }
    // The reference stops at another discipline in the limit's place.
    let other = ["qdisc", "replace", "dev", "host0", "root", "pfifo"];
    run_in(&scene.node, "tc", &other);
    let (code, answer) = scene.run(&ours(), "CHECK", &config);
    assert_eq!(code, 1);
    assert!(answer.contains("Failed to find qdisc"), "{answer}");
    let mut netlink = Netlink::open_in(&scene.node).unwrap();
    netlink.execute([Request::delete_link(ifb.index)]).unwrap();
    let only_egress = without_ingress(&config);
    let (code, answer) = scene.run(&ours(), "CHECK", &only_egress);
    assert_eq!(code, 1);
    assert!(
        answer.contains("get ifb device: Link not found"),
        "{answer}"
    );
}

/// The configuration without a limit of traffic to the container.
fn without_ingress(config: &Value) -> Value {
    let mut config = config.clone();
    config["ingressRate"] = 0.into();
    config["ingressBurst"] = 0.into();
    config
}

#[test]
fn a_failed_add_leaves_nothing() {
    if !require(&["root"]) {
        return;
    }
    let scene = BandwidthFixture::new();
    let before = scene.state();
    let both = config("1.0.0", &limits([8_000_000, 80_000], [16_000_000, 160_000]));
    // Configurations that fail at the last step.
    for (egress, expected) in [
        ([7, 80_000], "invalid rate 7 bit/s: it must be 8 or more"),
        (
            [80_000_000_000, 8],
            "invalid burst 8 bit: it must be more for 80000000000 bit/s",
        ),
    ] {
        let more = limits([8_000_000, 80_000], egress);
        let (code, answer) = scene.run(&ours(), "ADD", &config("1.0.0", &more));
        assert_eq!(code, 1);
        assert!(answer.contains(expected), "{answer}");
        assert_eq!(scene.state(), before);
    }
    // An existing discipline belongs to another program, and stays.
    run_in(
        &scene.node,
        "tc",
        &["qdisc", "add", "dev", "host0", "handle", "ffff:", "ingress"],
    );
    let before = scene.state();
    let (code, answer) = scene.run(&ours(), "ADD", &both);
    assert_eq!(code, 1);
    assert!(answer.contains("create ingress qdisc"), "{answer}");
    assert_eq!(scene.state(), before);
    scene.reset();
    // A second ADD fails, and the first one's limits stay.
    assert_eq!(scene.run(&ours(), "ADD", &both).0, 0);
    let before = scene.state();
    assert_eq!(scene.run(&ours(), "ADD", &both).0, 1);
    let (code, answer) = scene.run(&ours(), "ADD", &without_ingress(&both));
    assert_eq!(code, 1);
    assert!(answer.contains("adding link"), "{answer}");
    assert_eq!(scene.state(), before);
    // A DEL works even with a configuration that became invalid.
    let worse = config("1.0.0", &json!({"ingressRate": 5, "prevResult": 5}));
    assert_eq!(scene.run(&ours(), "DEL", &worse), (0, String::new()));
    assert_eq!(scene.state()["links"].as_array().unwrap().len(), 2);
}

#[test]
fn gc_removes_limits_without_a_valid_attachment() {
    if !require(&["root"]) {
        return;
    }
    let scene = BandwidthFixture::new();
    let mut config = config("1.1.0", &limits([0, 0], [16_000_000, 160_000]));
    let (code, answer) = scene.run(&ours(), "ADD", &config);
    assert_eq!(code, 0, "{answer}");
    let links = || Netlink::open_in(&scene.node).unwrap().links().unwrap();
    let ifb = links().into_iter().find(|link| link.kind == "ifb").unwrap();
    assert_eq!(ifb.alias, "net/a");
    let mut gc = |network: &str, valid: Value| {
        config["name"] = network.into();
        config["cni.dev/valid-attachments"] = valid;
        assert_eq!(scene.run(&ours(), "GC", &config), (0, String::new()));
        links().len()
    };
    assert_eq!(gc("net", json!(null)), 3);
    assert_eq!(
        gc("net", json!([{"containerID": "a", "ifname": "eth0"}])),
        3
    );
    assert_eq!(gc("other", json!([])), 3);
    assert_eq!(
        gc("net", json!([{"containerID": "b", "ifname": "eth0"}])),
        2
    );
    assert_eq!(scene.run(&ours(), "STATUS", &config).0, 0);
}

#[test]
fn works_after_bridge_and_ptp_in_a_chain() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (ours(), PathBuf::from(DEBIAN));
    for first in ["bridge", "ptp"] {
        for (adds, deletes) in [(&ours, &ours), (&ours, &debians), (&debians, &ours)] {
            let world = NetnsFixture::new();
            let mut runtime = world.runtime(&[adds]);
            let node = runtime.node_netns.clone().unwrap();
            let (a, b) = (world.netns("a"), world.netns("b"));
            let network = list(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
                {"type": first, "isGateway": true, "ipam": {
                    "type": "host-local", "dataDir": world.path("networks"), "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "bandwidth", "capabilities": {"bandwidth": true}},
            ]}));
            let mut pod = attachment("a", &a);
            let limits = limits([8_000_000, 80_000], [16_000_000, 160_000]);
            pod.capability_args.insert("bandwidth".to_owned(), limits);
            let result = runtime.add(&network, &pod).unwrap();
            assert!(result.interfaces.last().unwrap().name.starts_with("bwp"));
            // A container without limits.
            let other = attachment("b", &b);
            runtime.add(&network, &other).unwrap();
            exchange(&b, &a, result.ips[0].address.addr());
            runtime.bin_dirs = vec![deletes.clone()];
            runtime.check(&network, &pod).unwrap();
            runtime.del(&network, &pod).unwrap();
            runtime.del(&network, &other).unwrap();
            let left = Netlink::open_in(&node).unwrap().links().unwrap();
            let left: Vec<_> = left.into_iter().map(|link| link.name).collect();
            let expected: &[&str] = if first == "bridge" {
                &["lo", "cni0"]
            } else {
                &["lo"]
            };
            assert_eq!(left, expected);
        }
    }
}
