//! Records of blocks: their states and transitions.

use podplane_client::Reason;
use podplane_proto::ipam::{Block, BlockState, BlockUpdate, block_update};
use podplane_store::SledStore;

use super::{
    admission::{policy, with_blocks},
    *,
};

pub(super) fn change(
    cidr: &str,
    node: &str,
    uid: &str,
    change: block_update::Change,
) -> BlockUpdate {
    BlockUpdate {
        cidr: cidr.into(),
        node_name: node.into(),
        node_uid: uid.into(),
        change: Some(change),
        quarantine_seconds: 0,
    }
}

pub(super) const RELEASE: block_update::Change = block_update::Change::Release(true);

pub(super) fn state(state: BlockState) -> block_update::Change {
    block_update::Change::State(state.into())
}

impl TestServer {
    pub(super) async fn update(&self, update: BlockUpdate) -> Result<Option<Block>, ApiError> {
        let mut answers = self.client.blocks().update(vec![update]).await.unwrap();
        answers.remove(0)
    }

    pub(super) async fn records(&self) -> Vec<Block> {
        self.client.blocks().list().await.unwrap().blocks
    }

    /// The state, block and node of each record, except those of service ranges.
    pub(super) async fn states(&self) -> Vec<String> {
        let records = self.records().await;
        let records = records.iter().filter(|block| !block.node_name.is_empty());
        let state = |block: &Block| {
            let state = block.state().as_str_name().to_lowercase();
            format!("{state} {} {}", block.cidr, block.node_name)
        };
        records.map(state).collect()
    }
}

#[tokio::test]
async fn lists_all_records_in_order_of_address() {
    let server = TestServer::under(policy(), MemStore::new()).await;
    let nodes = server.nodes();
    let b = with_blocks("b", &["fd00:1::/64", "10.244.1.0/24"]);
    let b = nodes.create(&b).await.unwrap();
    nodes
        .create(&with_blocks("a", &["10.9.0.0/16"]))
        .await
        .unwrap();
    let listed = server.client.blocks().list().await.unwrap();
    let of = |block: &Block| (block.cidr.clone(), block.state(), block.node_name.clone());
    let of: Vec<_> = listed.blocks.iter().map(of).collect();
    let block = |cidr: &str, state, node: &str| (cidr.to_owned(), state, node.to_owned());
    let want = [
        block("10.9.0.0/16", BlockState::Assigned, "a"),
        block("10.96.0.0/16", BlockState::Reserved, ""),
        block("10.244.1.0/24", BlockState::Assigned, "b"),
        block("fd00:1::/64", BlockState::Assigned, "b"),
        block("fd00:96::/112", BlockState::Reserved, ""),
    ];
    assert_eq!(of, want);
    assert_eq!(listed.blocks[2].node_uid, b.uid());
    assert_eq!(listed.blocks[2].resource_version, b.resource_version());
    assert!(!listed.resource_version.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn the_block_of_a_deleted_node_is_free_when_it_is_released() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = with_blocks("a", &["10.0.0.0/24", "fd00::/64"]);
    let created = nodes.create(&a).await.unwrap();
    let release = |cidr| change(cidr, "a", created.uid(), RELEASE);
    let error = server.update(release("10.0.0.0/24")).await.unwrap_err();
    assert_eq!(error.reason, Reason::InUse);
    nodes.delete("a", &at_once()).await.unwrap();
    assert_eq!(
        server.states().await,
        ["draining 10.0.0.0/24 a", "draining fd00::/64 a"]
    );
    let b = with_blocks("b", &["10.0.0.0/26"]);
    let error = nodes.create(&b).await.unwrap_err();
    let why = "overlaps 10.0.0.0/24 of node \"a\", which is gone and whose addresses are still in use (draining); 10.0.1.0/26 is free";
    assert!(error.message.ends_with(why), "{error}");
    assert_eq!(server.update(release("10.0.0.0/24")).await.unwrap(), None);
    // Repeated, as after a lost answer.
    assert_eq!(server.update(release("10.0.0.0/24")).await.unwrap(), None);
    nodes.create(&b).await.unwrap();
    // The other way around: a record with a longer prefix conflicts with a shorter one.
    assert!(
        nodes
            .create(&with_blocks("c", &["10.0.0.0/24"]))
            .await
            .is_err()
    );
    server.stop().await;
}

#[tokio::test]
async fn a_node_with_finalizers_keeps_its_block() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let mut a = with_blocks("a", &["10.0.0.0/24"]);
    a.metadata.finalizers = Some(vec!["example.com/wait".into()]);
    let created = nodes.create(&a).await.unwrap();
    let mut deleting = nodes.delete("a", &at_once()).await.unwrap();
    assert!(deleting.is_deleting());
    let release = change("10.0.0.0/24", "a", created.uid(), RELEASE);
    let error = server.update(release).await.unwrap_err();
    assert_eq!(error.reason, Reason::InUse);
    deleting.metadata.finalizers = None;
    nodes.update(&deleting).await.unwrap();
    assert_eq!(server.states().await, ["draining 10.0.0.0/24 a"]);
    server.stop().await;
}

#[tokio::test]
async fn a_recreated_node_takes_its_block_back() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = with_blocks("a", &["10.0.0.0/24"]);
    let first = nodes.create(&a).await.unwrap();
    nodes.delete("a", &at_once()).await.unwrap();
    // Neither a part of the block, nor a larger one: the rest would have no owner, with addresses
    // in use.
    for other in ["10.0.0.0/25", "10.0.0.0/23"] {
        let error = nodes.create(&with_blocks("a", &[other])).await.unwrap_err();
        assert!(error.message.contains("(draining)"), "{error}");
    }
    let second = nodes.create(&a).await.unwrap();
    let record = server.records().await.remove(0);
    assert_eq!(record.state(), BlockState::Assigned);
    assert_eq!(record.node_uid, second.uid());
    // A late update for the first node is refused.
    let late = change("10.0.0.0/24", "a", first.uid(), RELEASE);
    assert_eq!(
        server.update(late).await.unwrap_err().reason,
        Reason::Conflict
    );
    // The same by assignment.
    nodes.delete("a", &at_once()).await.unwrap();
    let third = nodes.create(&node("a")).await.unwrap();
    nodes
        .assign_pod_cidrs("a", third.uid(), "", &["10.0.0.0/24".into()])
        .await
        .unwrap();
    assert_eq!(server.states().await, ["assigned 10.0.0.0/24 a"]);
    server.stop().await;
}

#[tokio::test]
async fn a_foreign_block_belongs_to_its_node() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes
        .create(&with_blocks("a", &["10.0.0.0/24"]))
        .await
        .unwrap();
    let ask = |to| change("10.0.0.0/24", "a", a.uid(), to);
    for to in [
        BlockState::Foreign,
        BlockState::Assigned,
        BlockState::Foreign,
    ] {
        let moved = server.update(ask(state(to))).await.unwrap().unwrap();
        assert_eq!(moved.state(), to);
    }
    let error = server.update(ask(state(BlockState::Quarantined))).await;
    assert_eq!(error.unwrap_err().reason, Reason::InUse);
    let error = nodes.create(&with_blocks("b", &["10.0.0.0/16"])).await;
    let error = error.unwrap_err().message;
    assert!(error.contains("of node \"a\" (foreign)"), "{error}");
    nodes.delete("a", &at_once()).await.unwrap();
    let error = server.update(ask(state(BlockState::Assigned))).await;
    assert_eq!(error.unwrap_err().reason, Reason::Conflict);
    for (update, want) in [
        (ask(state(BlockState::Reserved)), Reason::BadRequest),
        (
            ask(block_update::Change::Release(false)),
            Reason::BadRequest,
        ),
        (
            change("10.0.0.0/33", "a", a.uid(), RELEASE),
            Reason::BadRequest,
        ),
        (
            change("10.0.0.0/24", "b", a.uid(), state(BlockState::Foreign)),
            Reason::NotFound,
        ),
    ] {
        assert_eq!(server.update(update).await.unwrap_err().reason, want);
    }
    server.stop().await;
}

#[tokio::test]
async fn records_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let nodes = server.nodes();
    let mut uids = Vec::new();
    for (name, block) in [
        ("a", "10.0.0.0/24"),
        ("b", "10.0.1.0/24"),
        ("c", "10.0.2.0/25"),
        ("d", "10.0.3.0/24"),
    ] {
        let node = nodes.create(&with_blocks(name, &[block])).await.unwrap();
        uids.push(node.uid().to_owned());
    }
    let foreign = change("10.0.0.0/24", "a", &uids[0], state(BlockState::Foreign));
    server.update(foreign).await.unwrap();
    for gone in ["b", "c"] {
        nodes.delete(gone, &at_once()).await.unwrap();
    }
    let quarantined = BlockUpdate {
        quarantine_seconds: 60,
        ..change("10.0.2.0/25", "c", &uids[2], state(BlockState::Quarantined))
    };
    server.update(quarantined).await.unwrap();
    let before = server.records().await;
    assert_eq!(
        server.states().await,
        [
            "foreign 10.0.0.0/24 a",
            "draining 10.0.1.0/24 b",
            "quarantined 10.0.2.0/25 c",
            "assigned 10.0.3.0/24 d"
        ]
    );
    server.stop().await;

    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    assert_eq!(server.records().await, before);
    // The length of a block of a deleted node is still looked for.
    let error = server
        .nodes()
        .create(&with_blocks("e", &["10.0.2.0/26"]))
        .await;
    assert!(error.unwrap_err().message.contains("(quarantined"));
    server.stop().await;
}

/// A commit takes 127 guards: a transaction of etcd takes 128.
#[tokio::test]
async fn blocks_of_many_lengths_fit_into_one_commit() {
    let server = TestServer::under(policy(), MemStore::new()).await;
    let nodes = server.nodes();
    // Blocks of all these lengths, none of which overlaps another.
    for length in 16..=120 {
        let v6 = format!("fd{length:02x}::/{length}");
        let node = with_blocks(&format!("v6-{length}"), &[&v6]);
        nodes.create(&node).await.unwrap();
    }
    for length in 9..=30 {
        let v4 = format!("{}.0.0.0/{length}", 100 + length);
        let node = with_blocks(&format!("v4-{length}"), &[&v4]);
        nodes.create(&node).await.unwrap();
    }
    let free = with_blocks("free", &["fdff::/124", "10.244.1.0/31"]);
    nodes.create(&free).await.unwrap();
    for (name, v6) in [("within", "fd40::/124"), ("same", "fdff::/124")] {
        let taken = with_blocks(name, &[v6, "10.244.2.0/31"]);
        let refused = nodes.create(&taken).await.unwrap_err();
        assert!(refused.message.contains("overlaps"), "{refused:?}");
    }
    let around = with_blocks("around", &["fd78::/119", "10.244.2.0/31"]);
    let refused = nodes.create(&around).await.unwrap_err();
    assert!(refused.message.contains("overlaps"), "{refused:?}");
}
