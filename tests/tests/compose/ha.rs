//! deploy/compose.ha.yaml: each container dies under load, and a majority of etcd's members at
//! once.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use podplane_api::{authentication::TokenRequest, core::ConfigMap};
use podplane_client::{Api, CredentialFlags, ListParams, Reason};
use podplane_test_cluster::within;
use podplane_tests::{
    peers,
    programs::{finish, podplane},
};
use serde_json::{Value, json};
use tokio::time;

use crate::{
    HEALED, PodPlaces, Project, SERVER, both_composes, daemon::Compose, image, leaving_nothing,
    lines, load::Load, soak,
};

/// The address at which compose publishes the second API server, in the daemon's network.
const SERVER_2: &str = "https://127.0.0.1:7180";
const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
const APISERVERS: [&str; 2] = ["apiserver", "apiserver-2"];
/// The services of which one process leads and another stands by.
const CONTROLLERS: [&str; 3] = ["scheduler", "controller-manager", "ipam-controller"];
/// The volumes with keys for etcd, and their files.
const ETCD_FILES: [(&str, &[&str]); 2] = [
    (
        "pki-apiserver",
        &[
            "apiserver.pem",
            "ca.crt",
            "etcd-ca.crt",
            "etcd-client.pem",
            "service-account.key",
            "tokens.csv",
        ],
    ),
    ("pki-etcd-1", &["ca.crt", "member.pem"]),
];
/// The acknowledged creates that show that writes go on.
const ENOUGH: usize = 20;
/// The time in which a list is not answered while etcd has no majority.
const UNANSWERED: Duration = Duration::from_secs(3);
/// The time after which it is refused: a server waits for an answer of etcd that other requests wait
/// for already, and then for another, 15 s each.
const REFUSED: Duration = Duration::from_secs(60);
/// The nodes at the begin.
const NODES: usize = 3;
/// The pods of each Deployment.
const REPLICAS: usize = 3;

#[test]
fn each_container_dies_under_load() {
    let Some(two) = both_composes() else {
        return;
    };
    let (Some(grpcurl), Some(etcd)) = (peers::grpcurl(), peers::etcd()) else {
        return;
    };
    leaving_nothing(async |daemon| {
        image::etcd(&daemon, &etcd)?;
        let mut project = Project::new(daemon)?;
        project.files = Some("compose.yaml:compose.ha.yaml");
        // The first docker-compose takes minutes more.
        let (composes, rounds) = match soak() {
            true => (vec![Compose::One, two], 5),
            false => (vec![two], 1),
        };
        for compose in composes {
            let begun = Instant::now();
            project.compose = compose;
            project.image_without_excess()?;
            let mut page = lines("docs/ha.md")?;
            let end = page.iter().position(|line| line.contains("compose down"));
            let end = page.split_off(end.context("the page ends the cluster")?);
            project.type_lines(&mut project.session(&grpcurl)?, &page)?;
            HaStory::begin(&project, begun).await?.tell(rounds).await?;
            // A shell lives for ten minutes at most.
            let settings = page.into_iter();
            let settings =
                settings.filter(|line| line.starts_with("cd ") || line.starts_with("export "));
            let lines: Vec<_> = settings.chain(end).collect();
            project.type_lines(&mut project.session(&grpcurl)?, &lines)?;
            project.nothing_is_left()?;
        }
        Ok(())
    });
}

/// The cluster under load.
struct HaStory<'a> {
    project: &'a Project,
    load: Load,
    nodes: usize,
    /// The Deployments that were made.
    deployments: usize,
    begun: Instant,
}

impl<'a> HaStory<'a> {
    /// Shows how far the test is, and when.
    #[expect(clippy::print_stderr, reason = "a test")]
    fn note(&self, what: impl Display) {
        eprintln!("{:6.1} s: {what}", self.begun.elapsed().as_secs_f64());
    }

    async fn begin(project: &'a Project, begun: Instant) -> Result<Self> {
        project.nodes_are(NODES).await?;
        each_has_its_own_files(project)?;
        etcd_trusts_its_own_authority_alone(project)?;
        a_token_of_one_server_is_valid_at_the_other(project).await?;
        let both = [
            format!("{SERVER},{SERVER_2}"),
            format!("{SERVER_2},{SERVER}"),
        ];
        let load = Load::start(|number| project.client_of(&both[number % both.len()]))?;
        Ok(Self {
            project,
            load,
            nodes: NODES,
            deployments: 0,
            begun,
        })
    }

    #[expect(clippy::print_stderr, reason = "a test")]
    async fn tell(mut self, rounds: usize) -> Result<()> {
        self.note("the cluster is there");
        self.writes_go_on("nobody").await?;
        self.controllers_work().await?;
        for _ in 0..rounds {
            self.round().await?;
        }
        let placed = self.pods_run().await?;
        ensure!(placed.len() == self.deployments * REPLICAS);
        self.note("the load ends");
        let Self { load, begun, .. } = self;
        let summary = load.end().await?;
        eprintln!("{:6.1} s: {summary}", begun.elapsed().as_secs_f64());
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        // One after the other: a majority stays.
        for service in MEMBERS.iter().chain(&APISERVERS) {
            let killed = self.kill(service, 0).await?;
            self.is_well(&killed).await?;
        }
        self.a_majority_of_members_dies().await?;
        // The first of each service, then the second: one of them led.
        for number in 0..2 {
            let mut killed = Vec::new();
            for service in CONTROLLERS {
                killed.push(self.kill(service, number).await?);
            }
            self.controllers_work().await?;
            for container in killed {
                self.is_well(&container).await?;
            }
        }
        let before = self.pods_run().await?;
        let mut killed = Vec::new();
        for number in 0..NODES {
            killed.push(self.kill("node", number).await?);
        }
        for container in killed {
            self.is_well(&container).await?;
        }
        self.project.nodes_are(self.nodes).await?;
        let after = self.pods_run().await?;
        // A node that comes back has the same pods.
        let identities = |placed: &PodPlaces| -> BTreeMap<String, (String, String)> {
            let identity = placed
                .iter()
                .map(|(name, (node, uid, _))| (name.clone(), (node.clone(), uid.clone())));
            identity.collect()
        };
        ensure!(identities(&before) == identities(&after));
        Ok(())
    }

    /// Kills the process of a container, and waits until writes go on, and Docker has started it
    /// again. `docker kill` would keep the container down.
    async fn kill(&self, service: &str, number: usize) -> Result<String> {
        let containers = self.project.containers(service);
        let container = containers.get(number);
        let container = container.with_context(|| format!("{service} has {containers:?}"))?;
        self.is_well(container).await?;
        let was = self.project.inspect(container);
        let pid = was["State"]["Pid"].as_u64().context("its process")?;
        self.project.daemon.crash(pid)?;
        self.writes_go_on(service).await?;
        let look = || async { self.project.inspect(container) };
        let starts = |state: &Value| state["RestartCount"].as_u64();
        let what = format!("{service} is started again");
        within(HEALED, &what, look, |now| {
            starts(now) > starts(&was) && now["State"]["Running"] == true
        })
        .await?;
        self.note(format_args!("{service} was killed and is started again"));
        Ok(container.clone())
    }

    async fn is_well(&self, container: &str) -> Result<()> {
        let look = || async { self.project.inspect(container) };
        let what = format!("{container} is healthy");
        within(HEALED, &what, look, |now| {
            now["State"]["Health"]["Status"] == "healthy"
        })
        .await?;
        Ok(())
    }

    async fn writes_go_on(&self, killed: &str) -> Result<()> {
        let before = self.load.acknowledged()?;
        let what = format!("writes go on after the death of {killed}");
        let look = || async { self.load.acknowledged() };
        within(HEALED, &what, look, |now| {
            now.as_ref().map_or(true, |now| *now >= before + ENOUGH)
        })
        .await??;
        Ok(())
    }

    /// Proves that each controller works: a Deployment has pods, which are placed, and a new node
    /// has a block.
    async fn controllers_work(&mut self) -> Result<()> {
        let manifest = self.project.daemon.dir().join("deployment.json");
        let name = format!("front-{}", self.deployments);
        let labels = json!({"app": name});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "replicas": REPLICAS,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": "pause"}]},
                },
            },
        });
        fs::write(&manifest, deployment.to_string())?;
        self.project
            .podplane(&format!("create -f {}", manifest.display()))
            .ok();
        self.deployments += 1;
        self.nodes += 1;
        self.project
            .compose(&format!("up -d --scale node={}", self.nodes))
            .ok();
        self.project.nodes_are(self.nodes).await?;
        self.note(format_args!("{} nodes have blocks", self.nodes));
        self.pods_run().await?;
        self.note("the controllers work");
        Ok(())
    }

    /// Waits until all pods run, each with an address of its own, in its node's block.
    async fn pods_run(&self) -> Result<PodPlaces> {
        self.project.pods_are(self.deployments * REPLICAS).await
    }

    /// Two of three members are down: what must be new is not read, what need not be new is, and when
    /// they are back everything goes on.
    async fn a_majority_of_members_dies(&self) -> Result<()> {
        let both = format!("{SERVER},{SERVER_2}");
        let maps: Api<ConfigMap> = self.project.client_of(&both)?.namespaced("default");
        let containers = MEMBERS[..2].iter().map(|service| {
            let mut containers = self.project.containers(service);
            containers.pop().context("a container")
        });
        let containers = containers.collect::<Result<Vec<_>>>()?.join(" ");
        let docker = |action: &str| {
            let line = format!("{action} {containers}");
            self.project.daemon.docker(&line).ok();
        };
        docker("kill");
        self.note("a majority of members is down");
        let limit = if soak() { REFUSED } else { UNANSWERED };
        let newest = ListParams::default();
        match time::timeout(limit, maps.list(&newest)).await {
            Ok(Ok(_)) => bail!("a list was answered without a majority"),
            Ok(Err(error)) => ensure!(error.reason == Reason::ServiceUnavailable, "{error:?}"),
            Err(_elapsed) => ensure!(!soak(), "a list was not refused within {limit:?}"),
        }
        let any = ListParams {
            resource_version: "0".to_owned(),
            ..ListParams::default()
        };
        let known = maps.list(&any).await?.items.len();
        ensure!(known > ENOUGH, "{known} are known");
        docker("start");
        self.writes_go_on("a majority of members").await?;
        self.note("a majority of members is back");
        Ok(())
    }
}

/// The signing key is shared.
async fn a_token_of_one_server_is_valid_at_the_other(project: &Project) -> Result<()> {
    let request = TokenRequest::default();
    let client = project.client_of(SERVER)?;
    let look = || client.create_token("default", "default", &request);
    let made = within(HEALED, "a token", look, |made| made.is_ok()).await??;
    let token = project.daemon.dir().join("token");
    fs::write(
        &token,
        made.status
            .and_then(|status| status.token)
            .context("a token")?,
    )?;
    let credentials = CredentialFlags {
        token_file: Some(token),
        certificate_authority: project.administrator().certificate_authority,
        ..CredentialFlags::default()
    };
    let mut get = podplane(
        ["get", "pods"]
            .map(Into::into)
            .into_iter()
            .chain(credentials.arguments()),
    );
    let refused = finish(get.env("PODPLANE_SERVER", SERVER_2));
    // Known, and without rights.
    ensure!(
        refused
            .stderr
            .contains("system:serviceaccount:default:default"),
        "{refused:?}"
    );
    Ok(())
}

/// The administrator of the cluster may read nothing in etcd.
fn etcd_trusts_its_own_authority_alone(project: &Project) -> Result<()> {
    let get = |pair: &str| {
        project.daemon.docker(&format!(
            "run --rm --network podplane_default --volume podplane_pki:/pki:ro --env ETCDCTL_API=3 podplane-etcd etcdctl --endpoints https://etcd-1:2379 --cacert /pki/etcd/ca.crt --cert {pair} --key {pair} --command-timeout 3s get / --prefix --keys-only --limit 1"
        ))
    };
    get("/pki/etcd/etcd-client.pem").ok();
    let refused = get("/pki/admin.pem");
    ensure!(refused.code != Some(0), "{refused:?}");
    Ok(())
}

/// API servers have a key for etcd, members have theirs, and nobody else has one.
fn each_has_its_own_files(project: &Project) -> Result<()> {
    for (volume, want) in ETCD_FILES {
        let dir = project.daemon.volume(&format!("podplane_{volume}"));
        let mut files = Vec::new();
        for entry in fs::read_dir(&dir)? {
            files.push(entry?.file_name().to_string_lossy().into_owned());
        }
        files.sort();
        ensure!(files == want, "{volume}: {files:?}");
    }
    Ok(())
}
