//! The program `tuning` beside Debian's, on interfaces in namespaces of the test's own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use podplane_netlink::{Netlink, Request, Veth, netns, sysctl};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, list, our_plugins, require, run_in, run_program, run_text,
    tree, without_json_words,
};
use serde_json::{Value, json};

const MAC: &str = "c2:11:22:33:44:55";
const BEFORE: &str = "0a:58:0a:f4:01:02";

/// A container with an interface, and a directory for its backup.
struct TuningFixture {
    world: NetnsFixture,
    container: PathBuf,
}

impl TuningFixture {
    fn new() -> Self {
        let world = NetnsFixture::new();
        let container = world.netns("container");
        let scene = Self { world, container };
        scene.create_eth0();
        scene
    }

    fn create_eth0(&self) {
        let veth = Veth {
            name: "eth0",
            peer_name: "peer",
            mac: Some([0x0a, 0x58, 0x0a, 0xf4, 1, 2]),
            up: true,
            ..Veth::default()
        };
        self.netlink()
            .execute([Request::create_veth(&veth)])
            .unwrap();
    }

    /// Restores the initial state.
    fn reset(&self) {
        let mut netlink = self.netlink();
        let index = netlink.link("eth0").unwrap().unwrap().index;
        netlink
            .execute([
                Request::mac(index, &[0x0a, 0x58, 0x0a, 0xf4, 1, 2]),
                Request::mtu(index, 1500),
                Request::not_promiscuous(index),
                Request::not_all_multicast(index),
            ])
            .unwrap();
        let settings = [
            ("net/core/somaxconn", "4096"),
            ("net/ipv4/conf/eth0/arp_filter", "0"),
        ];
        sysctl::write_in(&self.container, &settings).unwrap();
        _ = fs::remove_dir_all(self.data_dir());
    }

    fn netlink(&self) -> Netlink {
        Netlink::open_in(&self.container).unwrap()
    }

    fn data_dir(&self) -> PathBuf {
        self.world.path("run/cni/tuning")
    }

    /// A configuration whose previous result has two interfaces.
    fn config(&self, version: &str, more: &Value) -> Value {
        let mut config = json!({
            "cniVersion": version, "name": "net", "type": "tuning", "dataDir": self.data_dir(),
            "prevResult": {
                "cniVersion": version,
                "interfaces": [
                    {"name": "cni0", "mac": "00:11:22:33:44:55"},
                    {"name": "eth0", "mac": BEFORE, "sandbox": "/netns"},
                ],
                "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 1}],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dns": {"nameservers": ["10.96.0.10"], "search": ["<a>"]},
            },
        });
        if version.starts_with("0.") {
            config["prevResult"]["ips"][0]["version"] = "4".into();
        }
        if version < "0.3.0" {
            let dns = &config["prevResult"]["dns"];
            config["prevResult"] =
                json!({"cniVersion": version, "ip4": {"ip": "10.1.2.3/24"}, "dns": dns});
        }
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    fn run(&self, plugins: &Path, command: &str, args: &str, config: &Value) -> (i32, String) {
        let program = plugins.join("tuning");
        run_program(&program, [command, "a", args], &self.container, config)
    }

    /// The interface as `ip` shows it.
    fn link(&self) -> Value {
        let text = run_in(&self.container, "ip", &["-j", "link", "show", "eth0"]);
        let links: Value = serde_json::from_str(&text).unwrap();
        let link = &links[0];
        json!({"flags": link["flags"], "mtu": link["mtu"], "mac": link["address"], "txqlen": link["txqlen"]})
    }

    fn sysctl(&self, key: &str) -> String {
        sysctl::read_in(&self.container, key).unwrap()
    }
}

fn ours() -> PathBuf {
    assert!(Path::new(env!("CARGO_BIN_EXE_tuning")).exists());
    our_plugins()
}

/// One side's answer to an ADD, and its effects.
#[derive(Debug, PartialEq)]
struct ObservedAdd {
    code: i32,
    /// A JSON value if the ADD succeeds: 1.1.1 orders the keys of 1.0.0 otherwise than the
    /// reference's main branch.
    answer: Value,
    link: Value,
    backup: Vec<(String, String)>,
    somaxconn: String,
    arp_filter: String,
}

fn seen(scene: &TuningFixture, (code, answer): (i32, String)) -> ObservedAdd {
    let is_sorted = code == 0 && answer.contains("1.0.0");
    let answer = if code != 0 {
        without_json_words((code, answer)).1
    } else if is_sorted {
        serde_json::from_str(&answer).unwrap()
    } else {
        answer.into()
    };
    ObservedAdd {
        code,
        answer,
        link: scene.link(),
        backup: tree(&scene.data_dir()),
        somaxconn: scene.sysctl("net/core/somaxconn"),
        arp_filter: scene.sysctl("net/ipv4/conf/eth0/arp_filter"),
    }
}

/// Configurations and `CNI_ARGS` that both sides understand.
fn cases() -> Vec<(Value, &'static str)> {
    let sysctl = json!({"net.core.somaxconn": "500"});
    vec![
        (json!({}), ""),
        (json!({"mac": MAC}), ""),
        (json!({"mac": "C2-11-22-33-44-55"}), ""),
        (json!({"mac": "c211.2233.4455"}), ""),
        (
            json!({"mac": "c2:11:22:33:44:5a"}),
            "IgnoreUnknown=true;MAC=c2:11:22:33:44:66",
        ),
        (
            json!({"mac": "x", "runtimeConfig": {"mac": MAC}, "capabilities": {"mac": true}}),
            "MAC=c2:11:22:33:44:66",
        ),
        (json!({"mac": "x", "args": {"cni": {"mac": MAC}}}), ""),
        (json!({"mac": MAC, "args": {"cni": {"mac": ""}}}), ""),
        (json!({"mtu": 1280}), ""),
        (json!({"mtu": 0}), ""),
        (json!({"mtu": 1280, "args": {"cni": {"mtu": 1300}}}), ""),
        (json!({"promisc": true}), ""),
        (json!({"promisc": false}), ""),
        (
            json!({"promisc": false, "args": {"cni": {"promisc": true}}}),
            "",
        ),
        (json!({"allmulti": true}), ""),
        (json!({"allmulti": false}), ""),
        (
            json!({"allmulti": true, "args": {"cni": {"allmulti": false}}}),
            "",
        ),
        (
            json!({"mac": MAC, "mtu": 1400, "promisc": true, "allmulti": true}),
            "",
        ),
        (json!({"sysctl": sysctl}), ""),
        (json!({"sysctl": sysctl, "mtu": 1400}), ""),
        (
            json!({"sysctl": sysctl, "args": {"cni": {"sysctl": {"net.core.somaxconn": "501"}}}}),
            "",
        ),
        (
            json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}),
            "",
        ),
        (
            json!({"sysctl": {"net/ipv4/conf/eth0/arp_filter": "1"}}),
            "",
        ),
        (json!({"sysctl": null, "MTU": 1290, "Mac": MAC}), ""),
        // Configurations that are refused.
        (json!({"prevResult": null}), ""),
        (json!({"prevResult": 5}), ""),
        (json!({"mac": 5}), ""),
        (json!({"mtu": "x"}), ""),
        (json!({"mtu": 1.5}), ""),
        (json!({"promisc": "yes"}), ""),
        (json!({"allmulti": 1}), ""),
        (json!({"sysctl": {"kernel/shmmax": "1"}}), ""),
        (json!({"sysctl": {"net": "1"}}), ""),
        (json!({"runtimeConfig": 5}), ""),
        (json!({"args": {"cni": {"mtu": "x"}}}), ""),
        (json!({"mac": MAC}), "K=V"),
        (json!({"mac": MAC}), "MAC"),
    ]
}

#[test]
fn answers_and_changes_the_link_like_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (theirs, ours) = (
        (TuningFixture::new(), PathBuf::from(DEBIAN)),
        (TuningFixture::new(), ours()),
    );
    for version in ["0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        // Only the format of the result depends on the version.
        let many = if version == "1.0.0" { usize::MAX } else { 3 };
        for (more, args) in cases().into_iter().take(many) {
            let add = |(scene, plugins): &(TuningFixture, PathBuf)| {
                let config = scene.config(version, &more);
                let answer = scene.run(plugins, "ADD", args, &config);
                let seen = seen(scene, answer);
                scene.reset();
                seen
            };
            assert_eq!(add(&ours), add(&theirs), "{version} {more} {args}");
        }
    }
}

#[test]
fn ours_and_debians_restore_each_others_changes() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (ours(), PathBuf::from(DEBIAN));
    let scene = TuningFixture::new();
    scene.reset();
    let before = scene.link();
    for (more, args) in cases() {
        let config = scene.config("1.0.0", &more);
        for (adds, deletes) in [(&ours, &ours), (&ours, &debians), (&debians, &ours)] {
            let text = format!("{more} {args} {} {}", adds.display(), deletes.display());
            if scene.run(adds, "ADD", args, &config).0 != 0 {
                scene.reset();
                break; // The refusals have been compared.
            }
            let checked = scene.run(&ours, "CHECK", args, &config);
            assert_eq!(checked, (0, String::new()), "{text}");
            // 1.1.1 finds neither an interface's own setting, nor a hardware address in another
            // notation.
            let is_odd = text.contains("IFNAME") || text.contains("C2-") || text.contains("c211.");
            let checked = scene.run(&debians, "CHECK", args, &config);
            assert_eq!(checked.0 == 0, !is_odd, "{text}: {}", checked.1);
            // The second time there is nothing to restore.
            for _ in 0..2 {
                let deleted = scene.run(deletes, "DEL", args, &config);
                assert_eq!(deleted, (0, String::new()), "{text}");
                assert_eq!(scene.link(), before, "{text}");
                assert_eq!(tree(&scene.data_dir()), [], "{text}");
            }
        }
    }
}

#[test]
fn check_reports_each_change() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let scene = TuningFixture::new();
    let index = scene.netlink().link("eth0").unwrap().unwrap().index;
    let config = scene.config(
        "1.0.0",
        &json!({
            "mac": MAC, "mtu": 1400, "promisc": true, "sysctl": {"net.core.somaxconn": "500"},
        }),
    );
    assert_eq!(scene.run(&ours(), "ADD", "", &config).0, 0);
    let both = || {
        let [ours, theirs] =
            [&ours(), Path::new(DEBIAN)].map(|plugins| scene.run(plugins, "CHECK", "", &config));
        assert_eq!(ours, theirs);
        ours
    };
    assert_eq!(both(), (0, String::new()));
    let mac = [0xc2, 0x11, 0x22, 0x33, 0x44, 0x55];
    for (change, back) in [
        (Request::mac(index, &[2; 6]), Request::mac(index, &mac)),
        (Request::mtu(index, 1401), Request::mtu(index, 1400)),
        (Request::not_promiscuous(index), Request::promiscuous(index)),
    ] {
        scene.netlink().execute([change]).unwrap();
        let (code, text) = both();
        assert_eq!(code, 1);
        assert!(text.contains("Error: Tuning"), "{text}");
        scene.netlink().execute([back]).unwrap();
    }
    sysctl::write_in(&scene.container, &[("net/core/somaxconn", "501")]).unwrap();
    let (code, text) = both();
    assert_eq!(code, 1);
    assert!(
        text.contains("somaxconn is 500, current value is 501"),
        "{text}"
    );
    sysctl::write_in(&scene.container, &[("net/core/somaxconn", "500")]).unwrap();
    scene
        .netlink()
        .execute([Request::delete_link(index)])
        .unwrap();
    let (code, text) = both();
    assert_eq!(code, 1);
    assert!(text.contains("Cannot find container link eth0"), "{text}");
}

/// The keys that came after Debian's release.
#[test]
fn sets_and_restores_the_length_of_the_transmit_queue() {
    if !require(&["root"]) {
        return;
    }
    let scene = TuningFixture::new();
    let before = scene.link();
    let config = scene.config("1.1.0", &json!({"txQLen": 20000}));
    let (code, answer) = scene.run(&ours(), "ADD", "", &config);
    assert_eq!(code, 0, "{answer}");
    assert_eq!(scene.link()["txqlen"], 20000);
    let backup = tree(&scene.data_dir());
    assert_eq!(
        backup,
        [(
            "a_eth0.json".to_owned(),
            "{\n \"txQLen\": 1000\n}".to_owned()
        )]
    );
    let mode = fs::metadata(scene.data_dir().join("a_eth0.json"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(scene.run(&ours(), "CHECK", "", &config).0, 0);
    let other = scene.config(
        "1.1.0",
        &json!({"txQLen": 1, "args": {"cni": {"txQLen": 2}}}),
    );
    let (_, answer) = scene.run(&ours(), "CHECK", "", &other);
    let expected =
        "Error: Tuning configured Transmit Queue Length of eth0 is 2, current value is 20000";
    assert!(answer.contains(expected), "{answer}");
    for command in ["GC", "STATUS"] {
        assert_eq!(scene.run(&ours(), command, "", &config), (0, String::new()));
    }
    assert_eq!(tree(&scene.data_dir()), backup);
    assert_eq!(scene.run(&ours(), "DEL", "", &config).0, 0);
    assert_eq!((scene.link(), tree(&scene.data_dir())), (before, vec![]));
}

#[test]
fn refuses_duplicate_settings() {
    if !require(&["root"]) {
        return;
    }
    let scene = TuningFixture::new();
    let config = scene.config("1.0.0", &json!({"sysctl": {"net.core.somaxconn": "500"}}));
    let twice = config.to_string().replace(
        r#""net.core.somaxconn":"500""#,
        r#""net.core.somaxconn":"500","net.core.somaxconn":"501""#,
    );
    let before = scene.sysctl("net/core/somaxconn");
    let program = ours().join("tuning");
    for command in ["ADD", "CHECK"] {
        let (code, answer) = run_text(&program, [command, "a", ""], &scene.container, &twice);
        assert_eq!(code, 1);
        assert!(
            answer.contains("sysctl: key `net.core.somaxconn` comes twice"),
            "{answer}"
        );
    }
    assert_eq!(scene.sysctl("net/core/somaxconn"), before);
}

#[test]
fn only_settings_on_the_administrators_list_are_allowed() {
    if !require(&["root"]) {
        return;
    }
    let scene = TuningFixture::new();
    let config = scene.config("1.0.0", &json!({"sysctl": {"net.core.somaxconn": "500"}}));
    let input = scene.world.path("input");
    fs::write(&input, config.to_string()).unwrap();
    let listed = |list: &str| {
        let script = r#"mount -t tmpfs tmpfs /etc && mkdir -p /etc/cni/tuning && printf '%s' "$LIST" > /etc/cni/tuning/allowlist.conf && exec "$0""#;
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                script,
                env!("CARGO_BIN_EXE_tuning"),
            ])
            .envs([
                ("LIST", list),
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "a"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/x"),
            ])
            .env("CNI_NETNS", &scene.container)
            .stdin(fs::File::open(&input).unwrap())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, answer) = listed(" ^net\\.ipv4\\. \n\n^net\\.unix\\.\n");
    assert_eq!(code, Some(1));
    let expected = r"Sysctl net.core.somaxconn is not allowed. Only the following sysctls are allowed: [^net\\.ipv4\\. ^net\\.unix\\.]";
    assert!(answer.contains(expected), "{answer}");
    assert_ne!(scene.sysctl("net/core/somaxconn"), "500");
    assert_eq!(listed("^net\\.core\\.").0, Some(0));
    assert_eq!(scene.sysctl("net/core/somaxconn"), "500");
    let (code, answer) = listed("(");
    assert_eq!(code, Some(1));
    assert!(answer.contains("invalid regular expression"), "{answer}");
}

#[test]
fn a_failed_add_leaves_the_interface_as_it_was() {
    if !require(&["root"]) {
        return;
    }
    let scene = TuningFixture::new();
    let before = scene.link();
    let config = scene.config(
        "1.0.0",
        &json!({"mac": MAC, "mtu": 10, "promisc": true, "allmulti": true}),
    );
    let (code, answer) = scene.run(&ours(), "ADD", "", &config);
    assert_eq!(code, 1);
    assert!(answer.contains("failed to set mtu 10 on link"), "{answer}");
    assert_eq!((scene.link(), tree(&scene.data_dir())), (before, vec![]));
    for (more, expected) in [
        (
            json!({"mac": "zz"}),
            "invalid args zz for MAC addr: address zz: invalid MAC address",
        ),
        (
            json!({"sysctl": {"net.core.nothing": "1"}}),
            "failed to write sysctl net/core/nothing",
        ),
        (
            json!({"sysctl": {"net.core.somaxconn": "many"}}),
            "failed to write sysctl net/core/somaxconn",
        ),
    ] {
        let (code, answer) = scene.run(&ours(), "ADD", "", &scene.config("1.0.0", &more));
        assert_eq!(code, 1);
        assert!(answer.contains(expected), "{answer}");
        assert_eq!(tree(&scene.data_dir()), []);
    }
}

/// The reference keeps its file if nothing is left to restore, and crashes on an argument without a
/// setting.
#[test]
fn del_always_removes_its_backup() {
    if !require(&["root"]) {
        return;
    }
    let scene = TuningFixture::new();
    let more = json!({"mtu": 1400, "args": {"cni": {"sysctl": {"net.core.somaxconn": "500"}}}});
    let config = scene.config("1.0.0", &more);
    let add = || {
        let (code, answer) = scene.run(&ours(), "ADD", "", &config);
        assert_eq!(code, 0, "{answer}");
        assert_eq!(tree(&scene.data_dir()).len(), 1);
    };
    let del = || {
        assert_eq!(scene.run(&ours(), "DEL", "", &config), (0, String::new()));
        assert_eq!(tree(&scene.data_dir()), []);
    };
    add();
    assert_eq!(scene.sysctl("net/core/somaxconn"), "500");
    let index = scene.netlink().link("eth0").unwrap().unwrap().index;
    scene
        .netlink()
        .execute([Request::delete_link(index)])
        .unwrap();
    del();
    scene.create_eth0();
    add();
    fs::write(scene.data_dir().join("a_eth0.json"), "{\n \"mt").unwrap();
    del();
    add();
    // A plain file, as a reboot leaves it.
    netns::remove(&scene.container).unwrap();
    fs::write(&scene.container, "").unwrap();
    del();
    fs::remove_file(&scene.container).unwrap();
    del();
}

#[test]
fn works_after_bridge_in_a_chain() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (ours(), PathBuf::from(DEBIAN));
    for (adds, deletes) in [(&ours, &ours), (&ours, &debians), (&debians, &ours)] {
        let world = NetnsFixture::new();
        let mut runtime = world.runtime(&[adds]);
        let container = world.netns("container");
        let network = list(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "dataDir": world.path("networks"), "subnet": "10.1.2.0/24"}},
            {"type": "tuning", "dataDir": world.path("tuning"), "capabilities": {"mac": true}, "mtu": 1400},
        ]}));
        let mut pod = attachment("a", &container);
        pod.capability_args.insert("mac".to_owned(), MAC.into());
        let result = runtime.add(&network, &pod).unwrap();
        let eth0 = result.interfaces.iter().find(|i| i.name == "eth0").unwrap();
        assert_eq!(eth0.mac, MAC);
        let link = Netlink::open_in(&container).unwrap().link("eth0").unwrap();
        let link = link.unwrap();
        assert_eq!((link.mac_text().as_str(), link.mtu), (MAC, 1400));
        runtime.bin_dirs = vec![deletes.clone()];
        runtime.check(&network, &pod).unwrap();
        runtime.del(&network, &pod).unwrap();
        assert_eq!(tree(&world.path("tuning")), []);
        let left = Netlink::open_in(&container).unwrap().link("eth0").unwrap();
        assert_eq!(left, None);
    }
}
