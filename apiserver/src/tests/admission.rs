//! Admission of nodes: their blocks against each other and against the service range.

use std::sync::Arc;

use podplane_client::Reason;
use podplane_store::{Key, Txn};

use super::*;

pub(super) fn with_blocks(name: &str, blocks: &[&str]) -> Node {
    object(json!({"metadata": {"name": name}, "spec": {"podCIDRs": blocks}}))
}

pub(super) fn policy() -> BlockPolicy {
    BlockPolicy {
        service_ranges: "10.96.0.0/16,fd00:96::/112".parse().unwrap(),
        cluster_cidrs: vec!["10.244.0.0/22".parse().unwrap()],
        lenient: false,
        release_after: None,
    }
}

#[tokio::test]
async fn a_block_of_another_node_or_of_services_is_refused() {
    let server = TestServer::under(policy(), MemStore::new()).await;
    let nodes = server.nodes();
    nodes
        .create(&with_blocks("a", &["10.244.0.0/24", "fd00:1::/64"]))
        .await
        .unwrap();
    for (blocks, why) in [
        (
            &["10.244.0.0/24"][..],
            r#""10.244.0.0/24": overlaps 10.244.0.0/24 of node "a"; 10.244.1.0/24 is free"#,
        ),
        (
            &["10.244.0.77/28"],
            r#""10.244.0.64/28": overlaps 10.244.0.0/24 of node "a"; 10.244.1.0/28 is free"#,
        ),
        (
            &["10.244.0.0/23"],
            r#""10.244.0.0/23": overlaps 10.244.0.0/24 of node "a"; 10.244.2.0/23 is free"#,
        ),
        (
            &["10.240.0.0/12"],
            r#""10.240.0.0/12": overlaps 10.244.0.0/24 of node "a"; no /12 is free in the cluster CIDR 10.244.0.0/22"#,
        ),
        (
            &["10.96.3.0/24"],
            r#""10.96.3.0/24": overlaps the service range 10.96.0.0/16; 10.244.1.0/24 is free"#,
        ),
        (
            &["10.244.1.0/24", "fd00:1::1:0/112"],
            r#""fd00:1::1:0/112": overlaps fd00:1::/64 of node "a"; fd00:1:0:1::/112 is free"#,
        ),
    ] {
        let error = nodes.create(&with_blocks("b", blocks)).await.unwrap_err();
        assert_eq!(error.reason, Reason::Invalid);
        let want = format!("Node \"b\" is invalid: spec.podCIDRs: Invalid value: {why}");
        assert_eq!(error.message, want);
        assert_eq!(error.fields[0].field, "spec.podCIDRs");
    }
    // A refused write leaves nothing behind.
    let created = nodes.create(&node("b")).await.unwrap();
    let error = nodes
        .assign_pod_cidrs("b", created.uid(), "", &["10.244.0.0/24".into()])
        .await
        .unwrap_err();
    assert_eq!(error.reason, Reason::Invalid);
    nodes
        .assign_pod_cidrs("b", created.uid(), "", &["10.244.1.0/24".into()])
        .await
        .unwrap();
    server.stop().await;
}

#[tokio::test]
async fn an_update_is_checked_only_if_it_adds_a_block() {
    let server = TestServer::under(policy(), MemStore::new()).await;
    let nodes = server.nodes();
    nodes
        .create(&with_blocks("a", &["10.244.0.0/24"]))
        .await
        .unwrap();
    let mut b = nodes.create(&node("b")).await.unwrap();
    b.spec = with_blocks("b", &["10.244.0.0/25"]).spec;
    assert_eq!(nodes.update(&b).await.unwrap_err().reason, Reason::Invalid);
    b.spec = with_blocks("b", &["10.244.1.0/25"]).spec;
    let mut b = nodes.update(&b).await.unwrap();
    // An update that does not change blocks does not conflict with its own.
    b.spec.as_mut().unwrap().unschedulable = Some(true);
    nodes.update(&b).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn refuses_a_block_within_another_when_the_list_of_lengths_is_damaged() {
    let store = Arc::new(MemStore::new());
    let server = TestServer::under(policy(), store.clone()).await;
    let nodes = server.nodes();
    let wide = with_blocks("a", &["10.244.0.0/22", "fd00:1::/48"]);
    nodes.create(&wide).await.unwrap();
    let lengths = Key::try_from("/podplane/block-lengths").unwrap();
    let damaged = Txn::new().put(lengths, "no JSON");
    Store::commit(&*store, damaged).await.unwrap();
    for block in ["10.244.1.0/24", "fd00:1:0:1::/64"] {
        let refused = nodes.create(&with_blocks("b", &[block])).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Invalid, "{block}");
    }
    let outside = with_blocks("b", &["10.245.0.0/24"]);
    nodes.create(&outside).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn creates_only_one_of_concurrent_overlapping_nodes() {
    let server = TestServer::start().await;
    for round in 0..20 {
        let mut creates = JoinSet::new();
        for length in 20..28 {
            let nodes = server.nodes();
            let block = format!("10.{round}.0.0/{length}");
            let node = with_blocks(&format!("n-{round}-{length}"), &[&block]);
            creates.spawn(async move { nodes.create(&node).await });
        }
        let done = within(creates.join_all()).await;
        let (there, refused): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
        assert_eq!(there.len(), 1, "{there:?}");
        for refused in refused {
            assert_eq!(refused.unwrap_err().reason, Reason::Invalid);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn lenient_policy_admits_overlapping_blocks() {
    let lenient = BlockPolicy {
        lenient: true,
        ..policy()
    };
    let server = TestServer::under(lenient, MemStore::new()).await;
    let nodes = server.nodes();
    for name in ["a", "b"] {
        nodes
            .create(&with_blocks(name, &["10.96.0.0/24"]))
            .await
            .unwrap();
    }
    nodes.delete("a", &at_once()).await.unwrap();
    let listed = server.client.blocks().list().await.unwrap().blocks;
    let of = |block: &podplane_proto::ipam::Block| block.node_name.clone();
    // Records of service ranges have no node.
    assert_eq!(listed.iter().map(of).collect::<Vec<_>>(), ["", "b", ""]);
    server.stop().await;
}

#[tokio::test]
async fn recovers_blocks_of_nodes_from_an_older_store() {
    let store = MemStore::new();
    let mut old = with_blocks("old", &["10.0.0.0/24"]);
    old.metadata.uid = Some("of-old".into());
    let old = old.to_vec().unwrap();
    let txn = Txn::new().put(Key::try_from("/registry/nodes/old").unwrap(), old);
    // A record of a node that does not exist.
    let stale = "/podplane/blocks/v4/000010100000000000000001/gone";
    let txn = txn.put(Key::try_from(stale).unwrap(), "");
    // A record in the form of versions before records had values.
    let bare = "/podplane/blocks/v4/000010100000000000000000/old";
    let txn = txn.put(Key::try_from(bare).unwrap(), "");
    Store::commit(&store, txn).await.unwrap();
    let server = TestServer::with(store).await;
    let nodes = server.nodes();
    let error = nodes.create(&with_blocks("b", &["10.0.0.0/16"])).await;
    assert!(error.unwrap_err().message.contains("node \"old\""));
    nodes
        .create(&with_blocks("b", &["10.0.1.0/24"]))
        .await
        .unwrap();
    let listed = server.client.blocks().list().await.unwrap().blocks;
    assert_eq!(listed[0].node_uid, "of-old");
    server.stop().await;
}
