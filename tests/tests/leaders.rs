//! Several schedulers and controller managers at one API server, and a cluster with standbys.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use anyhow::Result;
use podplane_api::{
    apps::Deployment,
    coordination::{Lease, LeaseSpec},
    core::{Node, Pod},
    pod_ips,
};
use podplane_client::{Client, ListParams};
use podplane_test_cluster::{fault::Fault, pods};
use podplane_tests::{
    Cluster, Network, apiserver::Apiserver, builder, eventually, pods::running, service::Service,
};
use serde_json::json;

/// Flags by which a leader that does not renew is replaced after three seconds.
const ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=300ms",
];
/// Flags by which a leader does not notice for half a minute that it was replaced.
const UNAWARE: [&str; 3] = [
    "--leader-elect-lease-duration=60s",
    "--leader-elect-renew-deadline=50s",
    "--leader-elect-retry-period=30s",
];

/// A Deployment with four pods.
const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
"#;

/// An API server, and candidates of one service.
struct ElectionFixture {
    service: &'static str,
    dir: tempfile::TempDir,
    client: Client,
    apiserver: Apiserver,
}

impl ElectionFixture {
    async fn start(service: &'static str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Pods are bound to a node without addresses.
        let apiserver = Apiserver::start_with(dir.path(), &["--ip-policy=off"]).await?;
        let client = apiserver.client()?;
        Ok(Self {
            service,
            dir,
            client,
            apiserver,
        })
    }

    /// The directory of the candidate with that identity.
    fn dir(&self, identity: &str) -> PathBuf {
        self.dir.path().join(identity)
    }

    async fn candidate(&self, identity: &str, flags: &[&str]) -> Result<Service> {
        let dir = self.dir(identity);
        fs::create_dir_all(&dir)?;
        let identity = format!("--leader-elect-identity={identity}");
        let args = ["--server", self.apiserver.address(), &identity];
        let args = [&args, flags].concat();
        Service::start(self.service, "127.0.0.1:0", &dir, &args).await
    }

    /// Waits until the process of that identity leads; returns its Lease.
    async fn led_by(&self, identity: &str) -> LeaseSpec {
        let name = format!("podplane-{}", self.service);
        let leases = self.client.namespaced::<Lease>("kube-system");
        let read = || async { leases.get(&name).await.ok()?.spec };
        let is_its = |spec: &Option<LeaseSpec>| {
            let holder = spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.as_deref());
            holder == Some(identity)
        };
        let what = format!("{identity} leads");
        eventually(&what, read, is_its).await.unwrap_or_default()
    }

    /// Gives the Lease to a process that does not exist, which raises the fence.
    async fn usurp(&self) -> Result<()> {
        let leases = self.client.namespaced::<Lease>("kube-system");
        let mut lease = leases.get(&format!("podplane-{}", self.service)).await?;
        lease.spec.get_or_insert_default().holder_identity = Some("usurper".into());
        leases.update(&lease).await?;
        Ok(())
    }

    fn log(&self, identity: &str) -> Result<String> {
        let file = self.dir(identity).join(format!("{}.log", self.service));
        Ok(fs::read_to_string(file)?)
    }

    async fn pods(&self) -> Vec<Pod> {
        let pods = self.client.all::<Pod>().list(&ListParams::default()).await;
        pods.map(|pods| pods.items).unwrap_or_default()
    }

    async fn pods_until(&self, what: &str, enough: impl Fn(&Vec<Pod>) -> bool) -> Vec<Pod> {
        eventually(what, || self.pods(), enough).await
    }
}

/// Schedulers, and a node that takes many pods.
struct Schedulers(ElectionFixture);

impl Schedulers {
    async fn start() -> Result<Self> {
        let fixture = ElectionFixture::start("scheduler").await?;
        let nodes = fixture.client.all::<Node>();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let mut node = nodes.create(&serde_json::from_value(node)?).await?;
        let room = json!({"allocatable": {"pods": "1000", "cpu": "1000", "memory": "1000Gi"}});
        node.status = serde_json::from_value(room)?;
        nodes.update_status(&node).await?;
        Ok(Self(fixture))
    }

    async fn candidate(&self, identity: &str, election: &[&str]) -> Result<Service> {
        let flags = [election, &["--ip-policy=off"]].concat();
        self.0.candidate(identity, &flags).await
    }

    async fn add_pods(&self, prefix: &str, number: usize) -> Result<()> {
        let api = self.0.client.namespaced::<Pod>("default");
        for n in 0..number {
            api.create(&pods::pod(&format!("{prefix}-{n}"))).await?;
        }
        Ok(())
    }

    async fn bound(&self, number: usize) {
        let what = format!("{number} pods are bound");
        let is_enough = |pods: &Vec<Pod>| bound(pods) == number;
        self.0.pods_until(&what, is_enough).await;
    }
}

fn bound(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| pods::node(pod) == "n").count()
}

/// Controller managers, and a Deployment.
struct ControllerManagers(ElectionFixture);

impl ControllerManagers {
    async fn start() -> Result<Self> {
        let fixture = ElectionFixture::start("controller-manager").await?;
        let web = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        });
        let deployments = fixture.client.namespaced::<Deployment>("default");
        deployments.create(&serde_json::from_value(web)?).await?;
        Ok(Self(fixture))
    }

    async fn scale(&self, replicas: i32) -> Result<()> {
        let deployments = self.0.client.namespaced::<Deployment>("default");
        loop {
            let mut web = deployments.get("web").await?;
            web.spec.get_or_insert_default().replicas = Some(replicas);
            match deployments.update(&web).await {
                // A controller wrote the status.
                Err(error) if error.is_conflict() => {}
                written => return Ok(written.map(drop)?),
            }
        }
    }

    async fn has_pods(&self, number: usize) {
        let what = format!("the Deployment has {number} pods");
        self.0.pods_until(&what, |pods| pods.len() == number).await;
    }
}

/// Checks that a new leader waited for the Lease to expire, and not much longer.
fn took_over_in_time(before: &LeaseSpec, after: &LeaseSpec) {
    assert_eq!(after.lease_transitions, Some(1));
    let time = |time: Option<&podplane_api::meta::MicroTime>| time.map(|time| time.0);
    let renewed = time(before.renew_time.as_ref()).expect("a leader renews");
    let acquired = time(after.acquire_time.as_ref()).expect("a leader acquires");
    let waited = Duration::try_from(acquired.duration_since(renewed)).expect("it came later");
    // The leader may have renewed the Lease once more after it was read.
    let most = Duration::from_secs(20);
    assert!(
        Duration::from_secs(3) <= waited && waited < most,
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_standby_binds_after_its_leader_was_killed() -> Result<()> {
    let world = Schedulers::start().await?;
    let first = world.candidate("first", &ELECTION).await?;
    world.add_pods("a", 5).await?;
    world.bound(5).await;
    let _second = world.candidate("second", &ELECTION).await?;
    let before = world.0.led_by("first").await;
    first.kill()?;
    world.add_pods("b", 5).await?;
    world.bound(10).await;
    took_over_in_time(&before, &world.0.led_by("second").await);
    Ok(())
}

/// When the leader goes on it believes that it leads, and pods wait.
#[tokio::test]
async fn a_resumed_former_scheduler_binds_nothing() -> Result<()> {
    let world = Schedulers::start().await?;
    let first = world.candidate("first", &ELECTION).await?;
    world.add_pods("a", 1).await?;
    world.bound(1).await;
    let second = world.candidate("second", &ELECTION).await?;
    first.pause()?;
    world.add_pods("b", 20).await?;
    world.bound(21).await;
    second.pause()?;
    world.add_pods("c", 20).await?;
    first.resume()?;
    assert!(!first.ended().await, "it leads no more");
    assert_eq!(bound(&world.0.pods().await), 21, "and has bound nothing");
    second.resume()?;
    // Either it was stopped for a shorter time, or it ends as well and is replaced.
    let _third = world.candidate("third", &ELECTION).await?;
    world.bound(41).await;
    Ok(())
}

#[tokio::test]
async fn the_fence_refuses_a_scheduler_that_does_not_know_of_its_successor() -> Result<()> {
    let world = Schedulers::start().await?;
    let first = world.candidate("first", &UNAWARE).await?;
    world.add_pods("a", 1).await?;
    world.bound(1).await;
    world.0.usurp().await?;
    world.add_pods("b", 1).await?;
    assert!(!first.ended().await, "it leads no more");
    assert_eq!(bound(&world.0.pods().await), 1);
    let log = world.0.log("first")?;
    assert!(log.contains("another process leads"), "{log}");
    assert!(!log.contains("trying again"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_standby_reconciles_after_its_leader_was_killed() -> Result<()> {
    let world = ControllerManagers::start().await?;
    let first = world.0.candidate("first", &ELECTION).await?;
    world.has_pods(2).await;
    let _second = world.0.candidate("second", &ELECTION).await?;
    let before = world.0.led_by("first").await;
    first.kill()?;
    world.scale(5).await?;
    world.has_pods(5).await;
    took_over_in_time(&before, &world.0.led_by("second").await);
    world.scale(1).await?;
    world.has_pods(1).await;
    Ok(())
}

#[tokio::test]
async fn a_resumed_former_controller_manager_creates_nothing() -> Result<()> {
    let world = ControllerManagers::start().await?;
    let first = world.0.candidate("first", &ELECTION).await?;
    world.has_pods(2).await;
    let second = world.0.candidate("second", &ELECTION).await?;
    first.pause()?;
    world.scale(5).await?;
    world.has_pods(5).await;
    second.pause()?;
    world.scale(9).await?;
    first.resume()?;
    assert!(!first.ended().await, "it leads no more");
    assert_eq!(world.0.pods().await.len(), 5, "and has created nothing");
    second.resume()?;
    // Either it was stopped for a shorter time, or it ends as well and is replaced.
    let _third = world.0.candidate("third", &ELECTION).await?;
    world.has_pods(9).await;
    Ok(())
}

#[tokio::test]
async fn the_fence_refuses_controllers_that_do_not_know_of_their_successor() -> Result<()> {
    let world = ControllerManagers::start().await?;
    let first = world.0.candidate("first", &UNAWARE).await?;
    world.has_pods(2).await;
    world.0.usurp().await?;
    world.scale(5).await?;
    assert!(!first.ended().await, "it leads no more");
    assert_eq!(world.0.pods().await.len(), 2);
    let log = world.0.log("first")?;
    assert!(log.contains("another process leads"), "{log}");
    Ok(())
}

/// The ready processes of an election that lead, and those that stand by.
async fn led(cluster: &Cluster) -> Result<(Vec<String>, Vec<String>)> {
    let (mut leaders, mut standbys) = (Vec::new(), Vec::new());
    for service in cluster.status().await?.services {
        let rest = cluster.http(&service.http_address)?;
        let metrics = rest.get("/metrics").await?.body;
        let mut lines = metrics.as_str().unwrap_or_default().lines();
        let status = lines.find_map(|line| line.strip_prefix("leader_election_master_status"));
        let Some(status) = status else {
            continue;
        };
        if rest.get("/readyz").await?.code != 200 {
            continue;
        }
        let lease = format!("podplane-{}", service.name.trim_end_matches("-standby"));
        let value = |value: u8| format!("{{name=\"{lease}\"}} {value}");
        match status {
            status if status == value(1) => leaders.push(service.name),
            status if status == value(0) => standbys.push(service.name),
            status => anyhow::bail!("{}: {status}", service.name),
        }
    }
    Ok((leaders, standbys))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_standbys_outlives_leaders_that_hang() -> Result<()> {
    let services = ["ipam-controller", "controller-manager", "scheduler"];
    let mut quick = builder(Network::Ledger).nodes(1).standby();
    for service in services {
        for (flag, value) in ELECTION.iter().filter_map(|flag| flag.split_once('=')) {
            quick = quick.extra_config(service, flag.trim_start_matches('-'), value);
        }
    }
    let Some(cluster) = Cluster::up(quick).await? else {
        return Ok(());
    };
    let elected = || async { led(&cluster).await.unwrap_or_default() };
    let one_of_each = |(leaders, standbys): &(Vec<String>, Vec<String>)| {
        leaders.len() == services.len() && standbys.len() == services.len()
    };
    let (leaders, standbys) = eventually("each has a leader", elected, one_of_each).await;

    let mut faults = Vec::new();
    for leader in &leaders {
        faults.push(cluster.pause(leader).await?);
    }
    cluster.podplane("node add late").ok();
    let blocks = || async {
        let nodes = cluster.nodes().await.unwrap_or_default();
        nodes.iter().flat_map(pod_ips::pod_cidrs).count()
    };
    eventually("both nodes have a block", blocks, |blocks| *blocks == 2).await;
    cluster.apply(WEB).await?;
    cluster
        .pods_until("all run", |pods| running(pods) == 4)
        .await;

    faults.into_iter().for_each(Fault::heal);
    let restarted = || async {
        let services = cluster.status().await.map(|status| status.services);
        let services = services.unwrap_or_default().into_iter();
        let restarted = services.filter(|service| service.restarts > 0);
        restarted.map(|service| service.name).collect::<Vec<_>>()
    };
    let are_leaders =
        |restarted: &Vec<String>| leaders.iter().all(|leader| restarted.contains(leader));
    eventually("the former leaders end", restarted, are_leaders).await;
    let is_swapped = |(now, others): &(Vec<String>, Vec<String>)| {
        let sorted = |names: &[String]| BTreeSet::from_iter(names.to_vec());
        sorted(now) == sorted(&standbys) && sorted(others) == sorted(&leaders)
    };
    eventually("they stand by", elected, is_swapped).await;

    let text = cluster.podplane("restart scheduler").ok();
    assert_eq!(text, "scheduler restarted\nscheduler-standby restarted\n");
    cluster.finish().await
}
