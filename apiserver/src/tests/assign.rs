//! Many blocks at once: in one request, and by many writers that do not know of each other.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_client::Reason;
use podplane_proto::ipam::{Assignment, BlockState, block_update};

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
async fn one_that_is_refused_keeps_no_other_from_its_blocks() {
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
        // All families or none: the second is taken.
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

/// What is there, by what the nodes say and by what the records say.
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
    let all: Vec<IpNet> = records
        .iter()
        .map(|record| record.cidr.parse().unwrap())
        .collect();
    for (index, one) in all.iter().enumerate() {
        // By address, so what overlaps follows at once or lies within.
        for other in &all[index + 1..] {
            assert!(
                !one.contains(other) && !other.contains(one),
                "{one} and {other}"
            );
        }
    }
}

/// Creates, assignments, deletions and releases of blocks of all sizes in a small range, by writers that pick what they do at random.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_records_ever_overlap() {
    const WRITERS: u64 = 8;
    const STEPS: u32 = 60;
    let server = TestServer::start().await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(writer));
        let (nodes, blocks) = (server.nodes(), server.client.blocks());
        writers.spawn(async move {
            for _ in 0..STEPS {
                let name = format!("n{}", random.u8(..12));
                let length = random.u8(24..30);
                let block = format!("10.0.{}.{}/{length}", random.u8(..2), random.u8(..));
                let block = block.parse::<IpNet>().unwrap().trunc().to_string();
                match random.u8(..6) {
                    0 => _ = nodes.create(&node(&name)).await,
                    1 => _ = nodes.create(&with_blocks(&name, &[&block])).await,
                    2 => _ = nodes.assign_pod_cidrs(&name, "", "", &[block]).await,
                    3 => {
                        let present = nodes.list(&Default::default()).await.unwrap().items;
                        let batch = present.iter().map(|node| {
                            let block = format!("10.0.0.{}/28", random.u8(..16) * 16);
                            assignment(node, &[&block])
                        });
                        blocks.assign(batch.collect()).await.unwrap();
                    }
                    4 => _ = nodes.delete(&name, &at_once()).await,
                    _ => {
                        let draining = blocks.list().await.unwrap().blocks.into_iter();
                        let release = draining.map(|block| {
                            let release = block_update::Change::Release(true);
                            change(&block.cidr, &block.node_name, &block.node_uid, release)
                        });
                        blocks.update(release.collect()).await.unwrap();
                    }
                }
            }
        });
    }
    // Looks while they write, at one revision of each list; between the two lists things may change, so only at the end are both compared.
    while let Some(done) = within(writers.join_next()).await {
        done.unwrap();
        let records = server.client.blocks().list().await.unwrap().blocks;
        let all: Vec<IpNet> = records
            .iter()
            .map(|record| record.cidr.parse().unwrap())
            .collect();
        assert!(
            all.windows(2).all(|two| !two[0].contains(&two[1])),
            "{all:?}"
        );
    }
    check(&server).await;
    server.stop().await;
}
