//! `deploy/compose.yaml` with Debian's docker.io, docker-compose 1.29 and `docker compose`: a
//! cluster of containers that heals when its processes are killed, grows and shrinks, and leaves
//! nothing behind.

#![expect(clippy::unwrap_used, reason = "a test")]

mod daemon;
mod ha;
mod image;
mod load;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_client::{Client, CredentialFlags, Endpoint, ListParams};
use podplane_ipam::invariants::{self, Violation};
use podplane_test_cluster::{pods, within, world};
use podplane_tests::{
    Machine,
    console::{Session, page},
    peers, processes_of,
    programs::{ProgramOutput, bin_dir, finish, podplane},
    prometheus::{PrometheusApi, ScrapeTarget},
};
use serde_json::Value;

use self::daemon::{Compose, Daemon};

/// The settings of each call of compose: an image that no registry is asked for.
const VARIABLES: [(&str, &str); 1] = [("PODPLANE_DOCKERFILE", "deploy/Dockerfile.prebuilt")];
/// The address at which compose publishes the API server, in the daemon's network.
const SERVER: &str = "https://127.0.0.1:7080";
/// The address at which compose publishes Prometheus.
const PROMETHEUS: &str = "127.0.0.1:9090";
/// The largest size of an image of the program under test, in bytes: only a gross mistake, such as
/// debug information, exceeds it. `cargo xtask dist`, which `cargo xtask soak` runs, holds the
/// published program, of the profile `dist`, to 60 MB (ADR 0017).
const MAX_IMAGE: u64 = 150_000_000;
/// The files of each service, in its volume.
const VOLUMES: [(&str, &[&str]); 7] = [
    ("apiserver", &["apiserver.pem", "ca.crt", "tokens.csv"]),
    (
        "controller-manager",
        &[
            "ca.crt",
            "ca.key",
            "controller-manager.pem",
            "serving-controller-manager.pem",
        ],
    ),
    (
        "ipam-controller",
        &[
            "ca.crt",
            "ipam-controller.pem",
            "serving-ipam-controller.pem",
        ],
    ),
    (
        "kernel-node",
        &[
            "bootstrap-token",
            "ca.crt",
            "route-agent.pem",
            "serving-node.pem",
        ],
    ),
    ("monitoring", &["ca.crt", "monitoring.pem"]),
    ("node", &["bootstrap-token", "ca.crt", "serving-node.pem"]),
    (
        "scheduler",
        &["ca.crt", "scheduler.pem", "serving-scheduler.pem"],
    ),
];
/// The time limit for a cluster to heal: a controller that was killed waits for the Lease of its
/// former process, and a pod for a node that comes back.
const HEALED: Duration = Duration::from_secs(120);

#[test]
fn ledger_nodes_come_and_go_and_the_page_is_true() {
    let Some(two) = both_composes() else {
        return;
    };
    let (Some(grpcurl), Some(prometheus)) = (peers::grpcurl(), peers::prometheus()) else {
        return;
    };
    leaving_nothing(async |daemon| {
        image::prometheus(&daemon, &prometheus)?;
        let mut project = Project::new(daemon)?;
        // The first docker-compose takes minutes more.
        let soak = soak().then_some(Compose::One);
        for compose in soak.into_iter().chain([two]) {
            project.compose = compose;
            project.image_without_excess()?;
            project.ledger_nodes().await?;
        }
        project.page(&grpcurl)
    });
}

#[test]
fn containers_with_interfaces_heal() {
    let Some(two) = both_composes() else {
        return;
    };
    let Some(prometheus) = peers::prometheus() else {
        return;
    };
    leaving_nothing(async |daemon| {
        image::prometheus(&daemon, &prometheus)?;
        let mut project = Project::new(daemon)?;
        project.compose = two;
        project.image_without_excess()?;
        project.kernel_nodes().await
    });
}

/// Returns true for the long form of the tests.
fn soak() -> bool {
    std::env::var_os("PODPLANE_SOAK").is_some()
}

/// The second compose, if both are there; `None` if `PODPLANE_SKIP` names docker or root.
fn both_composes() -> Option<Compose> {
    let install = "apt-get install docker.io docker-compose";
    if !peers::root() || !peers::require("docker", daemon::is_there(), install) {
        return None;
    }
    peers::compose().map(Compose::Two)
}

/// Runs a story on a daemon, and checks that the machine is afterwards as it was. Several of them
/// mostly wait side by side: what a daemon has is in namespaces of its own.
fn leaving_nothing(story: impl AsyncFnOnce(Daemon) -> Result<()> + Send) {
    let before = (Machine::now(), rules());
    // On a thread of its own, which moves into the daemon's network.
    let told = thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<PathBuf> {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build()?.block_on(async {
                let daemon = Daemon::start().await?;
                let dir = daemon.dir().to_owned();
                story(daemon).await?;
                Ok(dir)
            })
        });
        thread.join()
    });
    let dir = told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let dir = dir.unwrap();
    assert!(!dir.exists());
    let left = processes_of(&dir.to_string_lossy()).unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(before, (Machine::now(), rules()));
}

/// The machine's rules of nftables.
fn rules() -> String {
    finish(Command::new("nft").args(["list", "ruleset"])).ok()
}

/// The compose project, with a copy of its files and programs in the repository's layout.
#[derive(Debug)]
struct Project {
    daemon: Daemon,
    compose: Compose,
    /// The profiles, if not those of deploy/.env.
    profiles: Option<&'static str>,
    /// The compose files, if not compose.yaml alone.
    files: Option<&'static str>,
    deploy: PathBuf,
}

/// The places of pods, by name: node, UID and address.
type PodPlaces = BTreeMap<String, (String, String, String)>;

impl Project {
    fn new(daemon: Daemon) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let copy = daemon.dir().join("repository");
        let (deploy, release) = (copy.join("deploy"), copy.join("target/release"));
        fs::create_dir_all(&release)?;
        let mut files = Command::new("cp");
        files
            .arg("-a")
            .args([root.join("deploy"), root.join(".dockerignore")]);
        finish(files.arg(&copy)).ok();
        fs::copy(bin_dir().join("podplane"), release.join("podplane"))?;
        // A file that is not sent to the daemon.
        fs::write(copy.join("target/other"), vec![0; 1 << 20])?;
        Ok(Self {
            daemon,
            compose: Compose::One,
            profiles: None,
            files: None,
            deploy,
        })
    }

    fn compose(&self, args: &str) -> ProgramOutput {
        let profiles = self.profiles.map(|profiles| ("COMPOSE_PROFILES", profiles));
        let files = self.files.map(|files| ("COMPOSE_FILE", files));
        let variables: Vec<_> = VARIABLES.into_iter().chain(profiles).chain(files).collect();
        self.daemon
            .compose(&self.compose, &self.deploy, &variables, args)
    }

    fn podplane(&self, args: &str) -> ProgramOutput {
        let credentials = self.administrator().arguments();
        let args = args.split_whitespace().map(OsString::from);
        finish(podplane(args.chain(credentials)).env("PODPLANE_SERVER", SERVER))
    }

    /// The administrator's files, in the volume of the service `certs`.
    fn administrator(&self) -> CredentialFlags {
        let pki = self.daemon.volume("podplane_pki");
        let pair = pki.join("admin.pem");
        CredentialFlags {
            certificate_authority: Some(pki.join("ca.crt")),
            client_certificate: Some(pair.clone()),
            client_key: Some(pair),
            ..CredentialFlags::default()
        }
    }

    fn client(&self) -> Result<Client> {
        self.client_of(SERVER)
    }

    /// A client of these servers.
    fn client_of(&self, servers: &str) -> Result<Client> {
        let server: Endpoint = servers.parse()?;
        Ok(Client::connect(
            &server.with_credentials(&self.administrator())?,
        )?)
    }

    /// The pods that run.
    async fn placed(&self) -> Result<PodPlaces> {
        let pods = self.client()?.all::<Pod>();
        let all = pods.list(&ListParams::default()).await?;
        let place = |pod: &Pod| {
            let (node, uid, ip) = (pods::node(pod), pod.uid(), pods::ip(pod));
            (pod.name().into(), (node.into(), uid.into(), ip.into()))
        };
        Ok(pods::in_phase(&all.items, "Running").map(place).collect())
    }

    /// Each service sees its own files and nothing else, and the certificates stay what they are
    /// when `certs` runs again.
    fn each_has_its_own_files(&self) -> Result<()> {
        let read = |volume: &str| -> Result<BTreeMap<String, Vec<u8>>> {
            let dir = self.daemon.volume(volume);
            let files = fs::read_dir(&dir)?.map(|entry| {
                let path = entry?.path();
                let name = path.file_name().context("a name")?;
                Ok((name.to_string_lossy().into_owned(), fs::read(&path)?))
            });
            files.collect()
        };
        let all = || -> Result<BTreeMap<&str, BTreeMap<String, Vec<u8>>>> {
            let volumes = VOLUMES.iter().map(|(service, _)| {
                let files = read(&format!("podplane_pki-{service}"))?;
                Ok((*service, files))
            });
            volumes.collect()
        };
        let first = all()?;
        for (service, want) in VOLUMES {
            let files: Vec<_> = first[service].keys().map(String::as_str).collect();
            ensure!(files == want, "{service}: {files:?}");
        }
        self.compose("run --rm -T certs certs init --dir /pki --san apiserver")
            .ok();
        self.compose("up -d").ok();
        ensure!(all()? == first, "`certs` changed files that were good");
        Ok(())
    }

    fn image_without_excess(&self) -> Result<()> {
        // `up` would build the same image for each service.
        self.compose("build certs").ok();
        let image = self.inspect("podplane");
        let size = image["Size"].as_u64().context("the image's size")?;
        ensure!(size < MAX_IMAGE, "the image has {size} bytes");
        Ok(())
    }

    /// Runs the command lines of docs/compose.md, one after the other.
    fn page(&self, grpcurl: &Path) -> Result<()> {
        let mut session = self.session(grpcurl)?;
        self.type_lines(&mut session, &lines("docs/compose.md")?)?;
        self.nothing_is_left()
    }

    /// A shell in the repository's copy.
    fn session(&self, grpcurl: &Path) -> Result<Session> {
        let path = std::env::var("PATH")?;
        let path = format!("{}:{}:{path}", bin_dir().display(), grpcurl.display());
        let repository = self.deploy.parent().context("the repository's copy")?;
        let mut session = self.daemon.session(repository, &path)?;
        for (name, value) in VARIABLES {
            session.run(&format!("export {name}={value}"))?;
        }
        Ok(session)
    }

    fn type_lines(&self, session: &mut Session, lines: &[String]) -> Result<()> {
        for command in lines {
            if command == "cargo xtask build" {
                continue;
            }
            let line = self.daemon.typed(&self.compose, command)?;
            // A reader who is faster than the started containers types the line again.
            let mut done = session.run(&line)?;
            let first = done.shown.clone();
            let begun = Instant::now();
            while done.code != 0 && begun.elapsed() < HEALED {
                thread::sleep(Duration::from_secs(1));
                done = session.run(&line)?;
            }
            ensure!(
                done.code == 0,
                "$ {command}\n{first}\nand at last:\n{}",
                done.shown
            );
        }
        Ok(())
    }

    fn inspect(&self, what: &str) -> Value {
        let text = self.daemon.docker(&format!("inspect {what}")).ok();
        let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
        all.swap_remove(0)
    }

    /// The containers of a service, by the short ids that are their host names.
    fn containers(&self, service: &str) -> Vec<String> {
        let filter = format!("ps -aq --filter label=com.docker.compose.service={service}");
        let ids = self.daemon.docker(&filter).ok();
        ids.split_whitespace().map(Into::into).collect()
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes = self.client()?.all::<Node>();
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// Waits until there are this many nodes, all Ready.
    async fn nodes_are(&self, count: usize) -> Result<()> {
        let what = format!("{count} nodes, all Ready");
        let look = || self.nodes();
        within(HEALED, &what, look, |nodes| {
            nodes
                .as_ref()
                .is_ok_and(|nodes| nodes.len() == count && nodes.iter().all(is_ready))
        })
        .await??;
        Ok(())
    }

    /// Waits until this many pods run and no invariant is broken; returns their places.
    async fn pods_are(&self, count: usize) -> Result<PodPlaces> {
        let what = format!("{count} pods run");
        let placed = within(
            HEALED,
            &what,
            || self.placed(),
            |placed| placed.as_ref().is_ok_and(|placed| placed.len() == count),
        )
        .await??;
        let clean = |seen: &Result<Vec<Violation>>| seen.as_ref().is_ok_and(Vec::is_empty);
        within(HEALED, "no violation", || self.violations(), clean).await??;
        Ok(placed)
    }

    /// The broken invariants of addresses, by the objects and by the files in the nodes' volume.
    async fn violations(&self) -> Result<Vec<Violation>> {
        let view = tempfile::tempdir()?;
        let nodes = self.daemon.volume("podplane_nodes");
        symlink(nodes, view.path().join("nodes"))?;
        fs::write(view.path().join("cluster.json"), "{}")?;
        let world = world::observe(&self.client()?, view.path()).await?;
        Ok(invariants::check(&world))
    }

    /// Nodes whose pods have interfaces: pods reach each other, and every service heals.
    async fn kernel_nodes(&mut self) -> Result<()> {
        self.profiles = Some("kernel,observe");
        self.compose("up -d").ok();
        self.nodes_are(3).await?;
        self.all_are_observed(3).await?;
        self.podplane("run web --replicas 6 --wait").ok();
        let placed = self.pods_are(6).await?;
        self.reach(&placed)?;

        for service in ["apiserver", "controller-manager", "scheduler"] {
            self.crash(service).await?;
            assert_eq!(self.pods_are(6).await?, placed, "after {service}");
            self.podplane("run after --wait --timeout 60s").ok();
            self.podplane("delete pod after --wait").ok();
        }
        // The controller that gives nodes their blocks proves by the block of another node that it
        // works.
        self.crash("ipam-controller").await?;
        self.compose("up -d --scale kernel-node=4").ok();
        self.nodes_are(4).await?;
        assert_eq!(self.pods_are(6).await?, placed);

        // A node that is switched off and on has new sandboxes for the same pods.
        let node = &placed["web-0"].0;
        self.crash_container(node).await?;
        self.nodes_are(4).await?;
        let after = self.pods_are(6).await?;
        let identities = |placed: &PodPlaces| -> Vec<_> {
            let identity = |(name, (node, uid, _)): (&String, &(String, String, String))| {
                (name.clone(), node.clone(), uid.clone())
            };
            placed.iter().map(identity).collect()
        };
        assert_eq!(identities(&after), identities(&placed));
        self.reach(&after)?;
        self.down()
    }

    /// Nodes whose pods have addresses alone, in changing numbers.
    async fn ledger_nodes(&mut self) -> Result<()> {
        self.profiles = None;
        self.compose("up -d").ok();
        self.nodes_are(3).await?;
        self.each_has_its_own_files()?;
        let unasked = self.containers("prometheus");
        ensure!(unasked.is_empty(), "nobody asked for Prometheus");
        self.profiles = Some("ledger,observe");
        self.compose("up -d --scale node=10").ok();
        self.nodes_are(10).await?;
        self.all_are_observed(10).await?;
        self.podplane("run many --replicas 40 --wait").ok();
        let placed = self.pods_are(40).await?;
        let on: BTreeSet<_> = placed.values().map(|(node, ..)| node).collect();
        assert_eq!(on.len(), 10, "the pods are on all nodes");
        // Removed containers take their nodes along, and those their pods.
        self.compose("up -d --scale node=2").ok();
        self.nodes_are(2).await?;
        let left = self.containers("node");
        let stayed = placed.values().filter(|(node, ..)| left.contains(node));
        self.pods_are(stayed.count()).await?;
        self.all_are_observed(2).await?;
        self.down()
    }

    /// Prometheus reads the four services and both processes of this many nodes, with TLS, and its
    /// container has nothing but its own certificate and data.
    async fn all_are_observed(&self, nodes: usize) -> Result<()> {
        let services = ["apiserver", "controller-manager"].into_iter();
        let jobs = services.chain(vec!["cri"; nodes]);
        let jobs = jobs.chain(["ipam-controller"]).chain(vec!["node"; nodes]);
        let wanted: Vec<_> = jobs.chain(["scheduler"]).collect();
        let api = PrometheusApi::at(PROMETHEUS);
        let all_up = |targets: &Result<Vec<ScrapeTarget>>| {
            targets.as_ref().is_ok_and(|targets| {
                let jobs = targets.iter().map(|target| target.job.as_str());
                let is_up = |target: &ScrapeTarget| {
                    target.health == "up" && target.url.starts_with("https://")
                };
                jobs.eq(wanted.iter().copied()) && targets.iter().all(is_up)
            })
        };
        within(HEALED, "all are observed", || api.targets(), all_up).await??;

        let mut containers = self.containers("prometheus");
        let container = containers.pop().context("Prometheus")?;
        let look = || async { self.inspect(&container) };
        let healthy = |now: &Value| now["State"]["Health"]["Status"] == "healthy";
        let inspected = within(HEALED, "it says so", look, healthy).await?;
        let mounts = inspected["Mounts"].as_array().context("mounts")?;
        let names = mounts.iter().filter_map(|mount| mount["Name"].as_str());
        let names: BTreeSet<_> = names.collect();
        let own = BTreeSet::from(["podplane_metrics", "podplane_pki-monitoring"]);
        ensure!(names == own, "the volumes of Prometheus: {names:?}");
        let host = &inspected["HostConfig"];
        ensure!(host["ReadonlyRootfs"] == true, "{host}");
        ensure!(host["CapDrop"] == serde_json::json!(["ALL"]), "{host}");
        let published = &host["PortBindings"]["9090/tcp"];
        let local = serde_json::json!([{"HostIp": "127.0.0.1", "HostPort": "9090"}]);
        ensure!(*published == local, "{published}");
        Ok(())
    }

    /// Checks that one pod reaches another on another node: it pings it, and asks an API server
    /// that runs inside the other for its health.
    fn reach(&self, placed: &PodPlaces) -> Result<()> {
        let (from, (here, ..)) = placed.first_key_value().context("a pod")?;
        let other = placed.iter().find(|(_, (node, ..))| node != here);
        let (to, (there, _, address)) = other.context("a pod on another node")?;
        let inside = |node: &str, pod: &str, command: &str| {
            let exec = format!("exec {node} /bin/podplane exec {pod} -- /bin/podplane {command}");
            self.daemon.docker(&exec)
        };
        let ping = format!("exec {here} /bin/podplane ping {from} {address} --count 1");
        self.daemon.docker(&ping).ok();

        let pair = "/pki/serving-node.pem";
        let serve = format!(
            "/bin/podplane apiserver --store memory --listen 0.0.0.0:9000 --tls-cert-file {pair} --tls-private-key-file {pair}"
        );
        self.daemon
            .docker(&format!(
                "exec -d {there} /bin/podplane exec {to} -- {serve}"
            ))
            .ok();
        // The server may only just be starting, or be there from an earlier call.
        let ask = format!("health https://{address}:9000 --tls-server-name node");
        let answered = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(100));
            inside(here, from, &ask).code == Some(0)
        });
        ensure!(
            answered,
            "{from} does not reach a server in {to} at {address}"
        );
        Ok(())
    }

    /// Kills the process of a service that has one container, and waits until the service is
    /// healthy again.
    async fn crash(&self, service: &str) -> Result<()> {
        let mut containers = self.containers(service);
        let container = containers.pop().context("a container")?;
        self.crash_container(&container).await
    }

    async fn crash_container(&self, container: &str) -> Result<()> {
        let was = self.inspect(container);
        let pid = was["State"]["Pid"].as_u64().context("its process")?;
        self.daemon.crash(pid)?;
        let count = |inspected: &Value| inspected["RestartCount"].as_u64();
        let look = || async { self.inspect(container) };
        let what = format!("{container} is started again, and well");
        within(HEALED, &what, look, |now| {
            count(now) > count(&was) && now["State"]["Health"]["Status"] == "healthy"
        })
        .await?;
        Ok(())
    }

    fn down(&self) -> Result<()> {
        self.compose("down --volumes").ok();
        self.nothing_is_left()
    }

    fn nothing_is_left(&self) -> Result<()> {
        for what in [
            "ps -aq",
            "network ls -q --filter type=custom",
            "volume ls -q",
        ] {
            let left = self.daemon.docker(what).ok();
            ensure!(left.trim().is_empty(), "docker {what}: {left}");
        }
        Ok(())
    }
}

/// The command lines of a page of the repository.
fn lines(page_name: &str) -> Result<Vec<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(page_name);
    let steps = page(&fs::read_to_string(file)?).into_iter();
    Ok(steps.map(|step| step.command).collect())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut ready = conditions.filter(|c| c.type_ == "Ready");
    ready.any(|c| c.status == "True")
}
