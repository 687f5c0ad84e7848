//! What the tests of this package share: peers, namespaces that clean up after themselves, plugin calls.
#![expect(dead_code, reason = "each test program uses a part of it")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was skipped must be seen"
)]

pub(crate) mod bench;
pub(crate) mod network;

use std::{
    fs,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use podplane_cni::{Attachment, NetworkConfigList, Runtime, netns};
use serde_json::Value;
use tempfile::TempDir;

/// Debian's plugins, which we did not write.
pub(crate) const DEBIAN: &str = "/usr/lib/cni";

/// Where Debian puts the source of Go packages.
pub(crate) const GO_PACKAGES: &str = "/usr/share/gocode";

/// Whether the test can run; panics saying what is missing, unless `PODPLANE_SKIP` names it.
pub(crate) fn require(needs: &[&str]) -> bool {
    let skip = std::env::var("PODPLANE_SKIP").unwrap_or_default();
    for need in needs {
        let (is_there, remedy) = match *need {
            "root" => (
                rustix::process::geteuid().is_root(),
                "run the tests as root",
            ),
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
            other => panic!("unknown need {other}"),
        };
        if is_there {
            continue;
        }
        assert!(
            skip.split(',').any(|skipped| skipped == *need),
            "{need} is missing: {remedy}, or set PODPLANE_SKIP={need}"
        );
        println!("SKIPPED: {need} is missing");
        return false;
    }
    true
}

/// A directory with our plugins, under their names.
pub(crate) fn our_plugins() -> PathBuf {
    let host_local = Path::new(env!("CARGO_BIN_EXE_host-local"));
    assert!(Path::new(env!("CARGO_BIN_EXE_bridge")).exists());
    assert!(Path::new(env!("CARGO_BIN_EXE_loopback")).exists());
    host_local.parent().unwrap().to_owned()
}

/// A temporary directory with named network namespaces in it, which go with it.
pub(crate) struct World {
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new namespace.
    pub(crate) fn netns(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join("netns").join(name);
        netns::create(&path).unwrap();
        path
    }

    /// A runtime whose plugins are those of the directories and run in a new node namespace.
    pub(crate) fn runtime(&self, bin_dirs: &[&Path]) -> Runtime {
        Runtime {
            bin_dirs: bin_dirs.iter().map(|dir| dir.to_path_buf()).collect(),
            cache_dir: self.path("cache"),
            node_netns: Some(self.netns("node")),
            timeout: Duration::from_secs(30),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for path in netns::list(&self.dir.path().join("netns")).unwrap_or_default() {
            if let Err(error) = netns::remove(&path) {
                eprintln!("{error}");
            }
        }
    }
}

pub(crate) fn list(value: &Value) -> NetworkConfigList {
    NetworkConfigList::from_list(value.to_string().as_bytes()).unwrap()
}

pub(crate) fn attachment(id: &str, netns: &Path) -> Attachment {
    Attachment::new(id, Some(netns.to_owned()), "eth0")
}

/// One call of a plugin program: exit code and standard output.
pub(crate) fn call(
    program: &Path,
    command: &str,
    id: &str,
    args: &str,
    config: &Value,
) -> (i32, String) {
    let netns = Path::new("/does/not/exist");
    run(program, [command, id, args], netns, config)
}

/// The same for a namespace.
pub(crate) fn call_in(
    program: &Path,
    command: &str,
    netns: &Path,
    config: &Value,
) -> (i32, String) {
    run(program, [command, "a", ""], netns, config)
}

fn run(
    program: &Path,
    [command, id, args]: [&str; 3],
    netns: &Path,
    config: &Value,
) -> (i32, String) {
    let mut child = Command::new(program)
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
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(config.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// Names and contents of a directory's files, in order.
pub(crate) fn tree(dir: &Path) -> Vec<(String, String)> {
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
pub(crate) fn exchange(from: &Path, to: &Path, address: IpAddr) {
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

/// What a program of others prints, run in a namespace. It must succeed.
pub(crate) fn run_in(netns: &Path, program: &str, args: &[&str]) -> String {
    let output = netns::in_netns(netns, || Command::new(program).args(args).output());
    let output = output.unwrap().unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

/// A datagram; a stopped and continued process, which interrupts the call, tries again.
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// A directory in memory where there is such a place: a disk would be most of the time of many small files.
pub(crate) fn memory_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Waits for the end of a process that somebody else has started. Nobody may have collected it yet.
pub(crate) fn wait_for_end(pid: &str) {
    let stat = format!("/proc/{}/stat", pid.trim());
    wait_for(&format!("process {pid} still runs"), || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// Waits for what the kernel does in its own time.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
