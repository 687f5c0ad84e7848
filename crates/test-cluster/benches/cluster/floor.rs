//! The least that a pod's interface takes: a named network namespace, a veth pair whose other end
//! is a port of a bridge, and an address, made in one process. It is this program once more, in
//! network and mount namespaces of its own, which end with it.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::Ipv4Addr,
    os::fd::AsFd as _,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use ipnet::Ipv4Net;
use podplane_netlink::{Bridge, Netlink, Request, Veth, netns};

/// The flag with which this program is the floor.
pub(crate) const FLAG: &str = "--floor";

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The process of the floor.
pub(crate) struct Floor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Floor {
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new("unshare")
            .args(["--net", "--mount", "--"])
            .arg(env::current_exe()?)
            .arg(FLAG)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start unshare (package util-linux)")?;
        let input = child.stdin.take().context("missing standard input")?;
        let output = child.stdout.take().context("missing standard output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Returns the time for each pod in milliseconds, when `at_once` are made together.
    pub(crate) fn measure(&mut self, at_once: u32) -> Result<f64> {
        writeln!(self.input, "{at_once}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().context("the floor's process failed")
    }

    pub(crate) fn stop(self) -> Result<()> {
        let Self {
            mut child, input, ..
        } = self;
        // The process ends with its input.
        drop(input);
        let status = child.wait()?;
        ensure!(status.success(), "the floor's process: {status}");
        Ok(())
    }
}

/// The body of the process: reads numbers of pods to make together, and answers with the time for
/// each pod.
#[expect(clippy::print_stdout, reason = "what is asked of it")]
pub(crate) fn serve() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut netlink = Netlink::open()?;
    netlink.execute([Request::create_bridge(&Bridge {
        name: "cni0",
        ..Bridge::default()
    })])?;
    let bridge = netlink.link("cni0")?.context("missing bridge cni0")?.index;
    netlink.execute([Request::up(bridge)])?;
    let mut serial = 0_u32;
    for line in std::io::stdin().lines() {
        let at_once: u32 = line?.parse()?;
        // The kernel dismantles a namespace some time after its name is gone, so no name is used
        // twice.
        let pods: Vec<_> = (serial..serial + at_once).collect();
        serial += at_once;
        let begun = Instant::now();
        thread::scope(|scope| -> Result<()> {
            let pods: Vec<_> = pods
                .iter()
                .map(|pod| (dir.path().join(pod.to_string()), *pod))
                .map(|(path, pod)| scope.spawn(move || interface(bridge, &path, pod)))
                .collect();
            pods.into_iter()
                .try_for_each(|pod| pod.join().map_err(|_| anyhow::anyhow!("a thread failed"))?)
        })?;
        let taken = begun.elapsed().as_secs_f64() * 1e3;
        for pod in &pods {
            netns::remove(&dir.path().join(pod.to_string()))?;
        }
        println!("{}", taken / f64::from(at_once));
    }
    Ok(())
}

fn interface(bridge: u32, path: &Path, pod: u32) -> Result<()> {
    netns::create(path)?;
    let pod_netns = netns::open(path)?;
    let name = format!("veth{pod}");
    Netlink::open()?.execute([Request::create_veth(&Veth {
        name: &name,
        peer_name: "eth0",
        peer_netns: Some(pod_netns.as_fd()),
        controller: Some(bridge),
        up: true,
        ..Veth::default()
    })])?;
    let mut inside = Netlink::open_in(path)?;
    let eth0 = inside.link("eth0")?.context("missing eth0")?.index;
    let address = Ipv4Net::new(Ipv4Addr::from_bits(FIRST.to_bits() + pod), 16)?;
    let address = address.into();
    inside.execute([Request::up(eth0), Request::add_address(eth0, address)])?;
    Ok(())
}
