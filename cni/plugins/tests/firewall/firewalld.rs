//! The backend firewalld, with a bus of the test's own and a service that answers as firewalld
//! does.

use std::{
    collections::BTreeMap,
    fs,
    future::poll_fn,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use podplane_netlink::netns;
use podplane_test_network::{NetnsFixture, output_of, require};
use serde_json::{Value, json};
use zbus::{
    Connection, Message, MessageStream, block_on, conn::Builder, export::futures_core::Stream as _,
    message::Type,
};

use crate::{config, debians, ours, own_rules, rules};

const NAME: &str = "org.fedoraproject.FirewallD1";

/// The sources, each with its zone.
type Zones = Arc<Mutex<BTreeMap<String, String>>>;

/// A bus, with firewalld on it.
struct Bus {
    daemon: Child,
    address: String,
    zones: Zones,
    firewalld: Option<Connection>,
}

impl Bus {
    fn new(dir: &Path) -> Self {
        let (socket, file) = (dir.join("bus"), dir.join("bus.conf"));
        let socket = socket.to_str().unwrap();
        fs::write(
            &file,
            format!(
                r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
                <busconfig><type>session</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
                <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"#
            ),
        )
        .unwrap();
        let mut daemon = Command::new("/usr/bin/dbus-daemon")
            .arg(format!("--config-file={}", file.display()))
            .args(["--nofork", "--nopidfile", "--print-address"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let mut stdout = BufReader::new(daemon.stdout.take().unwrap());
        stdout.read_line(&mut address).unwrap();
        Self {
            daemon,
            address: address.trim().to_owned(),
            zones: Zones::default(),
            firewalld: None,
        }
    }

    fn start_firewalld(&mut self) {
        let address = self.address.as_str();
        let bus = block_on(Builder::address(address).build()).unwrap();
        let mut calls = MessageStream::from(&bus);
        block_on(bus.request_name(NAME)).unwrap();
        self.firewalld = Some(bus.clone());
        let zones = self.zones.clone();
        // The thread ends with the bus.
        thread::spawn(move || {
            while let Some(Ok(call)) = block_on(poll_fn(|cx| Pin::new(&mut calls).poll_next(cx))) {
                if call.message_type() == Type::MethodCall {
                    answer(&bus, &call, &zones);
                }
            }
        });
    }

    fn stop_firewalld(&mut self) {
        let bus = self.firewalld.take().unwrap();
        block_on(bus.release_name(NAME)).unwrap();
        self.zones.lock().unwrap().clear();
    }

    fn zones(&self) -> BTreeMap<String, String> {
        self.zones.lock().unwrap().clone()
    }

    /// Calls a plugin with this bus as the system's.
    fn run(&self, netns: &Path, plugin: &Path, command: &str, config: &Value) -> (i32, Value) {
        let mut program = Command::new(plugin);
        program.env_clear().envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("DBUS_SYSTEM_BUS_ADDRESS", self.address.as_str()),
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/does/not/exist"),
            ("CNI_PATH", "/x"),
        ]);
        let run = || output_of(&mut program, &config.to_string());
        let output = netns::in_netns(netns, run).unwrap().unwrap();
        let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap_or(-1), answer)
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        _ = self.daemon.kill();
        _ = self.daemon.wait();
    }
}

/// Answers a call as firewalld does: a source is in one zone, and there are only two zones.
fn answer(bus: &Connection, call: &Message, zones: &Zones) {
    let header = call.header();
    assert_eq!(
        header.path().unwrap().as_str(),
        "/org/fedoraproject/FirewallD1"
    );
    assert_eq!(
        header.interface().unwrap().as_str(),
        "org.fedoraproject.FirewallD1.zone"
    );
    let (zone, source): (String, String) = call.body().deserialize().unwrap();
    let mut zones = zones.lock().unwrap();
    let present = zones.get(&source).cloned();
    let refuse = |why: &str| {
        block_on(bus.reply_error(&header, "org.fedoraproject.FirewallD1.Exception", &why)).unwrap();
    };
    if !["trusted", "internal"].contains(&zone.as_str()) {
        return refuse(&format!("INVALID_ZONE: {zone}"));
    }
    match (header.member().unwrap().as_str(), present) {
        ("querySource", present) => {
            block_on(bus.reply(&header, &(present == Some(zone)))).unwrap();
        }
        ("addSource", Some(present)) if present == zone => {
            refuse(&format!(
                "ZONE_ALREADY_SET: '{source}' already bound to '{zone}'"
            ));
        }
        ("addSource", Some(_)) => refuse(&format!("ZONE_CONFLICT: '{source}'")),
        ("addSource", None) => {
            zones.insert(source, zone.clone());
            block_on(bus.reply(&header, &zone)).unwrap();
        }
        ("removeSource", None) => refuse(&format!("UNKNOWN_SOURCE: '{source}'")),
        ("removeSource", Some(_)) => {
            zones.remove(&source);
            block_on(bus.reply(&header, &zone)).unwrap();
        }
        (other, _) => panic!("{other}"),
    }
}

fn in_zone(zone: &str) -> BTreeMap<String, String> {
    let sources = ["10.244.1.2/32", "fd00:1::2/128"];
    sources
        .map(|source| (source.to_owned(), zone.to_owned()))
        .into()
}

fn plugins() -> [PathBuf; 2] {
    [ours(), debians()]
}

#[test]
fn ours_and_debians_remove_each_others_addresses_from_zones() {
    if !require(&["root", "iptables", "dbus", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let mut bus = Bus::new(world.dir.path());
    bus.start_firewalld();
    // The backend is chosen by name, and by default where it runs.
    for backend in ["firewalld", ""] {
        for (zone, given) in [("trusted", ""), ("internal", "internal")] {
            let config = config(&json!({"backend": backend, "firewalldZone": given}));
            let [ours, debians] = plugins();
            for (adds, deletes) in [(&ours, &debians), (&debians, &ours), (&ours, &ours)] {
                let run = |plugin: &Path, command: &str| bus.run(&netns, plugin, command, &config);
                let (code, result) = run(adds, "ADD");
                assert_eq!(
                    (code, &result["ips"]),
                    (0, &config["prevResult"]["ips"]),
                    "{result}"
                );
                assert_eq!(bus.zones(), in_zone(zone));
                for plugin in [adds, deletes] {
                    assert_eq!(run(plugin, "ADD").0, 0, "again");
                    assert_eq!(run(plugin, "CHECK"), (0, Value::Null));
                }
                assert_eq!(bus.zones(), in_zone(zone));
                for _ in 0..2 {
                    assert_eq!(run(deletes, "DEL"), (0, Value::Null));
                    assert_eq!(bus.zones(), BTreeMap::new());
                }
            }
        }
    }
    assert!(!rules(&netns).iter().any(|rule| rule.contains("CNI-")));
}

#[test]
fn refusals_of_firewalld_are_answered_like_debians() {
    if !require(&["root", "dbus", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let mut bus = Bus::new(world.dir.path());
    bus.start_firewalld();
    let config = config(&json!({"backend": "firewalld", "firewalldZone": "nowhere"}));
    for command in ["ADD", "CHECK", "DEL"] {
        let [ours, debians] = plugins().map(|plugin| bus.run(&netns, &plugin, command, &config));
        assert_eq!(ours, debians, "{command}");
    }
    // An address in another zone is a fault, which Debian's does not notice.
    let config = crate::config(&json!({"backend": "firewalld"}));
    bus.zones.lock().unwrap().extend(in_zone("internal"));
    let (code, error) = bus.run(&netns, &ours(), "CHECK", &config);
    let expected = "failed to find the address 10.244.1.2/32 in trusted zone";
    assert_eq!((code, error["msg"].as_str()), (1, Some(expected)));
    let (code, error) = bus.run(&netns, &ours(), "ADD", &config);
    let expected =
        "failed to add the address 10.244.1.2/32 to trusted zone: ZONE_CONFLICT: '10.244.1.2/32'";
    assert_eq!((code, error["msg"].as_str()), (1, Some(expected)));
}

/// An ADD that fails for the second address leaves the first one in no zone.
#[test]
fn a_failed_add_is_rolled_back() {
    if !require(&["root", "dbus"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let mut bus = Bus::new(world.dir.path());
    bus.start_firewalld();
    let other = BTreeMap::from([("fd00:1::2/128".to_owned(), "internal".to_owned())]);
    bus.zones.lock().unwrap().extend(other.clone());
    let config = config(&json!({"backend": ""}));
    assert_eq!(bus.run(&netns, &ours(), "ADD", &config).0, 1);
    assert_eq!(bus.zones(), BTreeMap::new());
}

#[test]
fn uses_iptables_for_isolation_even_with_firewalld() {
    if !require(&["root", "iptables", "dbus"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let mut bus = Bus::new(world.dir.path());
    bus.start_firewalld();
    let config = config(&json!({"backend": "", "ingressPolicy": "isolated"}));
    let run = |command: &str| bus.run(&netns, &ours(), command, &config).0;
    assert_eq!(run("ADD"), 0);
    assert_eq!(bus.zones(), in_zone("trusted"));
    let made = rules(&netns);
    assert!(
        made.iter()
            .any(|rule| rule.starts_with("-A FORWARD") && rule.ends_with("CNI-ISOLATION-STAGE-1"))
    );
    assert!(
        !made.iter().any(|rule| rule.contains("CNI-FORWARD")),
        "{made:?}"
    );
    assert_eq!(run("CHECK"), 0);
    assert_eq!(run("DEL"), 0);
}

/// The backend is chosen for each call. A DEL finds what an ADD has made even if firewalld has come
/// or gone since.
#[test]
fn a_pod_is_deleted_although_firewalld_started_or_stopped_since() {
    if !require(&["root", "iptables", "dbus"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("node");
    let mut bus = Bus::new(world.dir.path());
    let config = config(&json!({"backend": "", "cniVersion": "1.1.0"}));
    let by_name = crate::config(&json!({"backend": "firewalld", "cniVersion": "1.1.0"}));
    assert_eq!(bus.run(&netns, &ours(), "ADD", &config).0, 0);
    assert_eq!(own_rules(&netns).len(), 4);
    let (code, error) = bus.run(&netns, &ours(), "STATUS", &by_name);
    assert_eq!((code, &error["code"]), (1, &json!(50)), "{error}");
    bus.start_firewalld();
    assert_eq!(
        bus.run(&netns, &ours(), "STATUS", &by_name),
        (0, Value::Null)
    );
    assert_eq!(
        bus.run(&netns, &ours(), "STATUS", &config),
        (0, Value::Null)
    );
    assert_eq!(bus.run(&netns, &ours(), "DEL", &config).0, 0);
    assert_eq!(own_rules(&netns), [""; 0]);
    assert_eq!(bus.run(&netns, &ours(), "ADD", &config).0, 0);
    assert_eq!(bus.zones(), in_zone("trusted"));
    bus.stop_firewalld();
    assert_eq!(bus.run(&netns, &ours(), "DEL", &config).0, 0);
    assert_eq!(own_rules(&netns), [""; 0]);
}
