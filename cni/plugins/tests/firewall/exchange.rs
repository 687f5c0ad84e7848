//! `firewall` beside Debian's: the same rules and answers, and each removes the other's rules.

use std::{fs, path::Path, thread};

use podplane_test_network::{NetnsFixture, call, require, without_json_words};
use serde_json::{Value, json};

use crate::{
    config, config_of_pod, debians, our_plugins, ours, own_rules, rules, run, run_in, succeed,
};

/// Debian's 1.1.1 has one comment for all rules of isolation.
fn with_debians_comments(rules: Vec<String>) -> Vec<String> {
    let rules = rules.into_iter();
    rules
        .map(|rule| rule.replace("same-bridge|isolated", "same-bridge"))
        .collect()
}

#[test]
fn ours_and_debians_make_equal_rules_and_remove_each_others() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let previous = |ips: Value| json!({"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "cni0"}], "ips": ips}});
    let cases = [
        json!({}),
        json!({"iptablesAdminChainName": "OPERATOR"}),
        json!({"ingressPolicy": "open"}),
        json!({"ingressPolicy": "same-bridge"}),
        previous(json!([])),
        previous(json!([{"address": "10.244.1.2/24"}])),
        previous(json!([{"address": "fd00:1::2/64"}])),
        previous(json!([{"address": "10.244.1.2/24"}, {"address": "10.244.9.2/16"}])),
        previous(json!([{"address": "fd00:1:0:0:0:0:0:0002/64"}, {"address": "::10.244.1.2/64"}])),
    ];
    for (n, case) in cases.iter().enumerate() {
        let config = config(case);
        let made = |adds: &Path, deletes: &Path, name: &str| {
            let netns = world.netns(&format!("{name}{n}"));
            succeed(&netns, adds, "ADD", &config_of_pod(9, "cni9", case));
            let before = rules(&netns);
            succeed(&netns, adds, "ADD", &config);
            let after = rules(&netns);
            for plugin in [adds, deletes] {
                // A second ADD by either program adds no rule.
                succeed(&netns, plugin, "CHECK", &config);
            }
            succeed(&netns, adds, "ADD", &config);
            assert_eq!(rules(&netns), after, "{case}");
            succeed(&netns, deletes, "DEL", &config);
            succeed(&netns, deletes, "DEL", &config);
            // The rules of the bridge stay.
            let left: Vec<_> = own_rules(&netns);
            let expected = before.iter().filter(|rule| rule.ends_with("-j ACCEPT"));
            assert!(left.iter().eq(expected), "{case}: {left:?}");
            succeed(&netns, deletes, "DEL", &config_of_pod(9, "cni9", case));
            assert_eq!(own_rules(&netns), [""; 0], "{case}");
            with_debians_comments(after)
        };
        let (ours, debians) = (ours(), debians());
        assert_eq!(
            made(&ours, &debians, "ours"),
            made(&debians, &ours, "debians"),
            "{case}"
        );
    }
}

/// Each of four pods is added by one side and deleted by one, in all combinations, on one node.
#[test]
fn ours_and_debians_work_on_one_node() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let (ours, debians) = (ours(), debians());
    for (first, second) in [(&ours, &debians), (&debians, &ours)] {
        let netns = world.netns(&format!("node-{}", first == &ours));
        let policy = json!({"ingressPolicy": "same-bridge"});
        let pods = [
            (first, first),
            (second, second),
            (first, second),
            (second, first),
        ];
        for (n, (adds, _)) in pods.iter().enumerate() {
            succeed(&netns, adds, "ADD", &config_of_pod(n + 2, "cni0", &policy));
        }
        let made = rules(&netns);
        assert_eq!(own_rules(&netns).len(), 16, "{made:?}");
        let jumps = |to: &str| {
            let jump = format!(" -j {to}");
            let jumps = made.iter().filter(|rule| rule.starts_with("-A FORWARD"));
            jumps.filter(|rule| rule.ends_with(&jump)).count()
        };
        assert_eq!(jumps("CNI-FORWARD"), 2);
        // Debian's does not recognise the comment of newer versions.
        let comments = if first == &ours { 2 } else { 1 };
        assert_eq!(jumps("CNI-ISOLATION-STAGE-1"), 2 * comments);
        for (n, (_, deletes)) in pods.iter().enumerate() {
            let config = config_of_pod(n + 2, "cni0", &policy);
            succeed(&netns, &ours, "CHECK", &config);
            succeed(&netns, deletes, "DEL", &config);
            assert_eq!(own_rules(&netns).len(), 12 - 4 * n, "{n}");
        }
    }
}

#[test]
fn answers_equal_those_of_debians() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let cases = [
        json!({}),
        json!({"prevResult": null}),
        json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2"}]}}),
        json!({"prevResult": {"cniVersion": "1.0.0"}}),
        json!({"prevResult": {"cniVersion": "1.0.0"}, "ingressPolicy": "same-bridge"}),
        json!({"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": ""}]}, "ingressPolicy": "same-bridge"}),
        json!({"ingressPolicy": "\"nobody\""}),
        json!({"backend": 5}),
        json!({"firewalldZone": ["trusted"]}),
        json!({"iptablesAdminChainName": {}}),
        json!({"ingressPolicy": false}),
        json!({"IngressPolicy": "open", "BACKEND": "iptables"}),
        json!({"cniVersion": "0.4.0", "prevResult": {
            "cniVersion": "0.4.0", "interfaces": [{"name": "cni0", "mac": "00:00:00:00:00:01"}],
            "ips": [{"version": "4", "address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}],
            "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.0.0.1"]},
        }}),
    ];
    let commands = ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"];
    for (n, case) in cases.iter().enumerate() {
        let config = config(case);
        let nodes = ["ours", "debians"].map(|name| world.netns(&format!("{name}{n}")));
        // The rules that Debian's ADD leaves after it refused a policy pass its CHECK.
        let is_refused = case["ingressPolicy"] == "\"nobody\"";
        for command in &commands[..3] {
            if is_refused && *command == "CHECK" {
                continue;
            }
            let answer = |netns: &Path, plugin: &Path| {
                let (code, mut value) = without_json_words(run(netns, plugin, command, &config));
                if value["dns"] == json!({}) {
                    value.as_object_mut().unwrap().remove("dns");
                }
                (code, value)
            };
            let [ours_at, debians_at] = &nodes;
            assert_eq!(
                answer(ours_at, &ours()),
                answer(debians_at, &debians()),
                "{command} {config}"
            );
        }
    }
    // The reference has no version without a result for DEL, which came with 0.4.0. Debian's does
    // not know 1.1.0 yet.
    for version in ["0.3.1", "0.3.0", "0.2.0", ""] {
        for command in commands {
            let config = config(&json!({"cniVersion": version}));
            let answer = |plugin: &Path| {
                let (code, stdout) = call(plugin, command, "a", "", &config);
                (code, stdout.replace(r#" \"1.1.0\""#, ""))
            };
            if ["ADD", "CHECK", "DEL"].contains(&command) {
                assert_eq!(answer(&ours()), answer(&debians()), "{command} {version:?}");
            }
        }
    }
    let (_, versions) = call(&ours(), "VERSION", "a", "", &config(&json!({})));
    assert_eq!(
        versions,
        "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
    );
    let newest = config(&json!({"cniVersion": "1.1.0"}));
    for command in ["GC", "STATUS"] {
        assert_eq!(
            run(&world.netns(command), &ours(), command, &newest),
            (0, String::new())
        );
    }
}

#[test]
fn check_reports_missing_rules_and_changes_nothing() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let config = config(&json!({"ingressPolicy": "isolated"}));
    let untouched = rules(&netns);
    let miss = |args: &[&str], missing: &str| {
        if !args.is_empty() {
            succeed(&netns, &ours(), "ADD", &config);
            succeed(&netns, &ours(), "CHECK", &config);
            run_in(&netns, "ip6tables", args);
        }
        let (code, stdout) = run(&netns, &ours(), "CHECK", &config);
        let error: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(
            (code, error["msg"].as_str()),
            (1, Some(missing)),
            "{args:?}"
        );
    };
    miss(
        &[],
        "expected FORWARD rule [-m comment --comment CNI firewall plugin rules -j CNI-FORWARD] not found",
    );
    assert_eq!(rules(&netns), untouched);
    miss(
        &["-F", "FORWARD"],
        "expected FORWARD rule [-m comment --comment CNI firewall plugin rules -j CNI-FORWARD] not found",
    );
    miss(
        &["-D", "CNI-FORWARD", "1"],
        "expected CNI-FORWARD rule [-m comment --comment CNI firewall plugin admin overrides -j CNI-ADMIN] not found",
    );
    miss(
        &["-D", "CNI-FORWARD", "-s", "fd00:1::2/128", "-j", "ACCEPT"],
        "expected rule [-s fd00:1::2/128 -j ACCEPT] not found",
    );
    miss(
        &["-D", "FORWARD", "1"],
        "expected FORWARD rule [-m comment --comment CNI firewall plugin rules (ingressPolicy: same-bridge|isolated) -j CNI-ISOLATION-STAGE-1] not found",
    );
    miss(
        &["-D", "CNI-ISOLATION-STAGE-1", "1"],
        "expected CNI-ISOLATION-STAGE-1 rule [-i cni0 -o cni0 -m comment --comment CNI firewall plugin rules (ingressPolicy: isolated) -j DROP] not found",
    );
    // Whatever was removed, an ADD restores all rules in their order.
    succeed(&netns, &ours(), "ADD", &config);
    let forward: Vec<_> = rules(&netns)
        .into_iter()
        .filter(|rule| rule.starts_with("-A FORWARD"))
        .collect();
    let is_first =
        |pair: &[String]| pair[0].ends_with("STAGE-1") && pair[1].ends_with("CNI-FORWARD");
    assert!(
        forward.len() == 4 && forward.chunks(2).all(is_first),
        "{forward:?}"
    );
}

/// Many containers at once, of one bridge or of several, each the first one of its network.
#[test]
fn concurrent_adds_make_shared_rules_once() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let policies = ["open", "same-bridge", "isolated"];
    let config = |n: usize| {
        let policy = json!({"ingressPolicy": policies[n % 3]});
        config_of_pod(n, &format!("cni{}", n % 3), &policy)
    };
    thread::scope(|scope| {
        for n in 2..26 {
            let (netns, config) = (&netns, &config);
            scope.spawn(move || {
                for command in ["ADD", "CHECK", "DEL", "ADD", "ADD", "CHECK"] {
                    succeed(netns, &ours(), command, &config(n));
                }
            });
        }
    });
    let made = rules(&netns);
    assert_eq!(own_rules(&netns).len(), 24 * 4, "{made:?}");
    let shared = made.iter().filter(|rule| !rule.ends_with("-j ACCEPT"));
    let mut shared: Vec<_> = shared.filter(|rule| rule.starts_with("-A")).collect();
    // For each family: two jumps, the operator's, three of the first stage and three of the second.
    assert_eq!(shared.len(), 2 * (2 + 1 + 4 + 3), "{shared:?}");
    shared.dedup();
    thread::scope(|scope| {
        for n in 2..26 {
            let (netns, config) = (&netns, &config);
            scope.spawn(move || succeed(netns, &ours(), "DEL", &config(n)));
        }
    });
    assert_eq!(own_rules(&netns), [""; 0]);
}

/// Our processes and Debian's run at the same time; each accepts the rules that the other has made.
#[test]
fn ours_and_debians_work_concurrently() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    thread::scope(|scope| {
        for n in 2..10 {
            let netns = &netns;
            scope.spawn(move || {
                let config = config_of_pod(n, "cni0", &json!({}));
                let plugin = if n % 2 == 0 { ours() } else { debians() };
                // Debian's fails if another process was faster, as it does beside itself.
                while run(netns, &plugin, "ADD", &config).0 != 0 {
                    assert!(n % 2 != 0, "ours fails");
                }
            });
        }
    });
    assert_eq!(own_rules(&netns).len(), 8 * 4, "{:?}", rules(&netns));
    for n in 2..10 {
        let plugin = if n % 2 == 0 { debians() } else { ours() };
        succeed(
            &netns,
            &plugin,
            "DEL",
            &config_of_pod(n, "cni0", &json!({})),
        );
    }
    assert_eq!(own_rules(&netns), [""; 0]);
}

#[test]
fn removes_rules_of_legacy_iptables() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let (made, legacy) = (world.netns("made"), world.netns("legacy"));
    let configs = [2, 3].map(|n| config_of_pod(n, "cni0", &json!({})));
    for config in &configs {
        succeed(&made, &ours(), "ADD", config);
    }
    for program in ["iptables", "ip6tables"] {
        let saved = world.path(program);
        let save = format!("{program}-save");
        fs::write(&saved, run_in(&made, &save, &["-t", "filter"])).unwrap();
        let restore = format!("{program}-legacy-restore");
        run_in(&legacy, &restore, &[saved.to_str().unwrap()]);
    }
    let left = || {
        let shown = ["iptables-legacy", "ip6tables-legacy"]
            .map(|program| run_in(&legacy, program, &["-S", "CNI-FORWARD"]));
        shown.map(|shown| shown.matches("-j ACCEPT").count())
    };
    assert_eq!(left(), [4, 4]);
    succeed(&legacy, &ours(), "DEL", &configs[0]);
    assert_eq!(left(), [2, 2]);
    succeed(&legacy, &ours(), "DEL", &configs[1]);
    assert_eq!(left(), [0, 0]);
}

#[test]
fn a_configuration_that_iptables_refuses_leaves_nothing() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let before = rules(&netns);
    for case in [
        json!({"iptablesAdminChainName": "-x"}),
        json!({"iptablesAdminChainName": "n".repeat(40)}),
        json!({"iptablesAdminChainName": "X\n-P FORWARD DROP"}),
        json!({"ingressPolicy": "everybody"}),
    ] {
        let config = config(&case);
        let (code, stdout) = run(&netns, &ours(), "ADD", &config);
        assert_eq!(code, 1, "{case} {stdout}");
        assert_eq!(rules(&netns), before, "{case}");
    }
    assert!(our_plugins().join("firewall").exists());
}
