//! Debian's containerd with runc, and images that are made here.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::{eventually, peers, programs::finish};

/// The image of pods, with busybox's programs in `/bin`.
pub const IMAGE: &str = "podplane.local/busybox:1";
const PAUSE: &str = "podplane.local/pause:1";
const BUSYBOX: &str = "/bin/busybox";
/// The programs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 5] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/bin/ctr", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    (BUSYBOX, "busybox-static"),
];
const HIERARCHIES: &str = "/sys/fs/cgroup";

/// A containerd with process, mount and network namespaces of its own, all of which end with it.
/// `/run` is a tmpfs that only it sees.
#[derive(Debug)]
pub struct Containerd {
    process: Child,
    dir: TempDir,
}

impl Containerd {
    /// Starts containerd as the runtime of a node, by `docs/containerd.md`: it makes its network
    /// from a template in `net.d` of the node's directory, with the node's podCIDR. `None` if
    /// `PODPLANE_SKIP` names it.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or the images cannot be imported.
    pub async fn start(node_dir: &Path) -> Result<Option<Self>> {
        let missing = PROGRAMS.iter().find(|(path, _)| !Path::new(path).exists());
        let install = missing.map_or_else(String::new, |(_, package)| {
            format!("apt-get install {package}")
        });
        if !peers::root() || !peers::require("containerd", missing.is_none(), &install) {
            return Ok(None);
        }
        let dir = tempfile::Builder::new()
            .prefix("podplane-containerd-")
            .tempdir()?;
        configure(dir.path(), node_dir)?;
        let log = fs::File::create(dir.path().join("log"))?;
        // The shell is process 1 there, and collects the shims.
        let script =
            "mount -t tmpfs tmpfs /run && ip link set lo up && containerd --config \"$0\"; exit $?";
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "sh", "-c", script])
            .arg(dir.path().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start setpriv (package util-linux)")?;
        let containerd = Self { process, dir };
        let answers = || async { containerd.ctr(&["version"]).is_ok() };
        eventually("containerd answers", answers, |answers| *answers).await;
        for (name, entrypoint) in [(IMAGE, "/bin/sh"), (PAUSE, "/bin/pause")] {
            let archive = image(containerd.dir.path(), name, entrypoint)?;
            let archive = archive.display().to_string();
            containerd.ctr(&["images", "import", &archive])?;
        }
        Ok(Some(containerd))
    }

    /// The flag of a kubelet that connects to it.
    pub fn endpoint(&self) -> String {
        format!("--cri-endpoint=unix:{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("containerd.sock")
    }

    fn ctr(&self, args: &[&str]) -> Result<()> {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.socket());
        let output = finish(ctr.args(["--namespace", "k8s.io"]).args(args));
        ensure!(output.code == Some(0), "ctr {args:?}: {output:?}");
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let tasks = self
            .dir
            .path()
            .join("state/io.containerd.runtime.v2.task/k8s.io");
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
        let left: Vec<_> = tasks.map(|task| task.file_name()).collect();
        _ = self.process.kill();
        _ = self.process.wait();
        // The kernel ends the containers, and nobody removes their cgroups.
        for hierarchy in fs::read_dir(HIERARCHIES).into_iter().flatten().flatten() {
            for id in &left {
                _ = fs::remove_dir(hierarchy.path().join("k8s.io").join(id));
            }
            _ = fs::remove_dir(hierarchy.path().join("k8s.io"));
        }
    }
}

fn configure(dir: &Path, node_dir: &Path) -> Result<()> {
    let net_d = node_dir.join("net.d");
    fs::create_dir_all(&net_d)?;
    let ranges = r#"{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}"#;
    let routes = r#"{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}"#;
    let networks = node_dir.join("networks");
    let networks = networks.display();
    let template = format!(
        r#"{{"cniVersion": "1.0.0", "name": "containerd-net", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "promiscMode": true,
   "ipam": {{"type": "host-local", "dataDir": "{networks}", "ranges": [{ranges}], "routes": [{routes}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}"#
    );
    fs::write(dir.join("net.template"), template)?;
    let (dir, net_d) = (dir.display(), net_d.display());
    // runc would fail where root may not lower the score, as without CAP_SYS_RESOURCE.
    let text = format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{net_d}"
conf_template = "{dir}/net.template"
"#
    );
    Ok(fs::write(format!("{dir}/config.toml"), text)?)
}

/// Makes an archive as `docker save` does, of an image with busybox.
fn image(dir: &Path, name: &str, entrypoint: &str) -> Result<PathBuf> {
    let dir = dir.join(name.replace('/', "-"));
    let bin = dir.join("root/bin");
    fs::create_dir_all(&bin)?;
    fs::create_dir(dir.join("root/tmp"))?;
    fs::copy(BUSYBOX, bin.join("busybox"))?;
    for applet in ["sh", "cat", "grep", "httpd", "sleep", "test", "wget"] {
        symlink("busybox", bin.join(applet))?;
    }
    fs::write(
        bin.join("pause"),
        "#!/bin/sh\nwhile :; do sleep 3600; done\n",
    )?;
    let run = |command: &mut Command| -> Result<String> {
        let output = finish(command.current_dir(&dir));
        ensure!(output.code == Some(0), "{command:?}: {output:?}");
        Ok(output.stdout)
    };
    run(Command::new("chmod").args(["755", "root/bin/pause"]))?;
    run(Command::new("tar").args([
        "--create",
        "--file",
        "layer.tar",
        "--directory",
        "root",
        ".",
    ]))?;
    let sum = run(Command::new("sha256sum").arg("layer.tar"))?;
    let (digest, _) = sum.split_once(' ').context("sha256sum: no digest")?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Entrypoint": [entrypoint], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    let files = ["manifest.json", "config.json", "layer.tar"];
    run(Command::new("tar")
        .args(["--create", "--file", "image.tar"])
        .args(files))?;
    Ok(dir.join("image.tar"))
}
