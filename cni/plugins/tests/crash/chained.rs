//! `tuning` and `bandwidth`, killed at many system calls of ADD and DEL: a DEL, by ours or by
//! Debian's, leaves nothing, and the next ADD works.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::Command,
};

use podplane_netlink::{Netlink, Request, Veth, netns};
use podplane_test_network::{DEBIAN, NetnsFixture, our_plugins, require, tree};
use serde_json::{Value, json};

use crate::side::{ObservedResult, PluginInput, PluginSide};

/// The step between the system calls at which a plugin is killed; `PODPLANE_SOAK=1` takes every
/// call.
const STRIDE: usize = 7;

#[test]
fn a_killed_tuning_leaves_nothing_after_del() {
    let more = json!({"mac": "c2:11:22:33:44:55", "mtu": 1400, "promisc": true, "allmulti": true});
    kill_everywhere("tuning", &more);
}

#[test]
fn a_killed_bandwidth_leaves_nothing_after_del() {
    let more = json!({"ingressRate": 8_000_000, "ingressBurst": 80_000, "egressRate": 8_000_000, "egressBurst": 80_000});
    kill_everywhere("bandwidth", &more);
}

fn kill_everywhere(plugin: &'static str, more: &Value) {
    if !require(&["root", "cni-plugins", "strace"]) {
        return;
    }
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let stride = if is_soak { 1 } else { STRIDE };
    let node = ChainedNode::new(plugin, more);
    let before = node.container_state();
    for command in ["ADD", "DEL"] {
        let calls = node.system_calls(command);
        let mut kills = 0;
        for (nth, (name, times)) in calls.iter().step_by(stride).enumerate() {
            let inject = format!("inject={name}:signal=SIGKILL:when={times}");
            let seen = node.traced(command, &["-o", "/dev/null", "-e", &inject]);
            kills += usize::from(seen.code != Some(0));
            // The reference does every second DEL.
            let deletes = if nth % 2 == 0 {
                &node.ours
            } else {
                &node.debians
            };
            let place = format!("{command} killed at {name} {times}, {}", deletes.display());
            node.delete(deletes, &place);
            assert_eq!(node.container_state(), before, "{place}");
        }
        assert!(kills > 10, "{plugin}, {command}: too few kills: {kills}");
        let seen = node.run(&node.ours, "ADD");
        assert_eq!(seen.code, Some(0), "{}", seen.stdout);
        node.delete(&node.ours, "in the end");
    }
}

/// A node and a container with a veth pair between them, which is made again for each call.
struct ChainedNode {
    world: NetnsFixture,
    side: PluginSide,
    netns: PathBuf,
    container: PathBuf,
    ours: PathBuf,
    debians: PathBuf,
    config: Value,
}

impl ChainedNode {
    fn new(plugin: &str, more: &Value) -> Self {
        let world = NetnsFixture::new();
        let (netns, container) = (world.netns("node"), world.netns("container"));
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin, "dataDir": world.path("kept"),
            "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "host0"}, {"name": "eth0", "sandbox": "/x"}]},
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        let node = Self {
            side: PluginSide::new(world.dir.path(), "files"),
            world,
            netns,
            container,
            ours: our_plugins().join(plugin),
            debians: Path::new(DEBIAN).join(plugin),
            config,
        };
        node.create_pair();
        node
    }

    fn create_pair(&self) {
        let file = netns::open(&self.container).unwrap();
        let veth = Veth {
            name: "host0",
            peer_name: "eth0",
            peer_netns: Some(file.as_fd()),
            mac: Some([2, 0, 0, 0, 0, 1]),
            peer_mac: Some([2, 0, 0, 0, 0, 2]),
            up: true,
            ..Veth::default()
        };
        let mut netlink = Netlink::open_in(&self.netns).unwrap();
        netlink.execute([Request::create_veth(&veth)]).unwrap();
    }

    /// The attributes that `tuning` changes.
    fn container_state(&self) -> String {
        let link = Netlink::open_in(&self.container).unwrap().link("eth0");
        let link = link.unwrap().unwrap();
        format!(
            "{} {} {} {}",
            link.mac_text(),
            link.mtu,
            link.is_promiscuous,
            link.is_all_multicast
        )
    }

    fn run(&self, program: &Path, command: &str) -> ObservedResult {
        self.run_by(&mut Command::new(program), command)
    }

    fn run_by(&self, program: &mut Command, command: &str) -> ObservedResult {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "victim"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", self.container.to_str().unwrap()),
            ("CNI_PATH", "/x"),
        ];
        let call = PluginInput {
            env: env.map(|(key, value)| (key, value.to_owned())).into(),
            config: self.config.to_string(),
        };
        netns::in_netns(&self.netns, || self.side.run_by(program, &call)).unwrap()
    }

    fn traced(&self, command: &str, options: &[&str]) -> ObservedResult {
        if command == "DEL" {
            let seen = self.run(&self.ours, "ADD");
            assert_eq!(seen.code, Some(0), "{}", seen.stdout);
        }
        let mut strace = Command::new("/usr/bin/strace");
        strace.arg("-qq").args(options).arg(&self.ours);
        self.run_by(&mut strace, command)
    }

    /// The system calls of a call that succeeds: the name, and the ordinal of the call among those
    /// of that name.
    fn system_calls(&self, command: &str) -> Vec<(String, usize)> {
        let log = self.world.path("strace");
        self.traced(command, &["-o", log.to_str().unwrap()]);
        self.delete(&self.ours, command);
        let log = fs::read_to_string(log).unwrap();
        let mut times = BTreeMap::<_, usize>::new();
        let names = log.lines().filter_map(|line| line.split_once('('));
        names
            .map(|(name, _)| {
                let nth = times.entry(name).or_default();
                *nth += 1;
                (name.to_owned(), *nth)
            })
            .collect()
    }

    /// Deletes the attachment, and checks that nothing is left that outlives the veth pair. For
    /// `bandwidth` the pair is then made again, without its queues.
    fn delete(&self, program: &Path, place: &str) {
        let seen = self.run(program, "DEL");
        assert_eq!(seen.code, Some(0), "{place}: {}", seen.stdout);
        assert_eq!(tree(&self.world.path("kept")), [], "{place}");
        let mut netlink = Netlink::open_in(&self.netns).unwrap();
        let links = netlink.links().unwrap();
        let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["lo", "host0"], "{place}");
        if self.config["type"] == "bandwidth" {
            let host = links.iter().find(|link| link.name == "host0").unwrap();
            netlink.execute([Request::delete_link(host.index)]).unwrap();
            self.create_pair();
        }
    }
}
