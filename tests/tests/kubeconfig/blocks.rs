//! Story B: the size of blocks is changed in a live cluster, and changed back. Kubernetes' allocator
//! gives blocks that overlap those of live nodes; ours does not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use podplane_api::{Object as _, core::Node};
use podplane_client::DeleteParams;
use podplane_ipam::parse_cidr;
use podplane_test_cluster::within;
use podplane_tests::{peers, service::Service};
use serde_json::json;

use super::other::{OtherCluster, PATIENCE, block};

/// The nodes that have a /24 before the change.
const OLD: usize = 20;
const RANGE: &str = "--cluster-cidr=10.244.0.0/16";

/// The nodes that a history adds, by the size of blocks at that time.
const WIDE: [&str; 1] = ["wide"];
const NEW: [&str; 4] = ["new-0", "new-1", "new-2", "new-3"];

struct BlockHistory {
    other: OtherCluster,
}

impl BlockHistory {
    async fn start() -> Result<Option<Self>> {
        if !peers::program("kubectl") {
            return Ok(None);
        }
        let Some(other) = OtherCluster::start(0).await? else {
            return Ok(None);
        };
        other.deploy("ipam-controller");
        Ok(Some(Self { other }))
    }

    async fn add<S: AsRef<str>>(&self, names: impl IntoIterator<Item = S>) -> Result<()> {
        for name in names {
            let node = json!({"metadata": {"name": name.as_ref()}});
            let node: Node = serde_json::from_value(node)?;
            self.other.cluster.client().all().create(&node).await?;
        }
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<()> {
        let nodes = self.other.cluster.client().all::<Node>();
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The blocks by node.
    async fn blocks(&self) -> BTreeMap<String, String> {
        let nodes = self.other.nodes().await;
        let blocks = nodes
            .iter()
            .filter_map(|node| Some((node.name().to_owned(), block(node)?.to_owned())));
        blocks.collect()
    }

    /// Waits until these nodes have blocks.
    async fn have_blocks(&self, names: &[&str]) -> Result<BTreeMap<String, String>> {
        let all =
            |blocks: &BTreeMap<String, String>| names.iter().all(|name| blocks.contains_key(*name));
        let what = format!("{names:?} have blocks");
        Ok(within(PATIENCE, &what, || self.blocks(), all).await?)
    }

    /// The pairs of nodes whose blocks share addresses.
    async fn overlaps(&self) -> Result<BTreeSet<(String, String)>> {
        let mut pairs = BTreeSet::new();
        let mut known: Vec<(String, IpNet)> = Vec::new();
        for (node, block) in self.blocks().await {
            let net = parse_cidr(&block)?;
            for (other, other_net) in &known {
                if net.contains(other_net) || other_net.contains(&net) {
                    pairs.insert((String::clone(other), node.clone()));
                }
            }
            known.push((node, net));
        }
        Ok(pairs)
    }

    /// The history up to the change back: /24, then /20, then /24 again, each with a new process.
    /// Returns the last one.
    async fn run(&self, start: impl AsyncFn(&str, u8) -> Result<Service>) -> Result<Service> {
        let first = start("first", 24).await?;
        let old: Vec<_> = (0..OLD).map(|n| format!("old-{n:02}")).collect();
        self.add(&old).await?;
        self.have_blocks(&old.iter().map(String::as_str).collect::<Vec<_>>())
            .await?;
        ensure!(self.overlaps().await?.is_empty());
        first.kill()?;
        let second = start("second", 20).await?;
        self.remove("old-00").await?;
        self.add(WIDE).await?;
        self.have_blocks(&WIDE).await?;
        second.kill()?;
        let third = start("third", 24).await?;
        self.remove("wide").await?;
        self.add(NEW).await?;
        self.have_blocks(&NEW).await?;
        Ok(third)
    }

    async fn foreign(&self) -> BTreeSet<String> {
        let nodes = self.other.nodes().await;
        let is_foreign = |node: &&Node| {
            let status = node.status.as_ref();
            let mut conditions = status
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten();
            conditions.any(|it| it.type_ == "PodCIDRForeign" && it.status == "True")
        };
        let foreign = nodes.iter().filter(is_foreign);
        foreign.map(|node| node.name().to_owned()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_block_size_makes_no_duplicate() -> Result<()> {
    let Some(history) = BlockHistory::start().await? else {
        return Ok(());
    };
    let start = async |id: &str, mask: u8| {
        let mask = format!("--node-cidr-mask-size={mask}");
        history.other.allocator(id, &[RANGE, &mask]).await
    };
    let _last = history.run(start).await?;
    let blocks = history.blocks().await;
    ensure!(history.overlaps().await?.is_empty(), "{blocks:?}");
    ensure!(history.foreign().await.is_empty());
    history.other.cluster.finish().await
}
