//! `bridge` with `host-local`, killed at its system calls: a DEL leaves no link, no rule and no
//! lease.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use podplane_netlink::{Netlink, netns};
use podplane_test_network::{NetnsFixture, our_plugins, require};
use serde_json::json;

use crate::{
    leases,
    side::{DATA_DIR, ObservedResult, PluginInput, PluginSide},
};

/// The step between the system calls at which a plugin is killed; `PODPLANE_SOAK=1` takes every
/// call.
const STRIDE: usize = 9;

#[test]
fn a_killed_bridge_leaves_nothing_after_del() {
    if !require(&["root", "strace", "nftables"]) {
        return;
    }
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let stride = if is_soak { 1 } else { STRIDE };
    let node = BridgeNode::new();
    for command in ["ADD", "DEL"] {
        let calls = node.system_calls(command);
        let mut kills = 0;
        for (name, nth) in calls.iter().step_by(stride) {
            let inject = format!("inject={name}:signal=SIGKILL:when={nth}");
            let seen = node.traced(command, &["-o", "/dev/null", "-e", &inject]);
            kills += usize::from(seen.code != Some(0));
            node.assert_clean_after_del(&format!("{command} killed at {name} {nth}"));
        }
        println!(
            "bridge, {command}: killed at {kills} of {} system calls",
            calls.len()
        );
        assert!(kills > 10, "too few kills");
    }
}

struct BridgeNode {
    world: NetnsFixture,
    side: PluginSide,
    netns: PathBuf,
    pod: PathBuf,
    bridge: PathBuf,
    /// The links of the node without a pod.
    links: Vec<String>,
}

impl BridgeNode {
    fn new() -> Self {
        let world = NetnsFixture::new();
        let (netns, pod) = (world.netns("node"), world.netns("pod"));
        let mut node = Self {
            side: PluginSide::new(world.dir.path(), "files"),
            bridge: our_plugins().join("bridge"),
            world,
            netns,
            pod,
            links: Vec::new(),
        };
        // The bridge itself stays.
        assert_eq!(node.run("ADD").code, Some(0));
        assert_eq!(node.run("DEL").code, Some(0));
        node.links = links(&node.netns);
        node
    }

    fn call(&self, command: &str) -> PluginInput {
        let ipam = json!({"type": "host-local", "dataDir": DATA_DIR, "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]});
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0",
            "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "ipam": ipam,
        });
        let plugins = our_plugins();
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "victim"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", self.pod.to_str().unwrap()),
            ("CNI_PATH", plugins.to_str().unwrap()),
        ];
        PluginInput {
            env: env.map(|(key, value)| (key, value.to_owned())).into(),
            config: config.to_string(),
        }
    }

    fn run(&self, command: &str) -> ObservedResult {
        self.run_by(&mut Command::new(&self.bridge), command)
    }

    fn run_by(&self, program: &mut Command, command: &str) -> ObservedResult {
        let call = self.call(command);
        netns::in_netns(&self.netns, || self.side.run_by(program, &call)).unwrap()
    }

    /// Runs the call under strace, which ends after the IPAM plugin has ended.
    fn traced(&self, command: &str, options: &[&str]) -> ObservedResult {
        if command == "DEL" {
            let seen = self.run("ADD");
            assert_eq!(seen.code, Some(0), "{}", seen.stdout);
        }
        let mut strace = Command::new("/usr/bin/strace");
        strace.args(["-f", "-qq"]).args(options).arg(&self.bridge);
        self.run_by(&mut strace, command)
    }

    /// The system calls of both plugins: the name, and the ordinal of the call among those of that
    /// name in its process.
    fn system_calls(&self, command: &str) -> Vec<(String, usize)> {
        let log = self.world.path("strace");
        self.traced(command, &["-o", log.to_str().unwrap()]);
        self.assert_clean_after_del(command);
        calls_in(&fs::read_to_string(log).unwrap())
    }

    fn assert_clean_after_del(&self, place: &str) {
        let seen = self.run("DEL");
        assert_eq!(seen.code, Some(0), "{place}: {}", seen.stdout);
        assert_eq!(leases(&seen.tree), BTreeMap::new(), "{place}");
        assert_eq!(links(&self.netns), self.links, "{place}");
        assert!(!links(&self.pod).contains(&"eth0".to_owned()), "{place}");
        let mut nft = Command::new("/usr/sbin/nft");
        nft.args(["list", "ruleset"]);
        let rules = netns::in_netns(&self.netns, || nft.output())
            .unwrap()
            .unwrap();
        assert!(rules.status.success());
        let rules = String::from_utf8(rules.stdout).unwrap();
        assert!(!rules.contains("victim"), "{place}: {rules}");
    }
}

/// The system calls in a log of strace: the name, and the ordinal of the call among those of that
/// name in its process.
pub(crate) fn calls_in(log: &str) -> Vec<(String, usize)> {
    let mut times = BTreeMap::<(&str, &str), usize>::new();
    let mut calls: Vec<(String, usize)> = Vec::new();
    for line in log.lines() {
        let Some((process, (name, _))) = line
            .split_once(' ')
            .and_then(|(process, rest)| Some((process, rest.trim().split_once('(')?)))
        else {
            continue;
        };
        if name.contains(' ') {
            continue; // The rest of a call that was interrupted.
        }
        let nth = times.entry((process, name)).or_default();
        *nth += 1;
        let call = (name.to_owned(), *nth);
        if !calls.contains(&call) {
            calls.push(call);
        }
    }
    calls
}

fn links(netns: &Path) -> Vec<String> {
    let links = Netlink::open_in(netns).unwrap().links().unwrap();
    links.into_iter().map(|link| link.name).collect()
}
