//! Several IPAM controllers at one API server, and one that comes back.

use std::{collections::BTreeSet, path::Path};

use anyhow::Result;
use podplane_api::{core::Node, meta::ObjectMeta, pod_ips};
use podplane_client::{Client, DeleteParams, ListParams};
use podplane_proto::ipam::BlockState;
use podplane_tests::{apiserver::Apiserver, eventually, service::Service};

/// Flags by which a leader that does not renew is replaced after three seconds.
const ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=300ms",
];

struct IpamControllerFixture {
    dir: tempfile::TempDir,
    client: Client,
    apiserver: Apiserver,
}

impl IpamControllerFixture {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let apiserver = Apiserver::start(dir.path()).await?;
        Ok(Self {
            client: apiserver.client()?,
            dir,
            apiserver,
        })
    }

    /// Starts a controller of that identity, which gives /24 blocks unless told otherwise.
    async fn controller(&self, identity: &str, more: &[&str]) -> Result<Service> {
        let dir = self.dir.path().join(identity);
        std::fs::create_dir_all(&dir)?;
        let identity = format!("--leader-elect-identity={identity}");
        let args = [
            "--server",
            self.apiserver.address(),
            "--allocate-node-cidrs",
            "--cluster-cidr=10.244.0.0/16",
            &identity,
        ];
        let args = [&args, ELECTION.as_slice(), more].concat();
        Service::start("ipam-controller", "127.0.0.1:0", Path::new(&dir), &args).await
    }

    async fn add_nodes(&self, names: impl IntoIterator<Item = String>) -> Result<()> {
        for name in names {
            let metadata = ObjectMeta {
                name: Some(name),
                ..ObjectMeta::default()
            };
            let node = Node {
                metadata,
                ..Node::default()
            };
            self.client.all::<Node>().create(&node).await?;
        }
        Ok(())
    }

    /// Waits until every node has a block, and returns their blocks.
    async fn all_have_blocks(&self) -> BTreeSet<String> {
        let list = || async {
            let listed = self.client.all::<Node>().list(&ListParams::default()).await;
            listed.map(|listed| listed.items).unwrap_or_default()
        };
        let served = |nodes: &Vec<Node>| {
            !nodes.is_empty()
                && nodes
                    .iter()
                    .all(|node| !pod_ips::pod_cidrs(node).is_empty())
        };
        let nodes = eventually("every node has a block", list, served).await;
        let blocks = nodes.iter().flat_map(pod_ips::pod_cidrs).cloned();
        let blocks: BTreeSet<String> = blocks.collect();
        assert_eq!(blocks.len(), nodes.len(), "no block is given twice");
        blocks
    }

    /// The states of the records of a block.
    async fn records(&self, cidr: &str) -> Vec<BlockState> {
        let listed = self.client.blocks().list().await;
        let blocks = listed.map(|listed| listed.blocks).unwrap_or_default();
        let of_block = blocks.iter().filter(|block| block.cidr == cidr);
        of_block.map(|block| block.state()).collect()
    }
}

#[tokio::test]
async fn a_standby_takes_over_from_a_killed_leader() -> Result<()> {
    let world = IpamControllerFixture::start().await?;
    let first = world.controller("first", &[]).await?;
    world.add_nodes((0..50).map(|n| format!("a-{n}"))).await?;
    world.all_have_blocks().await;
    let _second = world.controller("second", &[]).await?;
    first.kill()?;
    world.add_nodes((0..50).map(|n| format!("b-{n}"))).await?;
    assert_eq!(world.all_have_blocks().await.len(), 100);
    Ok(())
}

/// When the leader goes on it believes that it leads, and there are nodes to serve.
#[tokio::test]
async fn a_resumed_former_leader_writes_nothing() -> Result<()> {
    let world = IpamControllerFixture::start().await?;
    let first = world.controller("first", &[]).await?;
    world.add_nodes(["a".to_owned()]).await?;
    world.all_have_blocks().await;
    let second = world.controller("second", &[]).await?;
    first.pause()?;
    world.add_nodes((0..50).map(|n| format!("b-{n}"))).await?;
    world.all_have_blocks().await;
    second.pause()?;
    world.add_nodes((0..50).map(|n| format!("c-{n}"))).await?;
    first.resume()?;
    assert!(!first.ended().await, "it leads no more");
    let nodes = world.client.all::<Node>();
    let bare = nodes.list(&ListParams::default()).await?.items;
    let bare = bare
        .iter()
        .filter(|node| pod_ips::pod_cidrs(node).is_empty());
    assert_eq!(bare.count(), 50, "and has written nothing");
    second.resume()?;
    // Either it was stopped for a shorter time, or it ends as well and is replaced.
    let _third = world.controller("third", &[]).await?;
    assert_eq!(world.all_have_blocks().await.len(), 101);
    Ok(())
}

#[tokio::test]
async fn a_quarantined_block_and_a_wide_one_survive_a_restart_with_other_flags() -> Result<()> {
    let world = IpamControllerFixture::start().await?;
    let first = world.controller("it", &["--release-delay=4s"]).await?;
    world.add_nodes(["a".to_owned(), "b".to_owned()]).await?;
    let given = world.all_have_blocks().await;
    assert_eq!(Vec::from_iter(&given), ["10.244.0.0/24", "10.244.1.0/24"]);
    let nodes = world.client.all::<Node>();
    nodes.delete("a", &DeleteParams::default()).await?;
    let state = || world.records("10.244.0.0/24");
    let is = |wanted: BlockState| move |found: &Vec<BlockState>| found == &[wanted];
    eventually("it is kept back", state, is(BlockState::Quarantined)).await;
    first.kill()?;
    // Under its identity it leads at once, and blocks are 16 times as wide.
    let _again = world
        .controller("it", &["--node-cidr-mask-size=20"])
        .await?;
    let wide = || world.records("10.244.1.0/24");
    eventually("it does not fit", wide, is(BlockState::Foreign)).await;
    world.add_nodes(["c".to_owned()]).await?;
    let blocks = world.all_have_blocks().await;
    assert!(blocks.contains("10.244.16.0/20"), "{blocks:?}");
    eventually("its time is over", state, Vec::is_empty).await;
    let foreign = nodes.get("b").await?;
    let conditions = foreign.status.and_then(|status| status.conditions);
    let condition = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodCIDRForeign");
    let condition = condition.expect("the condition of a block that does not fit");
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_deref()),
        ("True", Some("WrongSize"))
    );
    Ok(())
}
