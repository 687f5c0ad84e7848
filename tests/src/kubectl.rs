//! Stock kubectl, of several versions, as users run it.
//!
//! A [`KubectlCase`] is one command, or a few that belong together. [`each`] runs every case with
//! every version and reports all failures, so that one fault does not hide another.

use std::{
    any::Any,
    env, fs,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use podplane_test_cluster::DEADLINE;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Cluster, peers,
    programs::{ProgramOutput, finish},
};

/// The minor versions that have to work.
pub const VERSIONS: [u32; 3] = [29, 31, 33];

/// The versions that are run: the oldest and the newest, and all with `PODPLANE_SOAK=1`.
fn versions_to_run() -> Vec<u32> {
    let is_soak = env::var_os("PODPLANE_SOAK").is_some();
    let [oldest, .., newest] = VERSIONS;
    match is_soak {
        true => VERSIONS.to_vec(),
        false => vec![oldest, newest],
    }
}

/// The name of a command, and the test of it.
pub type KubectlCase = (&'static str, fn(&Kubectl));

/// A kubectl with a home, a cache, a namespace and a node of its own.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    home: TempDir,
    /// The cache of discovery. All cases of a version share it, as a user's commands do.
    cache: PathBuf,
    minor: u32,
    server: String,
    /// Its namespace, which is the context's.
    pub namespace: String,
}

impl Kubectl {
    /// Runs it with arguments that have no blanks.
    pub fn run(&self, args: &str) -> ProgramOutput {
        self.args(args.split_whitespace())
    }

    /// Runs it with arguments that may have blanks.
    pub fn args<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> ProgramOutput {
        finish(&mut self.command(args))
    }

    /// Runs it with a text on standard input.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn fed(&self, args: &str, input: &str) -> ProgramOutput {
        let mut child = self
            .command(args.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("a pipe was asked for");
        // A kubectl that does not read all of it prints the reason itself.
        _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        child.wait_with_output().expect("kubectl ends").into()
    }

    /// Runs it with an editor that is a shell script of this text, which gets the file as `$1`.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn edited(&self, args: &str, script: &str) -> ProgramOutput {
        let editor = self.file("editor.sh", &format!("#!/bin/sh\n{script}\n"));
        let mut command = self.command(args.split_whitespace());
        finish(command.env("KUBE_EDITOR", format!("sh {}", editor.display())))
    }

    /// Starts it with its output in a file. It runs until the returned value is dropped.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn start(&self, args: &str) -> RunningKubectl {
        let path = self.path("output");
        let output = fs::File::create(&path).expect("a file for the output");
        let both = output.try_clone().expect("a second handle");
        let mut command = self.command(args.split_whitespace());
        let child = command.stdout(output).stderr(both).spawn();
        RunningKubectl {
            child: child.expect("kubectl starts"),
            path,
        }
    }

    /// The object that `get … -o json` prints.
    ///
    /// # Panics
    ///
    /// If it fails, or prints invalid JSON.
    #[track_caller]
    pub fn json(&self, what: &str) -> Value {
        let text = self.run(&format!("get {what} -o json")).ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Writes a file into its home.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a file in the home directory");
        path
    }

    /// A path in its home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Applies a manifest.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.fed("apply -f -", manifest).ok()
    }

    /// Runs it until its result satisfies `enough`, and returns that.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    #[track_caller]
    pub fn until(&self, args: &str, enough: impl Fn(&ProgramOutput) -> bool) -> ProgramOutput {
        let end = Instant::now() + DEADLINE;
        loop {
            let seen = self.run(args);
            if enough(&seen) {
                return seen;
            }
            assert!(Instant::now() < end, "not yet: kubectl {args}: {seen:#?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs a pod and waits until it is Ready.
    #[track_caller]
    pub fn pod(&self, name: &str) {
        self.run(&format!("run {name} --image=registry.k8s.io/pause"))
            .ok();
        self.run(&format!("wait --for=condition=Ready pod/{name}"))
            .ok();
    }

    /// Its minor version.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// A name for a cluster-scoped object, which no other version uses.
    pub fn own(&self, name: &str) -> String {
        format!("{name}-{}", self.minor)
    }

    /// The node of this cluster that is this version's.
    ///
    /// # Panics
    ///
    /// If the version is none of [`VERSIONS`].
    pub fn node(&self) -> String {
        let place = VERSIONS.iter().position(|minor| *minor == self.minor);
        format!("node-{}", place.expect("one of the versions"))
    }

    /// The server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs another client in its place, with the same home and kubeconfig.
    pub fn client(&self, program: &Path, args: &str) -> ProgramOutput {
        finish(&mut self.program(program, args.split_whitespace()))
    }

    fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        self.program(&self.program, args)
    }

    fn program<'a>(&self, program: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("KUBECACHEDIR", &self.cache)
            // `edit` leaves a refused file there.
            .env("TMPDIR", self.home.path())
            .stdin(Stdio::null());
        command
    }
}

/// A kubectl that goes on in the background. Dropping it ends it.
#[derive(Debug)]
pub struct RunningKubectl {
    child: Child,
    path: PathBuf,
}

impl RunningKubectl {
    /// Waits until its output satisfies `enough`, and returns that.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    #[track_caller]
    pub fn until(&mut self, what: &str, enough: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let ended = self.child.try_wait().expect("its own child");
            let seen = fs::read_to_string(&self.path).unwrap_or_default();
            if enough(&seen) {
                return seen;
            }
            assert!(
                ended.is_none(),
                "kubectl ended ({ended:?}) before {what}: {seen}"
            );
            assert!(Instant::now() < end, "not yet: {what}: {seen}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until it ends by itself, and returns its code and output.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    #[track_caller]
    pub fn end(&mut self) -> (Option<i32>, String) {
        let end = Instant::now() + DEADLINE;
        loop {
            let seen = || fs::read_to_string(&self.path).unwrap_or_default();
            if let Some(status) = self.child.try_wait().expect("its own child") {
                return (status.code(), seen());
            }
            assert!(Instant::now() < end, "kubectl does not end: {}", seen());
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for RunningKubectl {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The order of the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionOrder {
    /// All versions at once, each with its own objects.
    Together,
    /// One version after the other, because they would disturb each other.
    InTurn,
}

/// Runs every case with every version on a cluster, each case in a namespace of its own. Does
/// nothing if `PODPLANE_SKIP` names kubectl.
///
/// # Panics
///
/// If a kubectl is missing; or at the end, with all failures, if any case failed.
pub fn each(cluster: &Cluster, order: VersionOrder, cases: &[KubectlCase]) {
    let Some(programs) = programs() else { return };
    // A single case can be picked, to debug it.
    let only = env::var("PODPLANE_CASE").unwrap_or_default();
    let caches = tempfile::Builder::new().prefix("pp-kubectl-").tempdir();
    let caches = caches.expect("a temporary directory");
    let of_version = |(minor, program): &(u32, PathBuf)| {
        let cache = caches.path().join(minor.to_string());
        let chosen = cases.iter().filter(|(name, _)| name.contains(&only));
        let failed = chosen.filter_map(|(name, case)| {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                case(&kubectl(cluster, program, *minor, &cache, name));
            }));
            let text = message(outcome.err()?);
            Some(format!("── kubectl 1.{minor}, {name}\n{text}"))
        });
        failed.collect::<Vec<_>>()
    };
    let failed: Vec<_> = match order {
        VersionOrder::InTurn => programs.iter().flat_map(of_version).collect(),
        VersionOrder::Together => thread::scope(|scope| {
            let running: Vec<_> = programs
                .iter()
                .map(|program| scope.spawn(move || of_version(program)))
                .collect();
            let ended = running.into_iter().flat_map(thread::ScopedJoinHandle::join);
            ended.flatten().collect()
        }),
    };
    assert!(
        failed.is_empty(),
        "{} of {} failed:\n\n{}",
        failed.len(),
        cases.len() * programs.len(),
        failed.join("\n\n")
    );
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => match panic.downcast::<&str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a panic without words".to_owned(),
        },
    }
}

/// A kubectl with a new namespace, named after the case.
fn kubectl(cluster: &Cluster, program: &Path, minor: u32, cache: &Path, case: &str) -> Kubectl {
    let named = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let text: String = case.to_ascii_lowercase().chars().map(named).collect();
    let mut namespace = text
        .split('-')
        .filter(|word| !word.is_empty())
        .take(4)
        .collect::<Vec<_>>()
        .join("-");
    namespace.truncate(30);
    let namespace = format!("{}-{minor}", namespace.trim_end_matches('-'));
    let home = tempfile::Builder::new().prefix("pp-kubectl-").tempdir();
    let kubeconfig = fs::read_to_string(cluster.data_dir().join("kubeconfig"));
    let kubeconfig = kubeconfig.expect("`podplane up` writes a kubeconfig");
    let server = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "));
    let kubectl = Kubectl {
        program: program.to_owned(),
        home: home.expect("a temporary directory"),
        cache: cache.to_owned(),
        minor,
        server: server.expect("a server in the kubeconfig").to_owned(),
        namespace,
    };
    let namespace = &kubectl.namespace;
    let context = kubeconfig.replace("namespace: default", &format!("namespace: {namespace}"));
    assert_ne!(context, kubeconfig, "the context has a namespace");
    kubectl.file("kubeconfig", &context);
    // JSON, because the protobuf of `create namespace` is a case of its own.
    let manifest =
        format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{namespace}"}}}}"#);
    kubectl.fed("create --validate=false -f -", &manifest).ok();
    kubectl
}

/// The program of each version, `kubectl.1.MINOR`: beside the file that `kubectl` links to (it may
/// be one that picks a version by the server's), or in `PATH`.
fn programs() -> Option<Vec<(u32, PathBuf)>> {
    let dirs: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let real = dirs
        .iter()
        .find_map(|dir| fs::canonicalize(dir.join("kubectl")).ok());
    let beside = real.iter().filter_map(|real| real.parent());
    let dirs: Vec<_> = beside
        .map(Path::to_owned)
        .chain(dirs.iter().cloned())
        .collect();
    let program = |minor| {
        let mut files = dirs
            .iter()
            .map(|dir| dir.join(format!("kubectl.1.{minor}")));
        (minor, files.find(|file| file.exists()))
    };
    let found: Vec<_> = versions_to_run().into_iter().map(program).collect();
    let missing: Vec<_> = found
        .iter()
        .filter(|(_, program)| program.is_none())
        .map(|(minor, _)| format!("kubectl.1.{minor}"))
        .collect();
    let install = format!(
        "put {} into a directory of PATH (https://dl.k8s.io/release/v1.MINOR.0/bin/linux/amd64/kubectl)",
        missing.join(", ")
    );
    peers::require("kubectl", missing.is_empty(), &install).then(|| {
        let all = found.into_iter();
        all.filter_map(|(minor, program)| Some((minor, program?)))
            .collect()
    })
}
