//! API servers on Debian's etcd: two of them write at once, etcd is killed, clients have a list of
//! servers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _, Quantity,
    coordination::Lease,
    core::{ConfigMap, Endpoints, Event, Node, NodeSpec, NodeStatus, Pod, PodSpec},
    jiff::Timestamp,
    meta::{ObjectMeta, Time},
};
use podplane_client::{Api, ApiError, Binding, Client, DeleteParams, ListParams, Reason};
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};
use podplane_proto::fence::Fence;
use podplane_test_cluster::within;
use podplane_test_etcd::{Etcd, EtcdTls};
use podplane_tests::{
    apiserver::Apiserver,
    programs::{finish, podplane},
};
use tempfile::TempDir;

/// The resource that counts addresses.
const POD_IPS: &str = "podplane.io/pod-ips";

/// Rounds of each race.
fn rounds() -> usize {
    match std::env::var_os("PODPLANE_SOAK") {
        Some(_) => 1000,
        None => 40,
    }
}

/// API servers on one etcd.
struct Servers {
    etcd: Etcd,
    servers: Vec<(Apiserver, TempDir)>,
}

impl Servers {
    async fn start(count: usize) -> Result<Option<Self>> {
        Self::start_on(&[], count).await
    }

    /// On an etcd with these flags.
    async fn start_on(etcd_flags: &[&str], count: usize) -> Result<Option<Self>> {
        let Some(etcd) = Etcd::start(etcd_flags) else {
            return Ok(None);
        };
        let endpoint = format!("--etcd-endpoints={}", etcd.endpoint());
        let mut servers = Vec::new();
        for _ in 0..count {
            let dir = tempfile::tempdir()?;
            let flags = ["--store=etcd", endpoint.as_str()];
            servers.push((Apiserver::start_with(dir.path(), &flags).await?, dir));
        }
        Ok(Some(Self { etcd, servers }))
    }

    fn client(&self, number: usize) -> Result<Client> {
        self.servers[number].0.client()
    }
}

fn node(name: &str, cidr: &str) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(cidr.to_owned()),
            pod_cidrs: Some(vec![cidr.to_owned()]),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

/// A wide block through one server and a narrow one within it through the other: one is refused,
/// and says why.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_blocks_are_given_once() -> Result<()> {
    let Some(servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let (wide, narrow): (Api<Node>, Api<Node>) =
        (servers.client(0)?.all(), servers.client(1)?.all());
    for round in 0..rounds() {
        // A block is not free again at once: each round has its own.
        let range = format!("{}.{}", 10 + round / 256, round % 256);
        let wider = node(&format!("wide-{round}"), &format!("{range}.0.0/16"));
        let narrower = node(&format!("narrow-{round}"), &format!("{range}.7.0/24"));
        let answers = tokio::join!(wide.create(&wider), narrow.create(&narrower));
        let refused = match answers {
            (Ok(_), Err(error)) | (Err(error), Ok(_)) => error,
            other => anyhow::bail!("round {round}: {other:?}"),
        };
        let overlaps = format!("overlaps {range}.");
        ensure!(refused.message.contains(&overlaps), "{refused:?}");
    }
    Ok(())
}

/// One name through both servers.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_created_once() -> Result<()> {
    let Some(servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let clients: [Api<Pod>; 2] = [
        servers.client(0)?.namespaced("default"),
        servers.client(1)?.namespaced("default"),
    ];
    for round in 0..rounds() {
        let name = format!("pod-{round}");
        let wanted = pod(&name);
        let answers = tokio::join!(clients[0].create(&wanted), clients[1].create(&wanted));
        let (pod, error) = match answers {
            (Ok(pod), Err(error)) | (Err(error), Ok(pod)) => (pod, error),
            other => anyhow::bail!("round {round}: {other:?}"),
        };
        ensure!(error.is_already_exists(), "{error:?}");
        // Both read what was acknowledged at once.
        for pods in &clients {
            let read = pods.get(&name).await?;
            ensure!(read.metadata.uid == pod.metadata.uid);
        }
    }
    Ok(())
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    };
    pod.spec = Some(PodSpec {
        containers: vec![podplane_api::core::Container {
            name: "main".to_owned(),
            image: Some("pause".to_owned()),
            ..podplane_api::core::Container::default()
        }],
        ..PodSpec::default()
    });
    pod
}

/// Two pods for the last address of a node, each bound through another server.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_address_is_given_once() -> Result<()> {
    let Some(servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let nodes: Api<Node> = servers.client(0)?.all();
    let pods: [Api<Pod>; 2] = [
        servers.client(0)?.namespaced("default"),
        servers.client(1)?.namespaced("default"),
    ];
    let addresses = |count: &str| Some([(POD_IPS.to_owned(), Quantity(count.to_owned()))].into());
    for round in 0..rounds() {
        let name = format!("node-{round}");
        let mut one = node(
            &name,
            &format!("10.{}.{}.0/24", 1 + round / 256, round % 256),
        );
        one.status = Some(NodeStatus {
            allocatable: addresses("1"),
            capacity: addresses("1"),
            ..NodeStatus::default()
        });
        let created = nodes.create(&one).await?;
        one.metadata.resource_version = Some(created.resource_version().to_owned());
        nodes.update_status(&one).await?;
        let binding = |pod: &Pod| Binding {
            name: pod.name().to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            resource_version: None,
            node_name: name.clone(),
        };
        let one = pods[0].create(&pod(&format!("a-{round}"))).await?;
        let other = pods[1].create(&pod(&format!("b-{round}"))).await?;
        let (one, other) = (binding(&one), binding(&other));
        let answers = tokio::join!(pods[0].bind(&one), pods[1].bind(&other));
        let refused = match answers {
            (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
            other => anyhow::bail!("round {round}: {other:?}"),
        };
        ensure!(refused.message.contains(&name), "{refused:?}");
    }
    Ok(())
}

/// Two candidates take a Lease, each through another server, while its last holder still writes.
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_never_write_at_once() -> Result<()> {
    let Some(servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let clients = [servers.client(0)?, servers.client(1)?];
    let leases = clients
        .each_ref()
        .map(|client| client.namespaced::<Lease>("default"));
    // Each client writes for the holder of the Lease at that revision.
    let fenced = |lease: &Lease| -> Result<[Api<Pod>; 2]> {
        let fence = Fence {
            namespace: "default".to_owned(),
            name: lease.name().to_owned(),
            epoch: lease.resource_version().parse()?,
        };
        Ok(clients
            .each_ref()
            .map(|client| client.fenced(&fence).namespaced("default")))
    };
    for round in 0..rounds() {
        let mut lease = lease(&format!("leader-{round}"));
        held_by(&mut lease, "last");
        let lease = leases[0].create(&lease).await?;
        let last = fenced(&lease)?;
        let take = |number: usize| {
            let mut lease = lease.clone();
            held_by(&mut lease, &format!("candidate-{number}"));
            let leases = &leases[number];
            async move { leases.update(&lease).await }
        };
        let late = pod(&format!("late-{round}"));
        let (one, other, late) = tokio::join!(take(0), take(1), last[round % 2].create(&late));
        let (taken, refused) = match (one, other) {
            (Ok(taken), Err(error)) | (Err(error), Ok(taken)) => (taken, error),
            other => anyhow::bail!("round {round}: {other:?}"),
        };
        ensure!(refused.reason == Reason::Conflict, "{refused:?}");
        let revision = |text: &str| text.parse::<u64>();
        match late {
            Ok(pod) => ensure!(
                revision(pod.resource_version())? < revision(taken.resource_version())?,
                "{pod:?} was written after {taken:?}"
            ),
            Err(error) => ensure!(error.reason == Reason::FenceLost, "{error:?}"),
        }
        // From the answer on, the new leader writes through each server, and the last one through
        // none.
        for (number, (new, last)) in fenced(&taken)?.iter().zip(&last).enumerate() {
            new.create(&pod(&format!("new-{round}-{number}"))).await?;
            let refused = last.create(&pod(&format!("last-{round}-{number}"))).await;
            let refused = refused.unwrap_err();
            ensure!(refused.reason == Reason::FenceLost, "{refused:?}");
        }
    }
    Ok(())
}

fn lease(name: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        ..Lease::default()
    }
}

fn held_by(lease: &mut Lease, holder: &str) {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(holder.to_owned());
    spec.lease_duration_seconds = Some(15);
}

/// etcd is killed while clients write, and started again on its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_of_etcd_loses_no_acknowledged_write() -> Result<()> {
    let Some(mut servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let pods: Api<Pod> = servers.client(0)?.namespaced("default");
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        let name = format!("before-{number}");
        pods.create(&pod(&name)).await?;
        acknowledged.push(name);
    }
    servers.etcd.kill()?;
    // Reads that must be new need etcd; a write is refused, or its outcome is not known.
    let refused = pods.create(&pod("during")).await.unwrap_err();
    ensure!(
        matches!(refused.reason, Reason::Timeout | Reason::ServiceUnavailable),
        "{refused:?}"
    );
    // Reads that need not be new go on.
    let any = ListParams {
        resource_version: "0".to_owned(),
        ..ListParams::default()
    };
    ensure!(pods.list(&any).await?.items.len() == acknowledged.len());
    servers.etcd.start_again()?;
    for number in 0..2 {
        let pods: Api<Pod> = servers.client(number)?.namespaced("default");
        let list = || async { pods.list(&ListParams::default()).await };
        let listed = within(Duration::from_secs(30), "the list works", list, |list| {
            list.is_ok()
        })
        .await??;
        let names: Vec<_> = listed.items.iter().map(|pod| pod.name()).collect();
        for name in &acknowledged {
            ensure!(names.contains(&name.as_str()), "{name} is lost: {names:?}");
        }
    }
    Ok(())
}

/// A database that has reached its quota takes deletes, and writes again when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_refuses_writes_and_says_why() -> Result<()> {
    let Some(servers) = Servers::start_on(&["--quota-backend-bytes=8388608"], 1).await? else {
        return Ok(());
    };
    let maps: Api<ConfigMap> = servers.client(0)?.namespaced("default");
    let large = |number: usize| ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("large-{number}")),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([("text".to_owned(), "x".repeat(900_000))].into()),
        ..ConfigMap::default()
    };
    let mut created = 0;
    let refused = loop {
        match maps.create(&large(created)).await {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
        ensure!(created < 20, "the quota is not kept");
    };
    ensure!(
        refused.reason == Reason::ServiceUnavailable
            && refused.message.contains("disarm the alarm NOSPACE"),
        "{refused:?}"
    );
    let list = maps.list(&ListParams::default()).await?;
    ensure!(
        list.items
            .iter()
            .filter(|map| map.name().starts_with("large-"))
            .count()
            == created
    );
    for number in 0..created {
        maps.delete(&format!("large-{number}"), &DeleteParams::default())
            .await?;
    }
    let status = servers
        .etcd
        .etcdctl(&["endpoint", "status", "-w", "json"])?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let revision = &status[0]["Status"]["header"]["revision"];
    servers.etcd.etcdctl(&["compact", &revision.to_string()])?;
    servers.etcd.etcdctl(&["defrag"])?;
    servers.etcd.etcdctl(&["alarm", "disarm"])?;
    maps.create(&large(created)).await?;
    Ok(())
}

/// The certificate of the server for etcd expires; once the file is renewed, the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_read_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let authority = Authority::create("etcd", Timestamp::now())?;
    let file = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(file("ca.crt"), authority.certificate())?;
    let issue = |name: &str, usage: Usage, lifetime: Duration| -> Result<()> {
        let terms = CertificateTerms {
            subject: Subject::new(name, "etcd"),
            usage,
            names: match usage {
                Usage::Server | Usage::Both => vec!["127.0.0.1".parse()?],
                Usage::Client => Vec::new(),
            },
            lifetime,
        };
        let issued = authority.issue(&terms, Timestamp::now())?;
        std::fs::write(file(&format!("{name}.key")), issued.key)?;
        std::fs::write(file(&format!("{name}.crt")), issued.certificate)?;
        Ok(())
    };
    let day = Duration::from_secs(24 * 3600);
    issue("member", Usage::Server, day)?;
    let tls = EtcdTls {
        authority: file("ca.crt").into(),
        certificate: file("member.crt").into(),
        key: file("member.key").into(),
    };
    let Some(mut etcd) = Etcd::start_secured(&tls) else {
        return Ok(());
    };
    let lifetime = Duration::from_secs(10);
    let expired = tokio::time::Instant::now() + lifetime + Duration::from_secs(1);
    issue("client", Usage::Client, lifetime)?;
    let flags = [
        "--store=etcd".to_owned(),
        format!("--etcd-endpoints={}", etcd.endpoint()),
        format!("--etcd-cafile={}", file("ca.crt")),
        format!("--etcd-certfile={}", file("client.crt")),
        format!("--etcd-keyfile={}", file("client.key")),
    ];
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    let pods: Api<Pod> = server.client()?.namespaced("default");
    pods.create(&pod("before")).await?;
    // A connection outlives the certificate that it was made with, as with Kubernetes.
    tokio::time::sleep_until(expired).await;
    pods.create(&pod("after")).await?;
    etcd.kill()?;
    etcd.start_again()?;
    // The first one may have been sent on the old connection, and its outcome is not known; those
    // after it were not sent.
    let create = || async { pods.create(&pod("refused")).await.unwrap_err() };
    let is_refused = |error: &ApiError| error.reason == Reason::ServiceUnavailable;
    let patience = Duration::from_secs(60);
    let refused = within(patience, "a create is refused", create, is_refused).await?;
    ensure!(
        refused.message.contains("client.crt expired at"),
        "{refused:?}"
    );
    issue("client", Usage::Client, day)?;
    let create = || async { pods.create(&pod("renewed")).await };
    let done = |created: &Result<Pod, ApiError>| {
        created.is_ok()
            || created
                .as_ref()
                .is_err_and(|error| error.is_already_exists())
    };
    let _created = within(Duration::from_secs(60), "creates go on", create, done).await?;
    pods.get("renewed").await?;
    Ok(())
}

/// `podplane --server A,B`: the other one answers when one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn clients_go_on_at_the_next_server() -> Result<()> {
    let Some(mut servers) = Servers::start(2).await? else {
        return Ok(());
    };
    let addresses: Vec<_> = servers
        .servers
        .iter()
        .map(|(server, _)| server.address().to_owned())
        .collect();
    let list = addresses.join(",");
    let client = Client::connect(&list.parse()?)?;
    let pods: Api<Pod> = client.namespaced("default");
    pods.create(&pod("first")).await?;
    let (gone, _dir) = servers.servers.remove(0);
    gone.kill()?;
    let read = || async { pods.get("first").await };
    within(
        Duration::from_secs(10),
        "the other one answers",
        read,
        |pod| pod.is_ok(),
    )
    .await??;
    let shown = finish(&mut podplane(["--server", &list, "get", "pods"]));
    ensure!(shown.stdout.contains("first"), "{shown:?}");
    Ok(())
}

/// The Service `kubernetes` has the addresses of all servers that run.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_those_of_running_servers() -> Result<()> {
    let Some(etcd) = Etcd::start(&[]) else {
        return Ok(());
    };
    let endpoint = format!("--etcd-endpoints={}", etcd.endpoint());
    let start = async |dir: &TempDir, address: &str| {
        let own = format!("--advertise-address={address}");
        let range = "--service-cluster-ip-range=10.96.0.0/24";
        let flags = ["--store=etcd", endpoint.as_str(), own.as_str(), range];
        Apiserver::start_with(dir.path(), &flags).await
    };
    let (dir, other_dir) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let staying = start(&dir, "192.0.2.1").await?;
    let dying = start(&other_dir, "192.0.2.2").await?;
    let endpoints: Api<Endpoints> = staying.client()?.namespaced("default");
    let published = || async {
        let found = endpoints.get("kubernetes").await;
        let subsets = found.ok().and_then(|found| found.subsets);
        let subsets = subsets.into_iter().flatten();
        let mut addresses: Vec<_> = subsets
            .flat_map(|subset| subset.addresses.unwrap_or_default())
            .map(|address| address.ip)
            .collect();
        addresses.sort();
        addresses
    };
    let both = ["192.0.2.1", "192.0.2.2"];
    let patience = Duration::from_secs(60);
    within(patience, "both are published", published, |it| *it == both).await?;
    dying.kill()?;
    within(patience, "the dead one is removed", published, |it| {
        *it == both[..1]
    })
    .await?;
    let _again = start(&other_dir, "192.0.2.2").await?;
    within(patience, "it is back", published, |it| *it == both).await?;
    Ok(())
}

/// Events have leases of etcd, and nothing else has.
#[tokio::test(flavor = "multi_thread")]
async fn events_expire_by_leases() -> Result<()> {
    let Some(servers) = Servers::start(1).await? else {
        return Ok(());
    };
    let events: Api<Event> = servers.client(0)?.namespaced("default");
    let mut event = Event::default();
    event.metadata.name = Some("seen".to_owned());
    event.metadata.namespace = Some("default".to_owned());
    event.involved_object.namespace = Some("default".to_owned());
    event.last_timestamp = Some(Time(Timestamp::now()));
    events.create(&event).await?;
    servers
        .client(0)?
        .namespaced("default")
        .create(&pod("seen"))
        .await?;
    let lease = |key: &str| -> Result<u64> {
        let found = servers.etcd.etcdctl(&["get", "-w", "json", key])?;
        let found: serde_json::Value = serde_json::from_str(&found)?;
        let found = &found["kvs"][0];
        ensure!(found["key"].is_string(), "{key} is not in etcd: {found}");
        Ok(found["lease"].as_u64().unwrap_or(0))
    };
    ensure!(lease("/podplane/data/registry/events/default/seen")? > 0);
    ensure!(lease("/podplane/data/registry/pods/default/seen")? == 0);
    Ok(())
}

/// A store moves to etcd and back; clients with revisions of before list again.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_to_etcd_and_back() -> Result<()> {
    let Some(etcd) = Etcd::start(&[]) else {
        return Ok(());
    };
    let (dir, of_server, back) = (
        tempfile::tempdir()?,
        tempfile::tempdir()?,
        tempfile::tempdir()?,
    );
    let server = Apiserver::start(dir.path()).await?;
    let pods: Api<Pod> = server.client()?.namespaced("default");
    let before = pods.create(&pod("kept")).await?;
    ensure!(server.terminated().await?);

    let endpoint = etcd.endpoint();
    let store = |arguments: &[&str], data_dir: &std::path::Path| {
        let mut store = podplane(["store"]);
        store.args(arguments);
        store.args(["--etcd-endpoints", &endpoint, "--data-dir"]);
        finish(store.arg(data_dir))
    };
    store(&["migrate", "etcd"], dir.path()).ok();
    let again = store(&["migrate", "etcd"], dir.path());
    ensure!(
        again.code == Some(1) && again.stderr.contains("/podplane in etcd is not empty"),
        "{again:?}"
    );
    let checked = store(&["check"], dir.path()).ok();
    ensure!(checked.contains("is sound"), "{checked:?}");

    let flag = format!("--etcd-endpoints={endpoint}");
    let server = Apiserver::start_with(of_server.path(), &["--store=etcd", &flag]).await?;
    let pods: Api<Pod> = server.client()?.namespaced("default");
    let moved = pods.get("kept").await?;
    ensure!(moved.metadata.uid == before.metadata.uid);
    let old = ListParams {
        resource_version: before.resource_version().to_owned(),
        ..ListParams::default()
    };
    let refused = pods.list(&old).await.unwrap_err();
    ensure!(refused.reason == Reason::Expired, "{refused:?}");
    pods.create(&pod("new")).await?;
    ensure!(server.terminated().await?);

    let backup = back.path().join("backup");
    let file = backup.to_str().context("UTF-8")?;
    store(&["backup", file], dir.path()).ok();
    let home = back.path().join("home");
    store(&["migrate", "sled"], &home).ok();
    let server = Apiserver::start(&home).await?;
    let pods: Api<Pod> = server.client()?.namespaced("default");
    let names: Vec<_> = pods.list(&ListParams::default()).await?.items;
    let names: Vec<_> = names.iter().map(|pod| pod.name()).collect();
    ensure!(names == ["kept", "new"], "{names:?}");
    Ok(())
}

/// Errors of the flags name the flag and what to do.
#[tokio::test]
async fn bad_flags_are_refused_with_a_remedy() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().to_str().context("UTF-8")?;
    for (flags, want) in [
        (vec![], "--store etcd needs --etcd-endpoints"),
        (
            vec!["--etcd-endpoints=http://10.0.0.1:2379"],
            "secrets would cross the network in the clear; use https://",
        ),
        (
            vec!["--etcd-endpoints=https://10.0.0.1:2379"],
            "needs --etcd-cafile",
        ),
    ] {
        let mut apiserver = podplane(["apiserver", "--authentication=none", "--store=etcd"]);
        apiserver
            .args(["--listen=127.0.0.1:0", "--data-dir", data])
            .args(flags);
        let ended = finish(&mut apiserver);
        ensure!(
            ended.code != Some(0) && ended.stderr.contains(want),
            "{ended:?}"
        );
    }
    Ok(())
}
