//! CloudAllocator: nodes get the ranges that the cloud has assigned, whatever troubles the cloud
//! makes.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Result;
use podplane_api::{
    Object as _,
    core::{Event, Node, NodeSpec},
    meta::ObjectMeta,
};
use podplane_client::{Client, DeleteParams, ListParams};
use podplane_tests::{
    Cluster, Network,
    apiserver::Apiserver,
    builder, eventually,
    pods::running,
    programs::{finish, podplane},
    secure::SecureApiserver,
    service::Service,
};

/// An instance with one interface on the network of pods.
fn instance(id: &str, range: &str) -> String {
    format!(
        "- providerID: {id}\n  networkInterfaces:\n  - name: nic0\n    aliasIpRanges:\n    - ipCidrRange: {range}\n"
    )
}

/// An API server, a cloud and a controller between them.
struct CloudFixture {
    dir: tempfile::TempDir,
    client: Client,
    _services: (Apiserver, Service, Service),
}

impl CloudFixture {
    async fn start(instances: &str, troubles: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = cloud_file(dir.path(), instances)?;
        let apiserver = Apiserver::start(dir.path()).await?;
        let local = "127.0.0.1:0";
        let open = "--authentication=none";
        let args = [&["--file", &file, open], troubles].concat();
        let cloud = Service::start("cloud", local, dir.path(), &args).await?;
        let args = [
            "--server",
            apiserver.address(),
            "--allocate-node-cidrs",
            "--cidr-allocator-type=CloudAllocator",
            "--cloud-endpoint",
            cloud.address(),
        ];
        let controller = Service::start("ipam-controller", local, dir.path(), &args).await?;
        Ok(Self {
            dir,
            client: apiserver.client()?,
            _services: (apiserver, cloud, controller),
        })
    }

    async fn add_node(&self, name: &str, provider_id: Option<&str>) -> Result<()> {
        let node = node(name, provider_id);
        self.client.all::<Node>().create(&node).await?;
        Ok(())
    }

    async fn node_until(&self, name: &str, what: &str, enough: impl Fn(&Node) -> bool) -> Node {
        let read = || async { self.client.all::<Node>().get(name).await };
        let found = eventually(what, read, |node| node.as_ref().is_ok_and(&enough)).await;
        found.expect("it was just there")
    }

    /// Waits for a warning about a node, and returns its message.
    async fn warned(&self, node: &str, reason: &str) -> String {
        let events = self.client.namespaced::<Event>("default");
        let list = || async {
            let listed = events.list(&ListParams::default()).await.ok()?;
            let of_node = listed.items.into_iter().find(|event| {
                event.involved_object.name.as_deref() == Some(node)
                    && event.reason.as_deref() == Some(reason)
                    && event.type_.as_deref() == Some("Warning")
            });
            of_node?.message
        };
        let found = eventually(&format!("{reason} of {node}"), list, Option::is_some).await;
        found.unwrap_or_default()
    }
}

fn cloud_file(dir: &Path, instances: &str) -> Result<String> {
    let file = dir.join("cloud.yaml");
    fs::write(&file, format!("instances:\n{instances}"))?;
    Ok(file.display().to_string())
}

/// Starts a cloud with TLS and the certificates of `pki` in the directory.
async fn secure_cloud(dir: &Path, flags: &[&str]) -> Result<Service> {
    let pki = dir.join("pki");
    let pair = pki.join("serving-cloud.pem").display().to_string();
    let authority = pki.join("ca.crt").display().to_string();
    let own = [
        "--tls-cert-file",
        &pair,
        "--tls-private-key-file",
        &pair,
        "--client-ca-file",
        &authority,
    ];
    let cloud = Service::start("cloud", "127.0.0.1:0", dir, &[&own, flags].concat()).await?;
    assert!(
        cloud.address().starts_with("https://"),
        "{}",
        cloud.address()
    );
    Ok(cloud)
}

fn node(name: &str, provider_id: Option<&str>) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: provider_id.map(Into::into),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

fn blocks(node: &Node) -> Vec<&str> {
    let spec = node.spec.iter();
    spec.flat_map(|spec| spec.pod_cidrs.iter().flatten().map(String::as_str))
        .collect()
}

fn reason(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|c| c.type_ == "NetworkUnavailable")?;
    (found.status == "False").then_some(found.reason.as_deref()?)
}

#[tokio::test]
async fn nodes_get_their_ranges_despite_throttling_errors_and_delays() -> Result<()> {
    const NODES: usize = 30;
    let id = |n: usize| format!("gce://demo/zone-a/node-{n}");
    let range = |n: usize| format!("10.244.{n}.0/24");
    let mut instances = String::new();
    for n in 0..NODES {
        instances += &instance(&id(n), &range(n));
    }
    writeln!(
        instances,
        "  - name: nic1\n    network: red\n    aliasIpRanges:\n    - ipCidrRange: 192.168.7.0/26"
    )?;
    let troubles = "--latency 5ms --jitter 20ms --qps 100 --burst 20 --error-rate 0.1 --late-ranges 600ms --seed 5";
    let troubles: Vec<&str> = troubles.split(' ').collect();
    let world = CloudFixture::start(&instances, &troubles).await?;
    for n in 0..NODES {
        world.add_node(&format!("node-{n}"), Some(&id(n))).await?;
    }
    for n in 0..NODES {
        let done = |node: &Node| !blocks(node).is_empty() && reason(node) == Some("RouteCreated");
        let node = world
            .node_until(&format!("node-{n}"), "its range and condition", done)
            .await;
        assert_eq!(blocks(&node), [range(n)]);
    }
    let last = format!("node-{}", NODES - 1);
    let has_capacity = |node: &Node| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.capacity.is_some())
    };
    let last = world.node_until(&last, "a resource", has_capacity).await;
    let capacity = last.status.and_then(|status| status.capacity);
    let capacity = capacity.unwrap_or_default();
    assert_eq!(capacity["networking.gke.io.networks/red.IP"].0, "32");
    let message = world.warned("node-0", "CIDRNotAvailable").await;
    assert_eq!(message, "Node node-0 status is now: CIDRNotAvailable");
    Ok(())
}

#[tokio::test]
async fn warns_about_missing_ranges_and_assigns_them_later() -> Result<()> {
    let world = CloudFixture::start(&instance("gce://a", "10.244.1.0/24"), &[]).await?;
    world.add_node("nameless", None).await?;
    world.add_node("late", Some("gce://late")).await?;
    for name in ["nameless", "late"] {
        let message = world.warned(name, "CIDRNotAvailable").await;
        assert_eq!(
            message,
            format!("Node {name} status is now: CIDRNotAvailable")
        );
    }
    let nodes = world.client.all::<Node>();
    // Somebody who knows the instance writes its id.
    let named = async || {
        let mut node = nodes.get("nameless").await?;
        node.spec.get_or_insert_default().provider_id = Some("gce://a".into());
        nodes.update(&node).await
    };
    eventually("the provider's id is written", named, Result::is_ok).await?;
    // The cloud gets an instance.
    let both = [
        ("gce://a", "10.244.1.0/24"),
        ("gce://late", "10.244.2.0/24"),
    ];
    let both: String = both.map(|(id, range)| instance(id, range)).concat();
    cloud_file(world.dir.path(), &both)?;
    for (name, range) in [("nameless", "10.244.1.0/24"), ("late", "10.244.2.0/24")] {
        let has = |node: &Node| blocks(node) == [range];
        world.node_until(name, "its range", has).await;
    }
    Ok(())
}

#[tokio::test]
async fn assigns_a_duplicate_range_of_the_cloud_once() -> Result<()> {
    let twice = ["gce://a", "gce://b"].map(|id| instance(id, "10.244.1.0/24"));
    let world = CloudFixture::start(&twice.concat(), &[]).await?;
    world.add_node("a", Some("gce://a")).await?;
    world
        .node_until("a", "its range", |node| !blocks(node).is_empty())
        .await;
    world.add_node("b", Some("gce://b")).await?;
    let message = world.warned("b", "CIDRAssignmentFailed").await;
    assert_eq!(message, "Node b status is now: CIDRAssignmentFailed");
    let message = world.warned("b", "CloudRangeRefused").await;
    assert!(
        message.contains("overlaps 10.244.1.0/24 of node \"a\""),
        "{message}"
    );
    let nodes = world.client.all::<Node>();
    assert!(blocks(&nodes.get("b").await?).is_empty());
    nodes.delete("a", &DeleteParams::default()).await?;
    let node = world.node_until("b", "the range that is free now", |node| {
        !blocks(node).is_empty()
    });
    assert_eq!(node.await.name(), "b");
    Ok(())
}

#[tokio::test]
async fn the_controller_shows_the_cloud_its_certificate() -> Result<()> {
    let secure = SecureApiserver::start(&[]).await?;
    secure.issue("serving/cloud");
    let file = cloud_file(&secure.path(""), &instance("gce://a", "10.244.1.0/24"))?;
    let cloud = secure_cloud(&secure.path(""), &["--file", &file]).await?;
    let flags = [
        "--allocate-node-cidrs",
        "--cidr-allocator-type=CloudAllocator",
        "--cloud-endpoint",
        cloud.address(),
    ];
    let client = Client::connect(&format!("unix:{}", secure.text("apiserver.sock")).parse()?)?;
    let nodes = client.all::<Node>();
    nodes.create(&node("a", Some("gce://a"))).await?;

    // The scheduler may not ask the cloud.
    let pair = secure.text("pki/scheduler.pem");
    let other = [
        "--cloud-client-certificate",
        &pair,
        "--cloud-client-key",
        &pair,
    ];
    let other = [&flags[..], &other].concat();
    let start = |flags| secure.service("ipam-controller", "ipam-controller", flags);
    let controller = start(&other).await?;
    let log = secure.path("ipam-controller.log");
    let read = || async { fs::read_to_string(&log).unwrap_or_default() };
    let refused = |log: &String| {
        let user = "forbidden: User \"system:kube-scheduler\" cannot post path";
        log.replace('\\', "").contains(user)
    };
    eventually("the cloud refuses the scheduler", read, refused).await;
    controller.kill()?;
    assert!(blocks(&nodes.get("a").await?).is_empty());

    let _controller = start(&flags).await?;
    let read = || async { nodes.get("a").await };
    let has = |node: &Result<Node, _>| {
        node.as_ref()
            .is_ok_and(|node| blocks(node) == ["10.244.1.0/24"])
    };
    eventually("the node has its range", read, has).await?;
    Ok(())
}

#[test]
fn cloud_allocator_requires_a_cloud_endpoint() {
    let args = "ipam-controller --server 127.0.0.1:1 --allocate-node-cidrs --cidr-allocator-type CloudAllocator";
    let error = finish(&mut podplane(args.split(' '))).failed(1);
    let text =
        "--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not configured";
    assert!(error.contains(text), "{error}");
}

#[tokio::test]
async fn a_cluster_with_ranges_of_the_cloud_runs_pods() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ranges = [
        ("podplane://node-0", "10.20.7.0/28"),
        ("podplane://node-1", "10.20.9.0/24"),
    ];
    let instances: String = ranges.map(|(id, range)| instance(id, range)).concat();
    let file = cloud_file(dir.path(), &instances)?;
    // The cloud has an authority of its own.
    let pki = dir.path().join("pki").display().to_string();
    finish(&mut podplane(["certs", "init", "--dir", &pki])).ok();
    let issue = ["certs", "issue", "serving/cloud", "--dir", &pki];
    finish(&mut podplane(issue)).ok();
    let cloud = secure_cloud(dir.path(), &["--file", &file, "--late-ranges", "500ms"]).await?;
    let pair = format!("{pki}/ipam-controller.pem");
    let flags = format!(
        "--nodes 2 --cluster-cidr 10.20.0.0/16 --cidr-allocator-type CloudAllocator --cloud-endpoint {} --cloud-certificate-authority {pki}/ca.crt --cloud-client-certificate {pair} --cloud-client-key {pair}",
        cloud.address()
    );
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags(&flags)).await? else {
        return Ok(());
    };
    for (node, (_, range)) in cluster.nodes().await?.iter().zip(ranges) {
        assert_eq!(blocks(node), [range]);
    }
    cluster.podplane("run web --replicas 6 --wait").ok();
    let pods = cluster
        .pods_until("all run", |pods| running(pods) == 6)
        .await;
    let known = |ip: &str| ip.starts_with("10.20.7.") || ip.starts_with("10.20.9.");
    for pod in &pods {
        let ip = pod
            .status
            .as_ref()
            .and_then(|status| status.pod_ip.as_deref());
        assert!(ip.is_some_and(known), "{ip:?}");
    }
    cluster.finish().await
}
