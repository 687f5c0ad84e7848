//! Support code of the tests of netlink, of the runtime and of the plugins: peers, network
//! namespaces that clean up after themselves, calls of plugins, and a [`Bench`](bench::Bench) for
//! the runtime.
//!
//! It is a dependency of tests only, and panics where a test would.
#![warn(missing_docs)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "failed clean-up must be seen")]

pub mod bench;

use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use podplane_cni::{Attachment, NetworkConfigList, Runtime};
use podplane_netlink::netns;
use serde_json::Value;
use tempfile::TempDir;

/// The directory of Debian's plugins, which we did not write.
pub const DEBIAN: &str = "/usr/lib/cni";

/// The directory of Debian's Go packages with source.
pub const GO_PACKAGES: &str = "/usr/share/gocode";

/// Returns true if the test can run, and false if `PODPLANE_SKIP` has one of its needs. Panics if
/// one is missing.
pub fn require(needs: &[&str]) -> bool {
    needs.iter().all(|need| {
        let (is_there, install) = match *need {
            "root" => return podplane_test_requirements::root(),
            "cni-plugins" => (
                Path::new(DEBIAN).join("host-local").exists(),
                "apt-get install containernetworking-plugins",
            ),
            "iptables" => (
                Path::new("/usr/sbin/iptables-legacy").exists(),
                "apt-get install iptables",
            ),
            "nftables" => (
                Path::new("/usr/sbin/nft").exists(),
                "apt-get install nftables",
            ),
            "python3" => (
                Path::new("/usr/bin/python3").exists(),
                "apt-get install python3-minimal",
            ),
            "strace" => (
                Path::new("/usr/bin/strace").exists(),
                "apt-get install strace",
            ),
            "libcni" => (
                Path::new("/usr/bin/go").exists()
                    && Path::new(GO_PACKAGES)
                        .join("src/github.com/containernetworking/cni/libcni")
                        .exists(),
                "apt-get install golang-go golang-github-appc-cni-dev",
            ),
            "dnsmasq" => (
                Path::new("/usr/sbin/dnsmasq").exists(),
                "apt-get install dnsmasq-base",
            ),
            "dbus" => (
                Path::new("/usr/bin/dbus-daemon").exists(),
                "apt-get install dbus-daemon",
            ),
            other => panic!("unknown need {other}"),
        };
        podplane_test_requirements::require(need, is_there, install)
    })
}

/// The directory with our plugins, under their names: beside the directory of the test program,
/// where `cargo build -p podplane-cni-plugins --bins` puts them.
pub fn our_plugins() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.ancestors().nth(2).unwrap().to_owned();
    for plugin in ["bridge", "host-local", "loopback", "static"] {
        assert!(
            dir.join(plugin).exists(),
            "no {plugin} in {}: run cargo build -p podplane-cni-plugins --bins",
            dir.display()
        );
    }
    dir
}

/// A temporary directory with named network namespaces in it, which are removed with it.
#[derive(Debug)]
pub struct NetnsFixture {
    /// The directory.
    pub dir: TempDir,
}

impl Default for NetnsFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl NetnsFixture {
    /// A new directory.
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a new namespace.
    pub fn netns(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join("netns").join(name);
        netns::create(&path).unwrap();
        path
    }

    /// A runtime whose plugins are those of the directories, and run in a new node namespace.
    pub fn runtime(&self, bin_dirs: &[&Path]) -> Runtime {
        Runtime {
            bin_dirs: bin_dirs.iter().map(|dir| dir.to_path_buf()).collect(),
            cache_dir: self.path("cache"),
            spare: None,
            node_netns: Some(self.netns("node")),
            timeout: Duration::from_secs(30),
        }
    }
}

impl Drop for NetnsFixture {
    fn drop(&mut self) {
        for path in netns::list(&self.dir.path().join("netns")).unwrap_or_default() {
            if let Err(error) = netns::remove(&path) {
                eprintln!("{error}");
            }
        }
    }
}

/// A network configuration list.
pub fn list(value: &Value) -> NetworkConfigList {
    NetworkConfigList::from_list(value.to_string().as_bytes()).unwrap()
}

/// The attachment `eth0` of a container.
pub fn attachment(id: &str, netns: &Path) -> Attachment {
    Attachment::new(id, Some(netns.to_owned()), "eth0")
}

/// One call of a plugin program: exit code and standard output.
pub fn call(program: &Path, command: &str, id: &str, args: &str, config: &Value) -> (i32, String) {
    let netns = Path::new("/does/not/exist");
    run_program(program, [command, id, args], netns, config)
}

/// The same for a namespace.
pub fn call_in(program: &Path, command: &str, netns: &Path, config: &Value) -> (i32, String) {
    run_program(program, [command, "a", ""], netns, config)
}

/// Calls a plugin program for a container and with `CNI_ARGS`.
pub fn run_program(
    program: &Path,
    command_id_args: [&str; 3],
    netns: &Path,
    config: &Value,
) -> (i32, String) {
    run_text(program, command_id_args, netns, &config.to_string())
}

/// Calls a plugin program with a configuration as written.
pub fn run_text(
    program: &Path,
    [command, id, args]: [&str; 3],
    netns: &Path,
    config: &str,
) -> (i32, String) {
    let mut process = Command::new(program);
    process
        .env_clear()
        .envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", id),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
            ("CNI_PATH", DEBIAN),
        ])
        .env("CNI_NETNS", netns)
        .stderr(Stdio::null());
    let output = output_of(&mut process, config).unwrap();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// An answer of ours or of the reference's, of which an error about the configuration's JSON has
/// the step and the field, without either's words.
pub fn without_json_words((code, answer): (i32, String)) -> (i32, Value) {
    let Ok(mut value) = serde_json::from_str::<Value>(&answer) else {
        return (code, answer.into());
    };
    if let Some(msg) = value["msg"].as_str() {
        value["msg"] = step_and_field(msg).into();
    }
    (code, value)
}

fn step_and_field(msg: &str) -> String {
    if let Some((step, fault)) = msg.split_once("json: cannot unmarshal ") {
        let (_, field) = fault.split_once("Go struct field ").unwrap_or_default();
        let (_, path) = field.split_once('.').unwrap_or_default();
        let path = path.split(' ').next().unwrap_or_default();
        return format!("{step}{path}: wrong type");
    }
    let Some((ours, _place)) = msg.split_once(" at line ") else {
        return msg.to_owned();
    };
    for wrong_type in [": invalid type: ", ": invalid value: "] {
        if let Some((step, _)) = ours.split_once(wrong_type) {
            return format!("{step}: wrong type");
        }
    }
    // The reference does not name the field of an address that it cannot parse.
    let (_, fault) = ours.split_once(": ").unwrap_or_default();
    fault.to_owned()
}

/// Runs a program with an input, and waits for its end.
///
/// A program may end before it has read its input, for example a plugin that is asked for its
/// version.
///
/// # Errors
/// The operating system's.
pub fn output_of(process: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = process
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => child.wait_with_output(),
    }
}

/// The names and contents of a directory's files, in order.
pub fn tree(dir: &Path) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let content = fs::read(entry.path()).unwrap_or_default();
            (
                entry.file_name().into_string().unwrap(),
                String::from_utf8_lossy(&content).into_owned(),
            )
        })
        .collect();
    files.sort();
    files
}

/// Sends a datagram from one namespace to an address in another, and an answer back.
pub fn exchange(from: &Path, to: &Path, address: IpAddr) {
    let bind = |netns: &Path, ip: IpAddr| {
        let socket = netns::in_netns(netns, || UdpSocket::bind((ip, 0)))
            .unwrap()
            .unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket
    };
    let any: IpAddr = if address.is_ipv4() {
        [0, 0, 0, 0].into()
    } else {
        [0_u16; 8].into()
    };
    let (server, client) = (bind(to, address), bind(from, any));
    let mut buffer = [0; 16];
    client
        .send_to(b"ask", server.local_addr().unwrap())
        .unwrap();
    let (n, peer) = receive(&server, &mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"ask");
    server.send_to(b"answer", peer).unwrap();
    let (n, answerer) = receive(&client, &mut buffer).unwrap();
    assert_eq!(
        (&buffer[..n], answerer.ip()),
        (b"answer".as_slice(), address)
    );
}

/// Runs another program in a namespace and returns its output. It must succeed.
pub fn run_in(netns: &Path, program: &str, args: &[&str]) -> String {
    let output = netns::in_netns(netns, || Command::new(program).args(args).output());
    let output = output.unwrap().unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

/// Receives a datagram. Tries again if the process was stopped and continued, which interrupts the
/// call.
///
/// # Errors
/// The operating system's.
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// A temporary directory in memory if possible: a disk would take most of the time for many small
/// files.
pub fn memory_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Waits for the end of a process of another parent, which may not have collected it yet.
pub fn wait_for_end(pid: &str) {
    let stat = format!("/proc/{}/stat", pid.trim());
    wait_for(&format!("process {pid} still runs"), || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// Waits for an event in the kernel, up to 30 s.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
