//! `firewall`, killed with its `iptables` at its system calls: a DEL leaves no rule of the
//! container, shared rules stay intact, and the next ADD works.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use podplane_netlink::netns;
use podplane_test_network::{DEBIAN, NetnsFixture, our_plugins, require, run_in};
use serde_json::json;

use crate::side::{ObservedResult, PluginInput, PluginSide};

/// The step between the system calls at which the plugin is killed; `PODPLANE_SOAK=1` takes every
/// call.
const STRIDE: usize = 7;

#[test]
fn a_killed_firewall_leaves_nothing_after_del_and_can_be_added() {
    if !require(&["root", "strace", "iptables", "cni-plugins"]) {
        return;
    }
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let stride = if is_soak { 1 } else { STRIDE };
    for is_first in [true, false] {
        let mut node = FirewallNode::new();
        if !is_first {
            assert_eq!(node.run(&node.ours, "ADD", 3).code, Some(0));
        }
        for command in ["ADD", "DEL"] {
            let calls = node.system_calls(command);
            let mut kills = 0;
            for (n, (name, nth)) in calls.iter().enumerate().step_by(stride) {
                if is_first {
                    node.renew();
                }
                let inject = format!("inject={name}:signal=SIGKILL:when={nth}");
                let seen = node.traced(command, &["-o", "/dev/null", "-e", &inject]);
                kills += usize::from(seen.code != Some(0));
                let place = format!("{command} killed at {name} {nth}");
                let deletes = [&node.ours, &node.debians][n / stride % 2];
                node.assert_mended(deletes, is_first, &place);
            }
            println!(
                "firewall, {command}: killed at {kills} of {} system calls",
                calls.len()
            );
            assert!(kills > 5, "too few kills");
        }
    }
}

struct FirewallNode {
    world: NetnsFixture,
    side: PluginSide,
    netns: PathBuf,
    times: usize,
    ours: PathBuf,
    debians: PathBuf,
}

impl FirewallNode {
    fn new() -> Self {
        let world = NetnsFixture::new();
        Self {
            side: PluginSide::new(world.dir.path(), "files"),
            netns: world.netns("node"),
            world,
            times: 0,
            ours: our_plugins().join("firewall"),
            debians: Path::new(DEBIAN).join("firewall"),
        }
    }

    /// Makes another namespace, which has no chains yet.
    fn renew(&mut self) {
        netns::remove(&self.netns).unwrap();
        self.times += 1;
        self.netns = self.world.netns(&format!("node{}", self.times));
    }

    fn run(&self, plugin: &Path, command: &str, pod: u8) -> ObservedResult {
        self.run_by(&mut Command::new(plugin), command, pod)
    }

    fn run_by(&self, program: &mut Command, command: &str, pod: u8) -> ObservedResult {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge",
            "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "cni0"}], "ips": [
                {"address": format!("10.1.2.{pod}/24")}, {"address": format!("fd00::{pod:x}/64")},
            ]},
        });
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "victim"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/does/not/exist"),
            ("CNI_PATH", "/x"),
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ];
        let call = PluginInput {
            env: env.map(|(key, value)| (key, value.to_owned())).into(),
            config: config.to_string(),
        };
        netns::in_netns(&self.netns, || self.side.run_by(program, &call)).unwrap()
    }

    /// Runs the call under strace, which ends after `iptables` has ended.
    fn traced(&self, command: &str, options: &[&str]) -> ObservedResult {
        if command == "DEL" {
            let seen = self.run(&self.ours, "ADD", 2);
            assert_eq!(seen.code, Some(0), "{}", seen.stdout);
        }
        let mut strace = Command::new("/usr/bin/strace");
        strace.args(["-f", "-qq"]).args(options).arg(&self.ours);
        self.run_by(&mut strace, command, 2)
    }

    /// The system calls that change something or wait: the name, and the ordinal of the call among
    /// those of that name in its process.
    fn system_calls(&self, command: &str) -> Vec<(String, usize)> {
        let log = self.world.path("strace");
        let names = "clone,clone3,vfork,fork,execve,wait4,waitid,flock,sendto,sendmsg,recvmsg,write,close,exit_group";
        let trace = format!("trace=?{}", names.replace(',', ",?"));
        self.traced(command, &["-e", &trace, "-o", log.to_str().unwrap()]);
        let log = fs::read_to_string(log).unwrap();
        crate::bridge::calls_in(&log)
    }

    fn assert_mended(&self, deletes: &Path, is_first: bool, place: &str) {
        let others = if is_first { 0 } else { 4 };
        for _ in 0..2 {
            let seen = self.run(deletes, "DEL", 2);
            assert_eq!(seen.code, Some(0), "{place}: {}", seen.stdout);
        }
        assert_eq!(self.accepting(), others, "{place}");
        for command in ["ADD", "CHECK"] {
            let seen = self.run(&self.ours, command, 2);
            assert_eq!(seen.code, Some(0), "{place}: {command} {}", seen.stdout);
        }
        assert_eq!(self.accepting(), others + 4, "{place}");
        let shown = ["iptables", "ip6tables"].map(|program| run_in(&self.netns, program, &["-S"]));
        for shown in shown {
            let shared = shown
                .lines()
                .filter(|line| line.starts_with("-A") && !line.ends_with("-j ACCEPT"));
            assert_eq!(shared.count(), 7, "{place}: {shown}");
        }
        let seen = self.run(&self.ours, "DEL", 2);
        assert_eq!((seen.code, seen.stdout.as_str()), (Some(0), ""), "{place}");
        assert_eq!(self.accepting(), others, "{place}");
    }

    /// The number of rules that accept.
    fn accepting(&self) -> usize {
        let shown = ["iptables", "ip6tables"].map(|program| run_in(&self.netns, program, &["-S"]));
        shown
            .iter()
            .map(|shown| shown.matches(" -j ACCEPT").count())
            .sum()
    }
}
