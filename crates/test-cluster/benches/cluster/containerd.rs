//! Debian's containerd with runc and a pause image that is built here.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::sandbox::CriServer;

const IMAGE: &str = "podplane.local/pause:1";
const PLUGINS: &str = "/usr/lib/cni";
/// The source of the pause program, which is static and linked as any Rust program is.
const PAUSE: &str = "fn main() { loop { std::thread::park(); } }";
/// The programs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 4] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/bin/ctr", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
];
const DEADLINE: Duration = Duration::from_secs(30);

/// A containerd of the bench's own, with process, mount and network namespaces of its own, all of
/// which end with it. Its directories are in a temporary one, and `/run` is a tmpfs that only it
/// sees.
pub(crate) struct Containerd {
    pub(crate) server: CriServer,
    process: Child,
    cgroup: String,
    dir: TempDir,
}

impl Containerd {
    /// Starts containerd with the CNI configuration in `net_d`, that of the node that it is
    /// compared with.
    pub(crate) async fn start(net_d: &Path) -> Result<Self> {
        for (program, package) in PROGRAMS {
            ensure!(
                Path::new(program).exists(),
                "missing {program}: apt-get install {package}"
            );
        }
        let dir = tempfile::Builder::new()
            .prefix("podplane-bench-")
            .tempdir()?;
        let path = dir.path();
        configure(path, net_d)?;
        let archive = pause_image(path).context("failed to build the pause image")?;
        let log = fs::File::create(path.join("log"))?;
        // The shell is process 1 there, and collects the shims.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "sh", "-c"])
            .arg("mount -t tmpfs tmpfs /run && ip link set lo up && containerd --config \"$0\"; exit $?")
            .arg(path.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start setpriv (package util-linux)")?;
        let socket = path.join("containerd.sock");
        let cgroup = format!("podplane-bench-{}", process.id());
        let containerd = Self {
            server: CriServer::at(&socket, &format!("/{cgroup}"))?,
            process,
            cgroup,
            dir,
        };
        let ready = tokio::time::timeout(DEADLINE, containerd.until_ready()).await;
        if ready.is_err() {
            let log = fs::read_to_string(containerd.dir.path().join("log"))?;
            let last = log.lines().last().unwrap_or_default();
            bail!("containerd is not ready after {DEADLINE:?}: {last}");
        }
        let mut import = Command::new("ctr");
        import.arg("--address").arg(&socket);
        run(import
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(archive))?;
        Ok(containerd)
    }

    async fn until_ready(&self) {
        // The CRI plugin is served some time after the socket exists.
        while !matches!(self.server.not_ready().await.as_deref(), Ok([])) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends containerd with everything that it started, and removes its cgroups.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()?;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        for hierarchy in fs::read_dir("/sys/fs/cgroup")? {
            let cgroup = hierarchy?.path().join(&self.cgroup);
            if cgroup.exists() {
                remove_cgroup(&cgroup)?;
            }
        }
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Nothing to do after `stop`; after an error, that error is reported already.
        _ = self.end();
    }
}

/// Removes a cgroup with its children: those of sandboxes that were not removed.
fn remove_cgroup(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(path).with_context(|| format!("failed to remove {}", path.display()))
}

fn configure(dir: &Path, net_d: &Path) -> Result<()> {
    let conf_dir = dir.join("net.d");
    fs::create_dir(&conf_dir)?;
    for entry in fs::read_dir(net_d).context("failed to read the node's CNI configuration")? {
        let entry = entry?;
        let mut config: Value = serde_json::from_slice(&fs::read(entry.path())?)?;
        for plugin in config["plugins"].as_array_mut().into_iter().flatten() {
            if plugin.get("ipam").is_some() {
                plugin["ipam"]["dataDir"] = json!(dir.join("networks"));
            }
        }
        fs::write(conf_dir.join(entry.file_name()), config.to_string())?;
    }
    let dir = dir.display();
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
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{dir}/net.d"
"#
    );
    Ok(fs::write(format!("{dir}/config.toml"), text)?)
}

/// Makes an archive as `docker save` does, of an image with one program.
fn pause_image(dir: &Path) -> Result<std::path::PathBuf> {
    let image = dir.join("image");
    fs::create_dir(&image)?;
    let mut rustc = Command::new("rustc");
    rustc.args(["--crate-name", "pause", "-", "-o"]);
    rustc.arg(image.join("pause"));
    rustc.args(["-C", "target-feature=+crt-static", "-C", "strip=symbols"]);
    let mut compiler = rustc.stdin(Stdio::piped()).spawn()?;
    let mut source = compiler.stdin.take().context("missing standard input")?;
    source.write_all(PAUSE.as_bytes())?;
    drop(source);
    let status = compiler.wait()?;
    ensure!(status.success(), "rustc: {status}");
    let tar = |archive: &str, files: &[&str]| {
        let mut tar = Command::new("tar");
        tar.current_dir(&image);
        run(tar.args(["--create", "--file", archive]).args(files))
    };
    tar("layer.tar", &["pause"])?;
    let mut sum = Command::new("sha256sum");
    let sum = run(sum.arg(image.join("layer.tar")))?;
    let (digest, _) = sum.split_once(' ').context("sha256sum: no digest")?;
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    fs::write(image.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    fs::write(image.join("manifest.json"), manifest.to_string())?;
    tar(
        "../pause.tar",
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(dir.join("pause.tar"))
}

/// The architecture by its name in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Runs a program to its end, and returns its standard output.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {text}{said}",
        output.status
    );
    Ok(text)
}
