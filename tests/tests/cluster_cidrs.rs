//! MultiCIDRRangeAllocator: blocks from ClusterCIDR objects, by the labels of nodes, in several
//! sizes side by side.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use podplane_api::{
    core::{Event, Node, NodeSelector},
    meta::ObjectMeta,
    networking::{ClusterCIDR, ClusterCIDRSpec},
};
use podplane_client::{Client, DeleteParams, ListParams};
use podplane_tests::{apiserver::Apiserver, eventually, service::Service};
use serde_json::{Value, json};

const FINALIZER: &str = "networking.x-k8s.io/cluster-cidr-finalizer";

struct ClusterCidrFixture {
    dir: tempfile::TempDir,
    apiserver: Apiserver,
    client: Client,
}

fn metadata(name: &str, labels: &[(&str, &str)]) -> ObjectMeta {
    let labels = labels.iter();
    let labels: BTreeMap<String, String> = labels
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

fn blocks(node: &Node) -> Vec<String> {
    let spec = node.spec.as_ref();
    let blocks = spec.and_then(|spec| spec.pod_cidrs.clone());
    blocks.unwrap_or_default()
}

impl ClusterCidrFixture {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let apiserver = Apiserver::start(dir.path()).await?;
        let client = apiserver.client()?;
        Ok(Self {
            dir,
            apiserver,
            client,
        })
    }

    async fn controller(&self, dir: &Path, flags: &[&str]) -> Result<Service> {
        let args = [
            "--server",
            self.apiserver.address(),
            "--allocate-node-cidrs",
            "--cidr-allocator-type=MultiCIDRRangeAllocator",
            // A new process with the same identity leads at once.
            "--leader-elect-identity=one",
        ];
        let args = [&args, flags].concat();
        Service::start("ipam-controller", "127.0.0.1:0", dir, &args).await
    }

    async fn add_set(&self, name: &str, terms: Option<Value>, spec: ClusterCIDRSpec) -> Result<()> {
        let terms = terms.map(|terms| json!({"nodeSelectorTerms": terms}));
        let node_selector: Option<NodeSelector> = terms.map(serde_json::from_value).transpose()?;
        let object = ClusterCIDR {
            metadata: metadata(name, &[]),
            spec: Some(ClusterCIDRSpec {
                node_selector,
                ..spec
            }),
        };
        self.client.all().create(&object).await?;
        self.set_until(name, "it has a finalizer", |set| {
            let finalizers = set.and_then(|set| set.metadata.finalizers.clone());
            finalizers == Some(vec![FINALIZER.to_owned()])
        })
        .await;
        Ok(())
    }

    async fn set_until(
        &self,
        name: &str,
        what: &str,
        enough: impl Fn(Option<&ClusterCIDR>) -> bool,
    ) -> Option<ClusterCIDR> {
        let read = || async {
            match self.client.all::<ClusterCIDR>().get(name).await {
                Ok(set) => Ok(Some(set)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        };
        let what = format!("ClusterCIDR {name}: {what}");
        let found = eventually(&what, read, |set| {
            set.as_ref().is_ok_and(|set| enough(set.as_ref()))
        });
        found.await.ok().flatten()
    }

    async fn delete_set(&self, name: &str) -> Result<()> {
        let sets = self.client.all::<ClusterCIDR>();
        sets.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn add_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let node = Node {
            metadata: metadata(name, labels),
            ..Node::default()
        };
        self.client.all().create(&node).await?;
        Ok(())
    }

    /// The blocks that the node has been given.
    async fn given(&self, name: &str) -> Vec<String> {
        let read = || async {
            self.client
                .all::<Node>()
                .get(name)
                .await
                .map(|n| blocks(&n))
        };
        let what = format!("{name} has blocks");
        let found = eventually(&what, read, |blocks| {
            blocks.as_ref().is_ok_and(|blocks| !blocks.is_empty())
        });
        found.await.unwrap_or_default()
    }

    /// Waits for a warning about an object, and returns its message.
    async fn warned(&self, object: &str, reason: &str) -> String {
        let events = self.client.namespaced::<Event>("default");
        let list = || async {
            let listed = events.list(&ListParams::default()).await.ok()?;
            let of_object = listed.items.into_iter().find(|event| {
                event.involved_object.name.as_deref() == Some(object)
                    && event.reason.as_deref() == Some(reason)
            });
            of_object?.message
        };
        let found = eventually(&format!("{reason} of {object}"), list, Option::is_some).await;
        found.unwrap_or_default()
    }
}

fn zone(zone: &str) -> Value {
    json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]})
}

fn spec(ipv4: &str, ipv6: Option<&str>, per_node_host_bits: i32) -> ClusterCIDRSpec {
    ClusterCIDRSpec {
        ipv4: Some(ipv4.to_owned()),
        ipv6: ipv6.map(str::to_owned),
        per_node_host_bits,
        ..ClusterCIDRSpec::default()
    }
}

#[tokio::test]
async fn nodes_get_blocks_of_matching_sets_and_delay_their_deletion() -> Result<()> {
    let world = ClusterCidrFixture::start().await?;
    let dir = world.dir.path();
    let flags = [
        "--cluster-cidr=10.244.0.0/16",
        "--service-cluster-ip-range=10.1.0.0/28",
    ];
    let controller = world.controller(dir, &flags).await?;
    let of_flags = world
        .set_until("default-cluster-cidr", "it is made", |set| set.is_some())
        .await;
    let of_flags = of_flags.and_then(|set| set.spec);
    assert_eq!(of_flags, Some(spec("10.244.0.0/16", None, 8)));

    world
        .add_set(
            "small",
            Some(json!([zone("a")])),
            spec("10.1.0.0/24", None, 4),
        )
        .await?;
    let by_name =
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["special"]}]});
    let either = json!([zone("b"), by_name]);
    let dual = spec("10.2.0.0/20", Some("fd00::/112"), 8);
    world.add_set("dual", Some(either), dual).await?;

    for (node, labels, want) in [
        ("a1", &[("zone", "a")][..], &["10.1.0.16/28"][..]),
        ("b1", &[("zone", "b")], &["10.2.0.0/24", "fd00::/120"]),
        ("special", &[], &["10.2.1.0/24", "fd00::100/120"]),
        ("other", &[], &["10.244.0.0/24"]),
    ] {
        world.add_node(node, labels).await?;
        assert_eq!(world.given(node).await, want, "{node}");
    }

    // A set is removed once it is not in use any more, even if another process has to find that
    // out.
    world.delete_set("small").await?;
    assert_eq!(
        world.warned("small", "ClusterCIDRInUse").await,
        "ClusterCIDRSet small marked as terminating, won't be deleted until all associated nodes are deleted"
    );
    world.add_node("a2", &[("zone", "a")]).await?;
    assert_eq!(world.given("a2").await, ["10.244.1.0/24"]);
    controller.kill()?;
    let _controller = world.controller(dir, &flags).await?;
    world.add_node("b2", &[("zone", "b")]).await?;
    assert_eq!(world.given("b2").await, ["10.2.2.0/24", "fd00::200/120"]);
    assert!(world.client.all::<ClusterCIDR>().get("small").await.is_ok());
    let nodes = world.client.all::<Node>();
    nodes.delete("a1", &DeleteParams::default()).await?;
    world
        .set_until("small", "it is gone", |set| set.is_none())
        .await;

    // No set is for this node, until there is one, and a label.
    world.delete_set("default-cluster-cidr").await?;
    world
        .warned("default-cluster-cidr", "ClusterCIDRInUse")
        .await;
    world.add_node("late", &[]).await?;
    world.warned("late", "CIDRNotAvailable").await;
    world
        .add_set(
            "late",
            Some(json!([zone("c")])),
            spec("10.3.0.0/16", None, 12),
        )
        .await?;
    let mut node = nodes.get("late").await?;
    node.metadata.labels = metadata("late", &[("zone", "c")]).labels;
    node.metadata.resource_version = None;
    nodes.update(&node).await?;
    assert_eq!(world.given("late").await, ["10.3.0.0/20"]);
    Ok(())
}
