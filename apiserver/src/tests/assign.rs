//! Many blocks at once: in one request, and by many independent writers.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_client::Reason;
use podplane_proto::ipam::{Assignment, Block, BlockState, block_update};
use podplane_store::SledStore;

use super::{admission::with_blocks, blocks::change, *};

fn assignment(node: &Node, blocks: &[&str]) -> Assignment {
    Assignment {
        name: node.name().into(),
        uid: node.uid().into(),
        resource_version: node.resource_version().into(),
        pod_cidrs: blocks.iter().map(|block| (*block).to_owned()).collect(),
    }
}

#[tokio::test]
async fn a_refused_assignment_does_not_affect_the_others() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let mut created = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        created.push(nodes.create(&node(name)).await.unwrap());
    }
    let [a, b, c, d, e] = created.as_slice() else {
        unreachable!()
    };
    let other_uid = Assignment {
        uid: a.uid().into(),
        ..assignment(d, &["10.0.4.0/24"])
    };
    let blocks = server.client.blocks();
    let answers = blocks.assign(vec![
        assignment(a, &["10.0.0.0/24", "fd00::/64"]),
        // All families or none: the second block is taken.
        assignment(b, &["10.0.1.0/24", "fd00::/64"]),
        assignment(c, &["10.0.1.0/24"]),
        other_uid,
        assignment(e, &["rubbish"]),
        assignment(a, &["10.0.0.0/24", "fd00::/64"]),
        assignment(&node("nobody"), &["10.0.5.0/24"]),
    ]);
    let answers = answers.await.unwrap();
    let reason =
        |answer: &Result<String, ApiError>| answer.as_ref().err().map(|error| error.reason);
    let reasons: Vec<_> = answers.iter().map(reason).collect();
    assert_eq!(
        reasons,
        [
            None,
            Some(Reason::Invalid),
            None,
            Some(Reason::Conflict),
            Some(Reason::Invalid),
            None,
            Some(Reason::NotFound)
        ]
    );
    assert_eq!(
        answers[1].as_ref().unwrap_err().fields[0].field,
        "spec.podCIDRs"
    );
    let a = nodes.get("a").await.unwrap();
    assert_eq!(a.resource_version(), answers[0].as_ref().unwrap());
    assert_eq!(answers[5].as_ref().unwrap(), a.resource_version());
    let b = nodes.get("b").await.unwrap();
    assert_eq!(b.resource_version(), created[1].resource_version());
    let too_many = vec![Assignment::default(); 1001];
    let error = server.client.blocks().assign(too_many).await.unwrap_err();
    assert_eq!(error.reason, Reason::BadRequest);
    server.stop().await;
}

/// Checks that the nodes and the records agree.
async fn check(server: &TestServer) {
    let nodes = server
        .nodes()
        .list(&Default::default())
        .await
        .unwrap()
        .items;
    let mut held: BTreeMap<IpNet, String> = BTreeMap::new();
    for node in &nodes {
        for block in podplane_api::pod_ips::pod_cidrs(node) {
            let earlier = held.insert(block.parse().unwrap(), node.name().to_owned());
            assert_eq!(earlier, None, "{block} twice");
        }
    }
    let records = server.client.blocks().list().await.unwrap().blocks;
    let mut assigned = BTreeMap::new();
    for record in &records {
        if record.state() == BlockState::Assigned {
            assigned.insert(record.cidr.parse().unwrap(), record.node_name.clone());
            let node = nodes.iter().find(|node| node.name() == record.node_name);
            assert_eq!(node.unwrap().uid(), record.node_uid);
        }
    }
    assert_eq!(
        assigned, held,
        "every node's block has its record, and no other"
    );
    assert_disjoint(&records);
}

/// A block of a small range, of a random length, for one family or both.
fn some_blocks(random: &mut fastrand::Rng) -> Vec<String> {
    let v4 = format!(
        "10.0.{}.{}/{}",
        random.u8(..2),
        random.u8(..),
        random.u8(24..30)
    );
    let v6 = format!("fd00::{:x}:0/{}", random.u8(..), random.u8(106..112));
    let both = [v4, v6].map(|net| net.parse::<IpNet>().unwrap().trunc().to_string());
    both.into_iter().take(random.usize(1..=2)).collect()
}

fn assert_disjoint(records: &[Block]) {
    let nets = records.iter().map(|record| record.cidr.parse().unwrap());
    let nets: Vec<IpNet> = nets.collect();
    // Sorted by address with the shorter prefix first, so that an overlapping record lies within
    // its predecessor, or one in between does.
    let inside = nets.windows(2).find(|two| two[0].contains(&two[1]));
    assert_eq!(inside, None, "{nets:?}");
}

/// Runs writers that create, assign, delete and release blocks of all lengths in a small range at
/// random.
async fn no_two_records_ever_overlap(store: impl Store) {
    const WRITERS: u64 = 8;
    const STEPS: u32 = 60;
    let server = TestServer::with(store).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(writer));
        let (nodes, blocks) = (server.nodes(), server.client.blocks());
        writers.spawn(async move {
            for _ in 0..STEPS {
                let name = format!("n{}", random.u8(..12));
                let some = some_blocks(&mut random);
                let given: Vec<_> = some.iter().map(String::as_str).collect();
                match random.u8(..6) {
                    0 => _ = nodes.create(&node(&name)).await,
                    1 => _ = nodes.create(&with_blocks(&name, &given)).await,
                    2 => _ = nodes.assign_pod_cidrs(&name, "", "", &some).await,
                    3 => {
                        let present = nodes.list(&Default::default()).await.unwrap().items;
                        let batch = present.iter().map(|node| {
                            let blocks = some_blocks(&mut random);
                            let blocks: Vec<_> = blocks.iter().map(String::as_str).collect();
                            assignment(node, &blocks)
                        });
                        blocks.assign(batch.collect()).await.unwrap();
                    }
                    4 => _ = nodes.delete(&name, &at_once()).await,
                    _ => {
                        let records = blocks.list().await.unwrap().blocks;
                        assert_disjoint(&records);
                        let release = records.into_iter().map(|block| {
                            let release = block_update::Change::Release(true);
                            change(&block.cidr, &block.node_name, &block.node_uid, release)
                        });
                        blocks.update(release.collect()).await.unwrap();
                    }
                }
            }
        });
    }
    while let Some(done) = within(writers.join_next()).await {
        done.unwrap();
    }
    check(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_records_ever_overlap_in_memory() {
    no_two_records_ever_overlap(MemStore::new()).await;
}

/// On an engine that decides commits before earlier ones are on disk.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_records_ever_overlap_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    no_two_records_ever_overlap(SledStore::open(dir.path()).unwrap()).await;
}
