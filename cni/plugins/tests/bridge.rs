//! The program `bridge`, and other people's plugins, in namespaces of the test's own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podplane_cni::{Attachment, Runtime};
use podplane_netlink::{Bridge, Netlink, Request, netns, sysctl};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, require, run_in, wait_for,
    wait_for_end,
};
use serde_json::{Value, json};
use support::network::{config, dual, ip, leases, links, node, v4};

/// Waits until duplicate address detection of an IPv6 address is over: the reference enables it.
fn wait_until_usable(netns: &Path, link: &str, address: std::net::IpAddr) {
    let mut netlink = Netlink::open_in(netns).unwrap();
    let index = netlink.link(link).unwrap().unwrap().index;
    wait_for(&format!("{address} is still tentative"), || {
        let addresses = netlink.addresses(index).unwrap();
        addresses
            .iter()
            .any(|found| found.net.addr() == address && !found.is_tentative)
    });
}

/// Two pods on a node reach each other and the gateway, and nothing is left of them.
fn two_pods(bin_dirs: &[&Path], version: &str, ipam: &Value, has_check: bool) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(bin_dirs);
    let network = list(&config(&world, version, &json!({}), ipam));
    let (a, b) = (world.netns("a"), world.netns("b"));
    let (pod_a, pod_b) = (attachment("a", &a), attachment("b", &b));
    let before = Netlink::open().unwrap().links().unwrap();
    let result_a = runtime.add(&network, &pod_a).unwrap();
    let result_b = runtime.add(&network, &pod_b).unwrap();
    assert_eq!(result_a.interfaces.len(), 3);
    assert_eq!(result_a.interfaces[0].name, "cni0");
    assert_eq!(Path::new(&result_a.interfaces[2].sandbox), a);
    for n in 0..result_b.ips.len() {
        assert_eq!(result_a.ips[n].interface, Some(2));
        exchange(&a, &b, ip(&result_b, n));
        let gateway = result_a.ips[n].gateway.unwrap();
        wait_until_usable(node(&runtime), "cni0", gateway);
        exchange(&a, node(&runtime), gateway);
        exchange(node(&runtime), &a, ip(&result_a, n));
    }
    for ip in &result_a.ips {
        let is_v4 = ip.address.addr().is_ipv4();
        let key = if is_v4 {
            "net/ipv4/ip_forward"
        } else {
            "net/ipv6/conf/all/forwarding"
        };
        assert_eq!(sysctl::read_in(node(&runtime), key).unwrap(), "1");
    }
    if has_check {
        runtime.check(&network, &pod_a).unwrap();
    }
    runtime.del(&network, &pod_a).unwrap();
    runtime.del(&network, &pod_a).unwrap();
    netns::remove(&b).unwrap();
    runtime.del(&network, &pod_b).unwrap();
    assert_eq!(leases(&world), 0);
    assert_eq!(runtime.cached().unwrap(), []);
    assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
    assert_eq!(
        Netlink::open().unwrap().links().unwrap().len(),
        before.len(),
        "the host has the links it had"
    );
}

#[test]
fn our_bridge_runs_our_host_local() {
    if !require(&["root"]) {
        return;
    }
    let ours = our_plugins();
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        two_pods(&[&ours], version, &v4(), version >= "0.4.0");
    }
    two_pods(&[&ours], "1.0.0", &dual(), true);
    two_pods(
        &[&ours],
        "1.0.0",
        &json!({"ranges": [[{"subnet": "fd00:1::/64"}]], "routes": [{"dst": "::/0"}]}),
        true,
    );
}

#[test]
fn our_runtime_runs_debians_bridge_and_host_local() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    two_pods(&[Path::new(DEBIAN)], "1.0.0", &v4(), true);
    two_pods(&[Path::new(DEBIAN)], "0.4.0", &dual(), true);
}

/// A directory with the bridge of one plugin directory and the host-local of another.
fn mixed(world: &NetnsFixture, bridge: &Path, host_local: &Path) -> PathBuf {
    let dir = world.path("bin");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(bridge.join("bridge"), dir.join("bridge")).unwrap();
    std::os::unix::fs::symlink(host_local.join("host-local"), dir.join("host-local")).unwrap();
    dir
}

#[test]
fn our_bridge_and_host_local_work_with_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (bridge, host_local) in [(&debians, &ours), (&ours, &debians)] {
        let world = NetnsFixture::new();
        let dir = mixed(&world, bridge, host_local);
        two_pods(&[&dir], "1.0.0", &dual(), true);
    }
}

#[test]
fn the_kubenet_configuration_of_story_a_attaches_pods_until_exhausted() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(
        &json!({"cniVersion": "0.1.0", "name": "kubenet", "plugins": [{
            "type": "bridge", "bridge": "cbr0", "mtu": 1500, "addIf": "eth0", "isGateway": true, "ipMasq": false,
            "hairpinMode": false,
            "ipam": {
                "type": "host-local", "subnet": "10.255.0.0/30", "gateway": "10.255.0.1",
                "dataDir": world.path("networks"), "routes": [{"dst": "0.0.0.0/0"}],
            },
        }]}),
    );
    let first = runtime
        .add(&network, &attachment("a", &world.netns("a")))
        .unwrap();
    assert_eq!(first.ips[0].address.to_string(), "10.255.0.2/30");
    let b = world.netns("b");
    let full = runtime
        .add(&network, &attachment("b", &b))
        .unwrap_err()
        .message();
    assert_eq!(
        full,
        "plugin type=\"bridge\" failed (add): failed to allocate for range 0: no IP addresses available in range set: 10.255.0.1-10.255.0.2"
    );
    assert_eq!(
        links(&runtime).len(),
        2,
        "cbr0 and one veth: a full range makes no device"
    );
    assert_eq!(Netlink::open_in(&b).unwrap().link("eth0").unwrap(), None);
}

#[test]
fn a_bridge_with_another_address_is_refused_with_the_text_of_the_reference() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let debians = PathBuf::from(DEBIAN);
    let refused = |bin_dir: &Path| {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[bin_dir]);
        let mut netlink = Netlink::open_in(node(&runtime)).unwrap();
        netlink
            .execute([Request::create_bridge(&Bridge {
                name: "cni0",
                ..Bridge::default()
            })])
            .unwrap();
        let index = netlink.link("cni0").unwrap().unwrap().index;
        netlink
            .execute([
                Request::add_address(index, "10.9.9.1/24".parse().unwrap()),
                Request::up(index),
            ])
            .unwrap();
        let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
        let pod = attachment("a", &world.netns("a"));
        let message = runtime.add(&network, &pod).unwrap_err().message();
        let left = (leases(&world), links(&runtime));
        if bin_dir == debians {
            // Debian's sets a hardware address of zeros on a bridge that has lost its last port.
            return (message, left);
        }
        let forced = list(&config(
            &world,
            "1.0.0",
            &json!({"forceAddress": true}),
            &v4(),
        ));
        runtime.add(&forced, &pod).unwrap();
        let addresses = netlink.addresses(index).unwrap();
        assert!(
            !addresses
                .iter()
                .any(|address| address.net.to_string() == "10.9.9.1/24")
        );
        (message, left)
    };
    let (ours, left) = refused(&our_plugins());
    assert_eq!(
        ours,
        "plugin type=\"bridge\" failed (add): failed to set bridge addr: \"cni0\" already has an IP address different from 10.244.1.1/24"
    );
    assert_eq!(
        left,
        (0, vec!["cni0".to_owned()]),
        "neither an address nor a veth is left"
    );
    assert_eq!(refused(&debians).0, ours);
}

#[test]
fn a_link_of_another_kind_is_refused_with_the_text_of_the_reference() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let refused = |bin_dir: &Path| {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[bin_dir]);
        let network = list(&config(&world, "1.0.0", &json!({"bridge": "lo"}), &v4()));
        let message = runtime
            .add(&network, &attachment("a", &world.netns("a")))
            .unwrap_err()
            .message();
        (message, leases(&world))
    };
    assert_eq!(refused(&our_plugins()), refused(Path::new(DEBIAN)));
}

#[test]
fn bridge_options_take_effect_or_are_refused() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let mut n = 0;
    let mut add = |bridge: Value, args: &[(&str, &str)]| {
        n += 1;
        let path = world.netns(&format!("pod{n}"));
        let mut pod = Attachment::new(format!("pod{n}"), Some(path.clone()), "eth0");
        pod.args = args
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        let added = runtime.add(&list(&config(&world, "1.1.0", &bridge, &v4())), &pod);
        (added, path)
    };
    let unknown = json!({"ipMasq": true, "ipMasqBackend": "x"});
    let error = add(unknown, &[]).0.unwrap_err();
    assert_eq!(
        error.cni_error().unwrap().msg,
        "unknown ipmasq backend \"x\""
    );
    let error = add(json!({"hairpinMode": true, "promiscMode": true}), &[])
        .0
        .unwrap_err();
    assert_eq!(
        error.cni_error().unwrap().msg,
        "cannot set hairpin mode and promiscuous mode at the same time"
    );
    assert_eq!(links(&runtime), Vec::<String>::new());

    let (added, path) = add(
        json!({"mtu": 1400, "hairpinMode": true, "portIsolation": true, "isDefaultGateway": true, "dns": {"nameservers": ["1.1.1.1"]}}),
        &[
            ("MAC", "0a:58:0a:f4:01:63"),
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAME", "x"),
        ],
    );
    let result = added.unwrap();
    assert_eq!(result.interfaces[2].mac, "0a:58:0a:f4:01:63");
    assert_eq!(result.dns.nameservers, ["1.1.1.1"]);
    assert_eq!(
        result.routes.len(),
        2,
        "IPAM's default route has no gateway, so one is added"
    );
    let link = Netlink::open_in(&path)
        .unwrap()
        .link("eth0")
        .unwrap()
        .unwrap();
    assert_eq!(
        (link.mtu, link.mac_text().as_str()),
        (1400, "0a:58:0a:f4:01:63")
    );
    let port = result.interfaces[1].name.as_str();
    let port = Netlink::open_in(node(&runtime))
        .unwrap()
        .link(port)
        .unwrap()
        .unwrap();
    assert!(port.is_hairpin && port.is_isolated);

    let (added, _) = add(json!({"promiscMode": true}), &[]);
    added.unwrap();
    let bridge = Netlink::open_in(node(&runtime))
        .unwrap()
        .link("cni0")
        .unwrap()
        .unwrap();
    assert!(bridge.is_promiscuous);
}

#[test]
fn a_repeated_add_fails_and_keeps_the_first_attachment() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
    let a = world.netns("a");
    let pod = attachment("a", &a);
    let result = runtime.add(&network, &pod).unwrap();
    let message = runtime.add(&network, &pod).unwrap_err().message();
    assert!(message.contains("already exists"), "{message}");
    assert_eq!((leases(&world), links(&runtime).len()), (1, 2));
    exchange(node(&runtime), &a, ip(&result, 0));
    runtime.check(&network, &pod).unwrap();

    let inside = &mut Netlink::open_in(&a).unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap().index;
    inside
        .execute([Request::delete_address(eth0, result.ips[0].address)])
        .unwrap();
    let message = runtime.check(&network, &pod).unwrap_err().message();
    assert_eq!(
        message,
        "plugin type=\"bridge\" failed (check): Failed to match addr 10.244.1.2/24 on interface eth0"
    );
}

#[test]
fn a_late_failure_of_add_removes_the_veth() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    // A route through a gateway that no address reaches.
    let ipam = json!({"ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.9.0.0/16", "gw": "172.30.0.1"}]});
    let network = list(&config(&world, "1.0.0", &json!({}), &ipam));
    let a = world.netns("a");
    let message = runtime
        .add(&network, &attachment("a", &a))
        .unwrap_err()
        .message();
    assert!(
        message.contains("failed to add route 10.9.0.0/16 via 172.30.0.1"),
        "{message}"
    );
    assert_eq!(
        (leases(&world), links(&runtime)),
        (0, vec!["cni0".to_owned()])
    );
    assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
}

#[test]
fn loopback_sets_lo_up_like_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let answers: Vec<_> = [our_plugins(), PathBuf::from(DEBIAN)]
        .iter()
        .map(|bin_dir| {
            let world = NetnsFixture::new();
            let runtime = world.runtime(&[bin_dir]);
            let network = list(
                &json!({"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}),
            );
            let pod = Attachment::new("a", Some(world.netns("a")), "lo");
            let mut result = runtime.add(&network, &pod).unwrap();
            result.interfaces[0].sandbox.clear();
            runtime.check(&network, &pod).unwrap();
            let lo = || {
                Netlink::open_in(pod.netns.as_deref().unwrap())
                    .unwrap()
                    .link("lo")
                    .unwrap()
                    .unwrap()
            };
            assert!(lo().is_up);
            runtime.del(&network, &pod).unwrap();
            assert!(!lo().is_up);
            result
        })
        .collect();
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn gc_and_status_reach_the_ipam_plugin() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let small = json!({"ranges": [[{"subnet": "10.244.1.0/30"}]]});
    let network = list(&config(&world, "1.1.0", &json!({}), &small));
    runtime.status(&network).unwrap();
    runtime
        .add(&network, &attachment("a", &world.netns("a")))
        .unwrap();
    let error = runtime.status(&network).unwrap_err();
    assert_eq!(error.cni_error().unwrap().code, 50);
    // A lease without a record, as after the loss of the cache.
    std::fs::remove_dir_all(world.path("cache")).unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(leases(&world), 0);
    runtime.status(&network).unwrap();
}

/// A fake IPAM plugin that records its process id and hangs in ADD.
fn hanging_ipam(world: &NetnsFixture) -> PathBuf {
    let dir = world.path("bin");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(our_plugins().join("bridge"), dir.join("bridge")).unwrap();
    let script =
        "#!/bin/sh\nif [ $CNI_COMMAND = ADD ]; then echo $$ > $0.pid; exec sleep 600; fi\n";
    std::fs::write(dir.join("host-local"), script).unwrap();
    std::fs::set_permissions(
        dir.join("host-local"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    dir
}

#[test]
fn a_hanging_ipam_plugin_is_killed_with_the_bridge_that_waits_for_it() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let dir = hanging_ipam(&world);
    let runtime = Runtime {
        timeout: Duration::from_millis(700),
        ..world.runtime(&[&dir])
    };
    let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
    let message = runtime
        .add(&network, &attachment("a", &world.netns("a")))
        .unwrap_err()
        .message();
    assert!(
        message.contains("bridge did not finish within 700ms and was killed"),
        "{message}"
    );
    let pid = std::fs::read_to_string(dir.join("host-local.pid")).unwrap();
    wait_for_end(&pid);
    // The pair that was made meanwhile has gone with the DEL.
    assert_eq!(links(&runtime), ["cni0"]);
}

#[test]
fn pods_added_and_deleted_concurrently_leave_nothing() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config(&world, "1.0.0", &json!({}), &dual()));
    let pods: Vec<_> = (0..24)
        .map(|n| attachment(&format!("p{n}"), &world.netns(&format!("p{n}"))))
        .collect();
    let each =
        |f: &(dyn Fn(&Attachment) -> Option<std::net::IpAddr> + Sync)| -> Vec<std::net::IpAddr> {
            std::thread::scope(|scope| {
                let workers: Vec<_> = pods
                    .chunks(3)
                    .map(|pods| scope.spawn(move || pods.iter().filter_map(f).collect::<Vec<_>>()))
                    .collect();
                workers
                    .into_iter()
                    .flat_map(|worker| worker.join().unwrap())
                    .collect()
            })
        };
    let mut addresses = each(&|pod| Some(ip(&runtime.add(&network, pod).unwrap(), 0)));
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 24);
    exchange(
        pods[0].netns.as_deref().unwrap(),
        node(&runtime),
        "10.244.1.1".parse().unwrap(),
    );
    each(&|pod| {
        runtime.del(&network, pod).unwrap();
        None
    });
    assert_eq!(
        (leases(&world), links(&runtime)),
        (0, vec!["cni0".to_owned()])
    );
}

#[test]
fn del_cleans_up_after_a_killed_bridge() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
    let a = world.netns("a");
    let pod = attachment("a", &a);
    let mut killed = 0;
    for round in 0..40 {
        // The runtime kills the plugin and its children, wherever they are by then.
        let hasty = Runtime {
            timeout: Duration::from_micros(250 * round),
            ..runtime.clone()
        };
        killed += u32::from(hasty.add(&network, &pod).is_err());
        runtime.del(&network, &pod).unwrap();
        assert_eq!(leases(&world), 0, "round {round}");
        assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
        assert!(
            links(&runtime).iter().all(|name| name == "cni0"),
            "{:?}",
            links(&runtime)
        );
    }
    assert!(killed > 0);
}

/// The error of CHECK after `harm`, with the bridge of a plugin directory.
fn check_after(bin_dir: &Path, harm: &[&[&str]], inside: bool) -> String {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[bin_dir]);
    let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
    let a = world.netns("a");
    let result = runtime.add(&network, &attachment("a", &a)).unwrap();
    runtime.check(&network, &attachment("a", &a)).unwrap();
    let port = result.interfaces[1].name.as_str();
    let netns = if inside { a.as_path() } else { node(&runtime) };
    for args in harm {
        let args: Vec<_> = args.iter().map(|arg| arg.replace("PORT", port)).collect();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        run_in(netns, "ip", &args);
    }
    let said = runtime.check(&network, &attachment("a", &a)).unwrap_err();
    said.message().replace(port, "PORT")
}

#[test]
fn check_reports_faults_with_the_texts_of_the_reference() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let harms: [(&[&[&str]], bool); 5] = [
        (&[&["addr", "del", "10.244.1.2/24", "dev", "eth0"]], true),
        (&[&["link", "del", "eth0"]], true),
        (&[&["link", "set", "PORT", "nomaster"]], false),
        (&[&["link", "del", "cni0"]], false),
        (
            &[
                &["link", "del", "cni0"],
                &["link", "add", "cni0", "type", "veth", "peer", "name", "x"],
            ],
            false,
        ),
    ];
    for (harm, inside) in harms {
        let ours = check_after(&our_plugins(), harm, inside);
        assert_eq!(
            ours,
            check_after(Path::new(DEBIAN), harm, inside),
            "{harm:?}"
        );
    }
}

/// DEL leaves the release of the links to the kernel, but its pipes are closed: a runtime reads a
/// plugin's output to its end.
#[test]
fn del_answers_before_the_kernel_releases_the_links() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config(&world, "1.0.0", &json!({}), &v4()));
    let a = world.netns("a");
    for _ in 0..20 {
        let result = runtime.add(&network, &attachment("a", &a)).unwrap();
        let port = result.interfaces[1].name.as_str();
        runtime.del(&network, &attachment("a", &a)).unwrap();
        // Both ends are gone at once.
        let mut host = Netlink::open_in(node(&runtime)).unwrap();
        assert_eq!(host.link(port).unwrap(), None);
        assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
        assert_eq!(leases(&world), 0);
    }
}

/// Runs DEL in a container whose process 1 collects no children, and unmounts the namespace at
/// once, as a runtime may.
#[test]
fn del_leaves_no_process_or_open_file_behind() {
    const SCRIPT: &str = r#"
        set -e
        "$PLUGIN" < "$CONFIG"
        umount "$CNI_NETNS"
        cat /proc/[0-9]*/stat
    "#;
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let bin_dir = our_plugins();
    let runtime = world.runtime(&[&bin_dir]);
    let network = config(&world, "1.0.0", &json!({}), &v4());
    let mut plugin = network["plugins"][0].clone();
    (plugin["name"], plugin["cniVersion"]) = ("net".into(), "1.0.0".into());
    fs::write(world.path("config"), plugin.to_string()).unwrap();
    for _ in 0..5 {
        let a = world.netns("a");
        let added = runtime.add(&list(&network), &attachment("a", &a));
        added.unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", "sh", "-c", SCRIPT])
            .env("PLUGIN", bin_dir.join("bridge"))
            .env("CONFIG", world.path("config"))
            .envs([
                ("CNI_COMMAND", "DEL"),
                ("CNI_CONTAINERID", "a"),
                ("CNI_IFNAME", "eth0"),
            ])
            .env("CNI_PATH", &bin_dir)
            .env("CNI_NETNS", &a);
        let output = netns::in_netns(node(&runtime), || command.output());
        let output = output.unwrap().unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{stdout}{stderr}");
        let others: Vec<_> = stdout
            .lines()
            .filter(|line| !line.contains("(sh)") && !line.contains("(cat)"))
            .collect();
        assert_eq!(others, Vec::<&str>::new());
        netns::remove(&a).unwrap();
    }
}

/// With another address, the gateway's neighbours would send frames to an address that nobody has
/// any more.
#[test]
fn a_bridge_keeps_its_hardware_address() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    for bin_dir in [our_plugins(), DEBIAN.into()] {
        for is_there in [true, false] {
            let world = NetnsFixture::new();
            let runtime = world.runtime(&[&bin_dir]);
            let network = list(&config(&world, "1.0.0", &json!({"isGateway": true}), &v4()));
            let mac = || {
                let mut host = Netlink::open_in(node(&runtime)).unwrap();
                host.link("cni0").unwrap().map(|link| link.mac_text())
            };
            if is_there {
                run_in(
                    node(&runtime),
                    "ip",
                    &["link", "add", "cni0", "type", "bridge"],
                );
            }
            let before = mac();
            let pods = ["a", "b", "c"].map(|id| attachment(id, &world.netns(id)));
            let results = pods
                .each_ref()
                .map(|pod| runtime.add(&network, pod).unwrap());
            let first = Some(results[0].interfaces[0].mac.clone());
            for pod in &pods {
                assert_eq!(mac(), first, "{bin_dir:?}");
                runtime.del(&network, pod).unwrap();
            }
            assert_eq!(mac(), first, "{bin_dir:?}");
            assert!(
                !is_there || before == first,
                "{bin_dir:?}: {before:?} became {first:?}"
            );
        }
    }
}
