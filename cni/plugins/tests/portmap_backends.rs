//! The rules of `portmap` by iptables, and the rules that the reference's plugins and ours remove
//! for each other.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use podplane_cni::Runtime;
use podplane_netlink::netns;
use podplane_test_network::{DEBIAN, NetnsFixture, call, our_plugins, output_of, require, run_in};
use serde_json::{Value, json};
use support::site::{CLIENT, HOST, PodServer, Site, mappings, nft, path};

/// The commands that versions of the reference's nftables backend make for a mapping, by the
/// container's id alone.
const BY_THE_REFERENCE: &str = r#"
add table ip cni_hostport { comment "CNI portmap plugin"; }
add chain ip cni_hostport hostports
add chain ip cni_hostport hostip_hostports
add chain ip cni_hostport prerouting { type nat hook prerouting priority -100; }
add chain ip cni_hostport masquerading { type nat hook postrouting priority 100; }
add rule ip cni_hostport prerouting jump hostip_hostports
add rule ip cni_hostport prerouting jump hostports
add rule ip cni_hostport hostip_hostports ip daddr 192.0.2.1 tcp dport 1 dnat to 10.244.1.9:1 comment "theirs"
add rule ip cni_hostport hostports tcp dport 2 dnat to 10.244.1.9:2 comment "theirs"
add rule ip cni_hostport hostports tcp dport 2 dnat to 10.244.1.8:2 comment "other"
add rule ip cni_hostport masquerading ip saddr 10.244.1.9 ip daddr 10.244.1.9 masquerade comment "theirs"
"#;

#[test]
fn removes_rules_of_the_reference_and_keeps_those_of_others() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    nft(site.node(), &["-f", "-"], BY_THE_REFERENCE);
    let network = site.network("bridge", &json!({}));
    let (a, b) = (
        site.pod("a", &mappings()),
        site.pod(
            "b",
            &json!([
                {"hostPort": 9090, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 2, "containerPort": 80, "protocol": "tcp"},
            ]),
        ),
    );
    site.add(&network, &a);
    site.add(&network, &b);
    // A port belongs to the last ADD, also before rules of others.
    let server = PodServer::new(path(&b), 80, 53);
    server.tcp(&site.outside, HOST, 2).unwrap();
    server.tcp(&site.outside, HOST, 9090).unwrap();
    let theirs = site.pod("theirs", &json!([]));
    site.runtime.del(&network, &theirs).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("theirs"), "{shown}");
    assert!(shown.contains("\"other\"") && shown.contains("\"a\"") && shown.contains("\"b\""));

    // GC keeps the valid ones, and those whose network is not known.
    let valid = [podplane_cni::ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    site.runtime.gc(&network, Some(&valid)).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("\"a\""), "{shown}");
    assert!(
        shown.contains("\"other\"") && shown.contains("\"b\""),
        "{shown}"
    );
    server.tcp(&site.outside, HOST, 9090).unwrap();
    site.runtime.gc(&network, Some(&[])).unwrap();
    let shown = site.ruleset();
    assert!(
        !shown.contains("\"b\"") && shown.contains("\"other\""),
        "{shown}"
    );
    let other = site.pod("other", &json!([]));
    site.runtime.del(&network, &other).unwrap();
    assert_eq!(site.ruleset(), "");
}

/// After a change from one side's plugins to the other's, in either direction, no earlier rule
/// stays, and a later pod gets the port.
#[test]
fn ours_and_debians_remove_each_others_mappings_for_the_next_pod() {
    if !require(&["root", "nftables", "iptables", "cni-plugins"]) {
        return;
    }
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (adds, deletes) in [(&ours, &debians), (&debians, &ours)] {
        let site = Site::new();
        let first = Runtime {
            bin_dirs: vec![adds.clone()],
            ..site.runtime.clone()
        };
        let second = Runtime {
            bin_dirs: vec![deletes.clone()],
            ..site.runtime.clone()
        };
        let mut network = site.network("bridge", &json!({"backend": null}));
        network.cni_version = "1.0.0".to_owned();
        network.plugins[0].insert("ipMasq".to_owned(), true.into());
        let (a, b) = (site.pod("a", &mapping(8080)), site.pod("b", &mapping(9090)));
        first.add(&network, &a).unwrap();
        first.add(&network, &b).unwrap();
        let of = |id: &str| {
            let saved = ["iptables", "ip6tables"];
            let saved = saved.map(|program| run_in(site.node(), program, &["-t", "nat", "-S"]));
            let lines = saved.iter().flat_map(|saved| saved.lines());
            let id = format!("id: \\\"{id}\\\"");
            lines.filter(|line| line.contains(&id)).count()
        };
        assert!(of("a") > 0 && of("b") > 0, "{}", site.ruleset());
        assert!(!site.ruleset().contains("table ip cni_hostport"));
        second.del(&network, &a).unwrap();
        assert_eq!(of("a"), 0, "{}", site.ruleset());
        assert!(!site.ruleset().contains("8080"), "{}", site.ruleset());
        assert!(of("b") > 0);
        // The port is free, and other mappings are as before.
        let next = site.pod("next", &mapping(8080));
        second.add(&network, &next).unwrap();
        let server = PodServer::new(path(&next), 80, 53);
        server.tcp(&site.outside, HOST, 8080).unwrap();
        let server = PodServer::new(path(&b), 80, 53);
        server.tcp(&site.outside, HOST, 9090).unwrap();
        second.del(&network, &b).unwrap();
        first.del(&network, &next).unwrap();
        let left = site.ruleset();
        for chain in ["CNI-DN-", "masquerade comment", "dnat"] {
            assert!(!left.contains(chain), "{left}");
        }
        assert_eq!(of("b") + of("next"), 0, "{left}");
    }
}

#[test]
fn uses_nftables_if_iptables_is_missing() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let site = Site::new();
    let a = site.world.netns("a");
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}]},
    });
    let add = |search: &str| {
        let mut command = Command::new(our_plugins().join("portmap"));
        let command = command
            .env_clear()
            .envs([
                ("PATH", search),
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "a"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/x"),
            ])
            .env("CNI_NETNS", &a);
        let run = || output_of(command, &config.to_string());
        let output = netns::in_netns(site.node(), run).unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        site.ruleset()
    };
    let shown = add("/does/not/exist");
    assert!(shown.contains("cni_hostport"), "{shown}");
    assert!(!shown.contains("CNI-DN-"), "{shown}");
    nft(site.node(), &["flush", "ruleset"], "");
    let shown = add("/usr/sbin:/usr/bin:/sbin:/bin");
    assert!(shown.contains("CNI-DN-"), "{shown}");
    assert!(!shown.contains("cni_hostport"), "{shown}");
}

#[test]
fn gc_takes_chains_of_iptables_without_a_valid_attachment() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let site = Site::new();
    let mut network = site.network("bridge", &json!({"backend": "iptables"}));
    network.plugins[0].insert("ipMasq".to_owned(), true.into());
    network.plugins[0].insert("ipMasqBackend".to_owned(), "iptables".into());
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    for (id, port) in [("a", 8080), ("b", 9090)] {
        site.runtime
            .add(&network, &site.pod(id, &mapping(port)))
            .unwrap();
    }
    let chains = || {
        let saved = ["iptables", "ip6tables"];
        let saved = saved.map(|program| run_in(site.node(), program, &["-t", "nat", "-S"]));
        let lines = saved.iter().flat_map(|saved| saved.lines());
        let made = lines.filter(|line| line.starts_with("-N CNI-"));
        made.filter(|line| !line.contains("CNI-HOSTPORT")).count()
    };
    // For each pod and family one chain of portmap, and one of bridge.
    assert_eq!(chains(), 8);
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    let mut other = network.clone();
    other.name = "ne".to_owned();
    site.runtime.gc(&other, Some(&[])).unwrap();
    assert_eq!(chains(), 8, "those of another network stay");
    let valid = [podplane_cni::ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    site.runtime.gc(&network, Some(&valid)).unwrap();
    assert_eq!(chains(), 4);
    site.runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(chains(), 0);
}

#[test]
fn removes_iptables_rules_of_debians() {
    if !require(&["root", "nftables", "cni-plugins"]) {
        return;
    }
    let site = Site::new();
    let bin = site.world.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for (plugin, dir) in [
        ("bridge", our_plugins()),
        ("host-local", our_plugins()),
        ("portmap", DEBIAN.into()),
    ] {
        std::os::unix::fs::symlink(dir.join(plugin), bin.join(plugin)).unwrap();
    }
    let debians = Runtime {
        bin_dirs: vec![bin],
        ..site.runtime.clone()
    };
    let mut network = site.network("bridge", &json!({}));
    network.cni_version = "1.0.0".to_owned();
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let (a, b) = (site.pod("a", &mapping(8080)), site.pod("b", &mapping(9090)));
    debians.add(&network, &a).unwrap();
    debians.add(&network, &b).unwrap();
    let chains = |shown: &str| shown.matches("chain CNI-DN-").count();
    let made = chains(&site.ruleset());
    assert!(made >= 2, "{}", site.ruleset());
    site.runtime.del(&network, &a).unwrap();
    let shown = site.ruleset();
    assert_eq!(chains(&shown), made / 2, "{shown}");
    assert!(!shown.contains("8080") && shown.contains("9090"), "{shown}");
    site.runtime.del(&network, &b).unwrap();
    assert_eq!(chains(&site.ruleset()), 0);
}

/// The table `nat` as the programs show it. The jumps to the containers' chains are sorted, since
/// the reference's present version and Debian's differ in their order.
fn saved(netns: &Path) -> Vec<String> {
    let of_family = |program| {
        let shown = run_in(netns, program, &["-t", "nat", "-S"]);
        let mut lines: Vec<_> = shown.lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| {
            let chain = line.split(' ').nth(1).unwrap_or_default().to_owned();
            let is_entrance = chain == "CNI-HOSTPORT-DNAT";
            (chain, is_entrance.then(|| line.clone()))
        });
        lines
    };
    ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(of_family)
        .collect()
}

fn portmap_alone(more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "backend": "iptables",
        "runtimeConfig": {"portMappings": mappings()},
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}, {"address": "fd00:1::2/64"}]},
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn ours_and_debians_make_equal_iptables_rules_and_remove_each_others() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let (ours, debians) = (
        our_plugins().join("portmap"),
        Path::new(DEBIAN).join("portmap"),
    );
    let many: Vec<_> = (0..40)
        .map(|n| json!({"hostPort": 1000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let cases = [
        json!({}),
        json!({"markMasqBit": 5}),
        json!({"markMasqBit": 31}),
        json!({"snat": false}),
        json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"backend": null, "externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"backend": null, "conditionsV4": ["!", "-s", CLIENT], "conditionsV6": ["-m", "comment", "--comment", "a \\ \"b\""]}),
        json!({"runtimeConfig": {"portMappings": many}}),
        json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}]}}),
    ];
    for (n, case) in cases.iter().enumerate() {
        let config = portmap_alone(case);
        let made = |plugin: &Path, by: &str| {
            let netns = world.netns(&format!("{by}{n}"));
            for program in ["iptables", "ip6tables"] {
                run_in(&netns, program, &["-t", "nat", "-N", "KUBE-MARK-MASQ"]);
            }
            let run = |command: &str, plugin: &Path, id: &str| {
                netns::in_netns(&netns, || call(plugin, command, id, "", &config)).unwrap()
            };
            let (code, stdout) = run("ADD", plugin, "other");
            assert_eq!(code, 0, "{case} {stdout}");
            let before = saved(&netns);
            let (code, stdout) = run("ADD", plugin, "a");
            assert_eq!(code, 0, "{case} {stdout}");
            let after = saved(&netns);
            assert_ne!(after, before);
            // Debian's looks for the rules of IPv4 among those of IPv6, too, and never passes.
            let (code, stdout) = run("CHECK", &ours, "a");
            assert_eq!(code, 0, "{case} {stdout}");
            // A second ADD, by ours, adds no rule.
            assert_eq!(run("ADD", &ours, "a").0, 0);
            assert_eq!(saved(&netns), after, "{case}");
            let other = if plugin == ours { &debians } else { &ours };
            assert_eq!(run("DEL", other, "a"), (0, String::new()), "{case}");
            assert_eq!(saved(&netns), before, "{case}");
            let (code, stdout) = run("CHECK", &ours, "a");
            assert!(
                code != 0 && stdout.contains("could not check ipv4 dnat: chain CNI-DN-"),
                "{stdout}"
            );
            after
        };
        assert_eq!(made(&ours, "ours"), made(&debians, "debians"), "{case}");
    }
}

#[test]
fn conditions_that_iptables_refuses_leave_nothing_and_check_reports_missing_rules() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let ours = our_plugins().join("portmap");
    let run = |command: &str, more: &Value| {
        let config = portmap_alone(more);
        netns::in_netns(&netns, || call(&ours, command, "a", "", &config)).unwrap()
    };
    let (code, stdout) = run("ADD", &json!({"conditionsV6": ["-s", "nonsense!"]}));
    assert!(
        code != 0 && stdout.contains("unable to setup DNAT"),
        "{stdout}"
    );
    let left = saved(&netns);
    assert!(
        !left.iter().any(|line| line.contains("CNI-DN-")),
        "{left:?}"
    );
    // Debian's does not know masqAll yet.
    let all = json!({"masqAll": true});
    assert_eq!(run("ADD", &all).0, 0);
    assert_eq!(run("CHECK", &all).0, 0);
    let marks = |line: &&String| line.ends_with("-j CNI-HOSTPORT-SETMARK");
    let is_of_one = |line: &String| line.contains(" -s ");
    let made = saved(&netns);
    assert_eq!(made.iter().filter(marks).count(), 9, "{made:?}");
    assert!(!made.iter().filter(marks).any(is_of_one), "{made:?}");
    assert_eq!(run("ADD", &json!({})).0, 0);
    assert_eq!(run("CHECK", &json!({})).0, 0);
    run_in(
        &netns,
        "ip6tables",
        &["-t", "nat", "-F", "CNI-HOSTPORT-DNAT"],
    );
    let (code, stdout) = run("CHECK", &json!({}));
    assert!(
        code != 0 && stdout.contains("could not check ipv6 dnat"),
        "{stdout}"
    );
    assert_eq!(run("DEL", &json!({})).0, 0);
    let left = saved(&netns);
    assert!(
        !left.iter().any(|line| line.contains("CNI-DN-")),
        "{left:?}"
    );
}

#[test]
fn removes_chains_of_legacy_iptables() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let ours = our_plugins().join("portmap");
    let config = portmap_alone(&json!({}));
    let (made, legacy) = (world.netns("made"), world.netns("legacy"));
    for id in ["a", "b"] {
        let answer = netns::in_netns(&made, || call(&ours, "ADD", id, "", &config));
        assert_eq!(answer.unwrap().0, 0);
    }
    let chains = || {
        let shown = ["iptables-legacy", "ip6tables-legacy"]
            .map(|program| run_in(&legacy, program, &["-t", "nat", "-S"]));
        shown.map(|shown| shown.matches("-N CNI-DN-").count())
    };
    // The same rules, made by the legacy programs.
    for (program, restore) in [
        ("iptables-save", "iptables-legacy-restore"),
        ("ip6tables-save", "ip6tables-legacy-restore"),
    ] {
        let rules = world.path(program);
        std::fs::write(&rules, run_in(&made, program, &["-t", "nat"])).unwrap();
        run_in(&legacy, restore, &[rules.to_str().unwrap()]);
    }
    assert_eq!(chains(), [2, 2]);
    for (id, left) in [("a", [1, 1]), ("b", [0, 0])] {
        let answer = netns::in_netns(&legacy, || call(&ours, "DEL", id, "", &config));
        assert_eq!(answer.unwrap(), (0, String::new()));
        assert_eq!(chains(), left);
    }
}
