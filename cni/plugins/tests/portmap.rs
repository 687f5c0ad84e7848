//! The program `portmap`, in namespaces of the test's own. `nft` shows the state of the kernel.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{io, path::Path};

use podplane_netlink::netns;
use podplane_test_network::{DEBIAN, call, our_plugins, require};
use serde_json::{Value, json};
use support::site::{
    CLIENT, HOST, HOST_TOO, HOST_V6, PodServer, Site, address, client, ip, mappings, nft, path,
};

/// Connects from a machine beside the node, from the node by each of its addresses, from another
/// pod, and from the pod itself. Returns the rules that are left after all DELs.
fn is_reached_from_everywhere(plugin: &str, portmap: &Value) -> String {
    let site = Site::new();
    let network = site.network(plugin, portmap);
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &json!([])));
    let result = site.add(&network, &a);
    assert_eq!(result.interfaces.last().unwrap().name, "eth0", "passed on");
    site.add(&network, &b);
    site.runtime.check(&network, &a).unwrap();
    site.runtime.check(&network, &b).unwrap();
    let server = PodServer::new(path(&a), 80, 53);
    let outside = &*site.outside;

    assert_eq!(server.tcp(outside, HOST, 8080).unwrap(), ip(CLIENT));
    assert_eq!(server.tcp(outside, HOST_TOO, 8080).unwrap(), ip(CLIENT));
    assert_eq!(server.udp(outside, HOST, 5353).unwrap(), ip(CLIENT));
    assert_eq!(
        server.tcp(outside, HOST_V6, 8080).unwrap(),
        ip("fd00:99::2")
    );
    assert_eq!(
        server.udp(outside, HOST_V6, 5353).unwrap(),
        ip("fd00:99::2")
    );

    let seen = server.tcp(site.node(), "127.0.0.1", 8080).unwrap();
    assert!(!seen.is_loopback(), "{seen}");
    let seen = server.udp(site.node(), "127.0.0.1", 5353).unwrap();
    assert!(!seen.is_loopback(), "{seen}");
    for to in [HOST, HOST_TOO, HOST_V6] {
        server.tcp(site.node(), to, 8080).unwrap();
        // The pod itself, and another pod.
        assert_ne!(server.tcp(path(&a), to, 8080).unwrap(), ip(to));
        server.udp(path(&a), to, 5353).unwrap();
        server.tcp(path(&b), to, 8080).unwrap();
    }

    server.tcp(outside, HOST, 8443).unwrap();
    for not_mapped in [HOST_TOO, HOST_V6] {
        server.tcp(outside, not_mapped, 8443).unwrap_err();
    }
    server.tcp(outside, HOST_TOO, 8444).unwrap();
    server.tcp(outside, HOST_V6, 8444).unwrap_err();
    server.tcp(outside, HOST_V6, 8446).unwrap();
    server.tcp(outside, HOST, 8446).unwrap_err();

    site.runtime.del(&network, &a).unwrap();
    let left = site.ruleset();
    server.tcp(outside, HOST, 8080).unwrap_err();
    site.runtime.del(&network, &b).unwrap();
    site.runtime.del(&network, &a).unwrap();
    left
}

#[test]
fn a_pod_of_bridge_is_reached_from_everywhere() {
    if require(&["root", "nftables"]) {
        assert_eq!(is_reached_from_everywhere("bridge", &json!({})), "");
    }
}

#[test]
fn a_pod_of_ptp_is_reached_from_everywhere() {
    if require(&["root", "nftables"]) {
        assert_eq!(is_reached_from_everywhere("ptp", &json!({})), "");
    }
}

#[test]
fn a_pod_is_reached_from_everywhere_with_iptables() {
    if require(&["root", "nftables", "iptables"]) {
        let left = is_reached_from_everywhere("bridge", &json!({"backend": "iptables"}));
        assert!(left.contains("chain CNI-HOSTPORT-DNAT"), "{left}");
        assert!(!left.contains("CNI-DN-"), "{left}");
    }
}

#[test]
fn the_rules_are_structured_like_those_of_the_reference() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({"markMasqBit": 5}));
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let family = |name: &str, pod: &str, one: &[&str], any: &[&str], localhost: &str| {
        let to = |rule: &&str| format!("{rule} comment \"a\"").replace("POD", pod);
        let rules: Vec<_> = one.iter().chain(any).map(to).collect();
        let ip = name;
        let masquerade =
            format!("{ip} saddr {pod} {ip} daddr {pod} masquerade comment \"a\"{localhost}");
        format!(
            r#"table {name} cni_hostport {{
comment "CNI portmap plugin"
chain hostports {{
{}
}}
chain hostip_hostports {{
}}
chain hostports_all {{
jump hostip_hostports
jump hostports
}}
chain prerouting {{
type nat hook prerouting priority dstnat; policy accept;
fib daddr type local jump hostports_all
}}
chain output {{
type nat hook output priority dstnat; policy accept;
fib daddr type local jump hostports_all
}}
chain masquerading {{
type nat hook postrouting priority srcnat; policy accept;
{masquerade}
}}
}}
"#,
            rules.join("\n")
        )
    };
    let v4 = family(
        "ip",
        "10.244.1.2",
        &["ip daddr 192.0.2.1 tcp dport 8443 dnat to POD:80"],
        &[
            "tcp dport 8080 dnat to POD:80",
            "udp dport 5353 dnat to POD:53",
            "tcp dport 8444 dnat to POD:80",
            "sctp dport 7777 dnat to POD:7777",
        ],
        "\nip saddr 127.0.0.1 ip daddr 10.244.1.2 masquerade comment \"a\"",
    );
    let v6 = family(
        "ip6",
        "fd00:1::2",
        &[],
        &[
            "tcp dport 8080 dnat to [POD]:80",
            "udp dport 5353 dnat to [POD]:53",
            "tcp dport 8446 dnat to [POD]:80",
            "sctp dport 7777 dnat to [POD]:7777",
        ],
        "",
    );
    let shown = site.ruleset();
    let lines = shown.lines().map(str::trim).filter(|line| !line.is_empty());
    let shown: String = lines.map(|line| format!("{line}\n")).collect();
    // Some versions of `nft` print the priority of `output` as a number.
    let shown = shown.replace("hook output priority -100", "hook output priority dstnat");
    assert_eq!(shown, v4 + &v6);

    // A second ADD of the plugin alone adds no rule.
    let before = site.ruleset();
    let mut again = pod;
    again.container_id = "a".to_owned();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap", "markMasqBit": 5, "backend": "nftables",
        "runtimeConfig": {"portMappings": mappings()},
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.244.1.2/24"}, {"address": "fd00:1::2/64"}]},
    });
    let ours = our_plugins().join("portmap");
    let (code, stdout) =
        netns::in_netns(site.node(), || call(&ours, "ADD", "a", "", &config)).unwrap();
    assert_eq!(code, 0, "{stdout}");
    assert_eq!(site.ruleset(), before);
    site.runtime.del(&network, &again).unwrap();
    assert_eq!(site.ruleset(), "");
}

#[test]
fn adds_and_removes_hundreds_of_mappings() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let many: Vec<_> = (0..1000)
        .map(|n| json!({"hostPort": 10_000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let pod = site.pod("a", &many.into());
    site.runtime.add(&network, &pod).unwrap();
    site.runtime.check(&network, &pod).unwrap();
    assert_eq!(site.ruleset().matches("dnat to").count(), 2000);
    // As after the loss of the cache.
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    site.runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(site.ruleset(), "");
}

#[test]
fn a_gc_of_another_network_and_a_del_of_another_interface_leave_the_rules() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let before = site.ruleset();
    let ours = our_plugins().join("portmap");
    let config =
        |name: &str| json!({"cniVersion": "1.1.0", "name": name, "cni.dev/valid-attachments": []});
    for (command, name) in [("GC", "ne"), ("GC", "net2"), ("DEL", "other")] {
        let answer = netns::in_netns(site.node(), || call(&ours, command, "a", "", &config(name)));
        assert_eq!(answer.unwrap(), (0, String::new()));
        assert_eq!(site.ruleset(), before, "{command} {name}");
    }
    // Neither mappings nor a previous result: the id is enough.
    let answer = netns::in_netns(site.node(), || call(&ours, "DEL", "a", "", &config("net")));
    assert_eq!(answer.unwrap(), (0, String::new()));
    assert_eq!(site.ruleset(), "");
}

#[test]
fn redirects_only_packets_to_the_host_and_masq_all_masquerades_all() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &json!([])));
    let network = site.network("bridge", &json!({"masqAll": true}));
    site.add(&network, &a);
    let result = site.add(&network, &b);
    site.runtime.check(&network, &a).unwrap();
    let server = PodServer::new(path(&a), 80, 53);
    assert_eq!(
        server.tcp(&site.outside, HOST, 8080).unwrap(),
        ip("10.244.1.1")
    );
    server.tcp(path(&a), HOST, 8080).unwrap();
    server.tcp(site.node(), "127.0.0.1", 8080).unwrap();
    // The other pod uses the mapped port itself, and is reached at it through the node.
    let other = PodServer::new(path(&b), 8080, 5353);
    let to = address(&result, 0).to_string();
    assert_eq!(other.tcp(&site.outside, &to, 8080).unwrap(), ip(CLIENT));
    other.udp(&site.outside, &to, 5353).unwrap();
}

#[test]
fn an_open_udp_flow_moves_to_the_current_pod() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &mappings()));
    site.add(&network, &a);
    let clients = [HOST, HOST_V6].map(|to| client(&site.outside, to, 5353));
    let first = PodServer::new(path(&a), 80, 53);
    for client in &clients {
        first.udp_by(client).unwrap();
    }
    // An ADD leads the flow to the new pod although the old one still exists, and a DEL leads it
    // back.
    site.add(&network, &b);
    let second = PodServer::new(path(&b), 80, 53);
    for client in &clients {
        second.udp_by(client).unwrap();
    }
    site.runtime.del(&network, &b).unwrap();
    for client in &clients {
        first.udp_by(client).unwrap();
    }
    site.runtime.del(&network, &a).unwrap();
    // No pod has the port any more, and the node refuses it itself.
    clients[0].send(b"ask").unwrap();
    let error = clients[0].recv(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
}

#[test]
fn conditions_have_the_syntax_of_nft_and_bad_ones_leave_nothing() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let conditions = json!({"conditionsV4": ["ip", "saddr", "!=", CLIENT], "snat": false});
    let network = site.network("bridge", &conditions);
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let server = PodServer::new(path(&pod), 80, 53);
    server.tcp(&site.outside, HOST, 8080).unwrap_err();
    server.tcp(site.node(), HOST, 8080).unwrap();
    server.tcp(&site.outside, HOST_V6, 8080).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("masquerade"), "without snat: {shown}");
    site.runtime.check(&network, &pod).unwrap();
    site.runtime.del(&network, &pod).unwrap();
    assert_eq!(site.ruleset(), "");

    let network = site.network(
        "bridge",
        &json!({"conditionsV4": ["ip", "saddr", "nonsense!"]}),
    );
    let error = site.runtime.add(&network, &pod).unwrap_err().message();
    assert!(error.contains("nft refuses the conditions"), "{error}");
    assert_eq!(site.ruleset(), "");
}

#[test]
fn check_reports_missing_rules() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let pod = site.pod("a", &mappings());
    for chain in ["hostports", "masquerading", "prerouting", "output"] {
        site.add(&network, &pod);
        site.runtime.check(&network, &pod).unwrap();
        nft(
            site.node(),
            &["flush", "chain", "ip6", "cni_hostport", chain],
            "",
        );
        let error = site.runtime.check(&network, &pod).unwrap_err().message();
        assert_eq!(
            error,
            format!(
                "plugin type=\"portmap\" failed (check): missing hostport rules in \"{chain}\" chain"
            )
        );
        site.runtime.del(&network, &pod).unwrap();
        assert_eq!(site.ruleset(), "", "{chain}");
    }
}

#[test]
fn pods_added_and_deleted_concurrently_keep_their_rules_and_leave_nothing() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    assert_eq!(rules_after_a_crowd("nftables"), "");
    let left = rules_after_a_crowd("iptables");
    assert!(!left.contains("CNI-DN-"), "{left}");
    let entrances = left.matches("jump CNI-HOSTPORT-DNAT").count();
    assert_eq!(entrances, 2, "one of PREROUTING, one of OUTPUT: {left}");
}

/// The rules that are left after many pods have come and gone at once.
fn rules_after_a_crowd(backend: &str) -> String {
    let site = Site::new();
    let ours = our_plugins().join("portmap");
    let config = |n: usize| {
        json!({
            "cniVersion": "1.1.0", "name": "net", "backend": backend,
            "runtimeConfig": {"portMappings": [{"hostPort": 1000 + n, "containerPort": 80, "protocol": "tcp"}]},
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("10.244.1.{}/24", n + 2)}]},
        })
    };
    let run = |command: &str, n: usize| {
        let id = format!("pod{n}");
        let answer = netns::in_netns(site.node(), || call(&ours, command, &id, "", &config(n)));
        let (code, stdout) = answer.unwrap();
        assert_eq!(code, 0, "{command} {stdout}");
    };
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let run = &run;
            scope.spawn(move || {
                for round in 0..15 {
                    let n = worker * 20 + round;
                    run("ADD", n);
                    run("CHECK", n);
                    if round % 5 != 0 {
                        run("DEL", n);
                        run("DEL", n);
                    }
                }
            });
        }
    });
    for n in (0..6).flat_map(|worker| [0, 5, 10].map(|round| worker * 20 + round)) {
        run("CHECK", n);
        run("DEL", n);
    }
    site.ruleset()
}

#[test]
fn configurations_without_rules_are_answered_like_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let previous = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/24"}], "dns": {}});
    let mapping = |host: i32, container: i32| json!({"portMappings": [{"hostPort": host, "containerPort": container, "protocol": "tcp"}]});
    let cases = [
        json!({}),
        json!({"prevResult": previous}),
        json!({"prevResult": previous, "runtimeConfig": {"portMappings": []}}),
        json!({"runtimeConfig": mapping(80, 80)}),
        json!({"prevResult": previous, "runtimeConfig": mapping(0, 80)}),
        json!({"prevResult": previous, "runtimeConfig": mapping(80, -1)}),
        json!({"prevResult": previous, "markMasqBit": 32}),
        json!({"prevResult": previous, "markMasqBit": 1, "externalSetMarkChain": "X"}),
        json!({"prevResult": {"ips": [{"version": "4", "address": "10.0.0.2"}]}}),
    ];
    for (mut config, command) in cases
        .into_iter()
        .flat_map(|case| [(case.clone(), "ADD"), (case, "CHECK")])
    {
        config["cniVersion"] = "0.4.0".into();
        config["name"] = "net".into();
        let answer = |dir: &Path| {
            let (code, stdout) = call(&dir.join("portmap"), command, "a", "", &config);
            let value: Value = serde_json::from_str(&stdout).unwrap_or_default();
            (code, value)
        };
        assert_eq!(
            answer(&our_plugins()),
            answer(Path::new(DEBIAN)),
            "{command} {config}"
        );
    }
}
