//! Holds: a block stays with its node while it is held, or while a stored pod has an address of it.

use podplane_client::Reason;
use podplane_proto::ipam::{
    BlockState, BlockUpdate, HoldChange, PodAddress, block_update, hold_change::Action,
};
use podplane_store::{Key, ListQuery, Prefix, SledStore, Txn};

use super::{
    admission::with_blocks,
    blocks::{RELEASE, change, state},
    *,
};

const BLOCK: &str = "10.0.0.0/24";

fn hold(action: Action, instance: &str) -> block_update::Change {
    block_update::Change::Hold(HoldChange {
        action: action.into(),
        instance: instance.into(),
        addresses: Vec::new(),
    })
}

/// A pod of node a with an address of its block.
async fn pod_in_block(server: &TestServer, name: &str, ip: &str) -> Pod {
    let pod = pod_with(json!({"metadata": {"name": name}, "spec": {"nodeName": "a"}}));
    let mut pod = server.pods().create(&pod).await.unwrap();
    pod.status = object::<Pod>(json!({"metadata": {}, "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}))
    .status;
    server.pods().update_status(&pod).await.unwrap()
}

#[tokio::test]
async fn only_the_holding_instance_ends_its_hold() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", a.uid(), to));
    let held = ask(hold(Action::Take, "one")).await.unwrap().unwrap();
    assert_eq!(held.state(), BlockState::Assigned);
    assert_eq!(held.hold.as_ref().unwrap().instance, "one");
    // Repeated, as after a lost answer; nothing is written.
    let again = ask(hold(Action::Take, "one")).await.unwrap().unwrap();
    assert_eq!(again.resource_version, held.resource_version);
    nodes.delete("a", &at_once()).await.unwrap();
    let record = server.records().await.remove(0);
    assert_eq!(record.state(), BlockState::Draining);
    assert_eq!(record.until, "", "no time ends it");
    for to in [RELEASE, state(BlockState::Quarantined)] {
        let error = ask(to).await.unwrap_err();
        assert_eq!(error.reason, Reason::InUse);
        assert!(
            error.message.contains("`podplane node forget a`"),
            "{error}"
        );
    }
    for action in [Action::Take, Action::End] {
        let error = ask(hold(action, "two")).await.unwrap_err();
        assert_eq!(error.reason, Reason::Forbidden, "{action:?}");
        assert!(error.message.contains("instance one"), "{error}");
        assert!(!error.message.contains("secret of"), "{error}");
    }
    let error = nodes.create(&with_blocks("b", &[BLOCK])).await.unwrap_err();
    assert!(error.message.contains("held by instance one"), "{error}");
    let ended = ask(hold(Action::End, "one")).await.unwrap().unwrap();
    assert_eq!(ended.hold, None);
    assert_eq!(ask(RELEASE).await.unwrap(), None);
    nodes.create(&with_blocks("b", &[BLOCK])).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn an_operator_can_end_a_hold() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", a.uid(), to));
    ask(hold(Action::Take, "one")).await.unwrap();
    nodes.delete("a", &at_once()).await.unwrap();
    ask(hold(Action::Forget, "")).await.unwrap();
    assert_eq!(ask(RELEASE).await.unwrap(), None);
    for wrong in [
        hold(Action::Unspecified, "one"),
        block_update::Change::Hold(HoldChange {
            action: Action::Take.into(),
            ..HoldChange::default()
        }),
    ] {
        let error = ask(wrong).await.unwrap_err();
        assert_eq!(error.reason, Reason::BadRequest);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_annotation_of_a_node_does_not_affect_holds() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let with = |name: &str, block: &str, count: &str| -> Node {
        let annotations = json!({"podplane.io/pod-ips-allocated": count});
        object(
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"podCIDRs": [block]}}),
        )
    };
    let a = nodes.create(&with("a", BLOCK, "0")).await.unwrap();
    let b = nodes.create(&with("b", "10.0.1.0/24", "3")).await.unwrap();
    let taken = change(BLOCK, "a", a.uid(), hold(Action::Take, "one"));
    server.update(taken).await.unwrap();
    for name in ["a", "b"] {
        nodes.delete(name, &at_once()).await.unwrap();
    }
    let release = change(BLOCK, "a", a.uid(), RELEASE);
    let error = server.update(release).await.unwrap_err();
    assert_eq!(error.reason, Reason::InUse);
    let release = change("10.0.1.0/24", "b", b.uid(), RELEASE);
    assert_eq!(
        server.update(release).await.unwrap(),
        None,
        "it never had a sandbox"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_block_is_not_released_while_a_pod_has_an_address_of_it() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let mut w = pod_in_block(&server, "w", "10.0.0.2").await;
    pod_in_block(&server, "x", "10.0.1.2").await;
    nodes.delete("a", &at_once()).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", a.uid(), to));
    for to in [RELEASE, state(BlockState::Quarantined)] {
        let error = ask(to).await.unwrap_err();
        assert_eq!(error.reason, Reason::InUse);
        assert!(error.message.contains("default/w (10.0.0.2)"), "{error}");
        assert!(!error.message.contains("default/x"), "{error}");
    }
    // The phase alone frees no address; the removal of the sandbox does.
    w.status.as_mut().unwrap().phase = Some("Succeeded".into());
    let mut w = server.pods().update_status(&w).await.unwrap();
    assert!(ask(RELEASE).await.is_err());
    let gone = object::<Pod>(json!({"metadata": {}, "status": {"conditions": [
        {"type": "PodReadyToStartContainers", "status": "False"}]}}));
    w.status.as_mut().unwrap().conditions = gone.status.unwrap().conditions;
    server.pods().update_status(&w).await.unwrap();
    assert_eq!(ask(RELEASE).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test]
async fn a_hold_names_the_address_of_a_deleted_pod() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", a.uid(), to));
    ask(hold(Action::Take, "one")).await.unwrap();
    pod_in_block(&server, "w", "10.0.0.2").await;
    nodes.delete("a", &at_once()).await.unwrap();
    server.pods().delete("w", &at_once()).await.unwrap();
    let known = server.records().await.remove(0).hold.unwrap().addresses;
    let known: Vec<_> = known
        .iter()
        .map(|held| (held.address.as_str(), held.name.as_str()))
        .collect();
    assert_eq!(known, [("10.0.0.2", "w")]);
    // The kubelet's report replaces it.
    let said = PodAddress {
        address: "10.0.0.3".into(),
        namespace: "default".into(),
        name: "v".into(),
        ..PodAddress::default()
    };
    let block_update::Change::Hold(take) = hold(Action::Take, "one") else {
        panic!();
    };
    let take = HoldChange {
        addresses: vec![said],
        ..take
    };
    let told = ask(block_update::Change::Hold(take))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(told.hold.unwrap().addresses[0].address, "10.0.0.3");
    ask(hold(Action::End, "one")).await.unwrap();
    assert_eq!(ask(RELEASE).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test]
async fn a_recreated_node_is_held_by_its_former_instance() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let first = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let taken = change(BLOCK, "a", first.uid(), hold(Action::Take, "one"));
    server.update(taken).await.unwrap();
    nodes.delete("a", &at_once()).await.unwrap();
    let second = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", second.uid(), to));
    let error = ask(hold(Action::Take, "two")).await.unwrap_err();
    assert_eq!(error.reason, Reason::Forbidden);
    let own = ask(hold(Action::Take, "one")).await.unwrap().unwrap();
    assert_eq!(own.state(), BlockState::Assigned);
    ask(hold(Action::Forget, "")).await.unwrap();
    let other = ask(hold(Action::Take, "two")).await.unwrap().unwrap();
    assert_eq!(other.hold.unwrap().instance, "two");
    server.stop().await;
}

#[tokio::test]
async fn a_hold_expires_after_the_configured_delay() {
    let policy = BlockPolicy {
        release_after: Some(Duration::from_millis(300)),
        ..BlockPolicy::default()
    };
    let server = TestServer::under(policy, MemStore::new()).await;
    let nodes = server.nodes();
    let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
    let ask = |to| server.update(change(BLOCK, "a", a.uid(), to));
    ask(hold(Action::Take, "one")).await.unwrap();
    nodes.delete("a", &at_once()).await.unwrap();
    assert_ne!(server.records().await[0].until, "");
    let released = async {
        while ask(RELEASE).await.is_err() {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(released).await;
    assert_eq!(server.states().await, [""; 0]);
    server.stop().await;
}

/// Changes a store that no server has open to the form of a version without holds.
async fn make_old(store: &SledStore) {
    let query = ListQuery {
        prefix: Prefix::from("/podplane/addresses/"),
        ..ListQuery::default()
    };
    let index = Store::list(store, query).await.unwrap();
    let mut txn = Txn::default().delete(Key::try_from("/podplane/block-holds").unwrap());
    for item in index.items {
        txn = txn.delete(item.key.clone());
    }
    Store::commit(store, txn).await.unwrap();
}

#[tokio::test]
async fn adds_holds_to_a_store_of_an_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let nodes = server.nodes();
    let node = |name: &str, block: &str, count: &str| -> Node {
        let annotations = json!({"podplane.io/pod-ips-allocated": count});
        object(
            json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"podCIDRs": [block]}}),
        )
    };
    let a = nodes.create(&node("a", BLOCK, "2")).await.unwrap();
    let b = nodes.create(&node("b", "10.0.1.0/24", "0")).await.unwrap();
    pod_in_block(&server, "w", "10.0.1.2").await;
    server.stop().await;
    let store = SledStore::open(dir.path()).unwrap();
    make_old(&store).await;
    drop(store);

    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let holds: Vec<_> = server
        .records()
        .await
        .into_iter()
        .map(|block| block.hold.map(|hold| hold.instance))
        .collect();
    assert_eq!(holds, [Some(String::new()), None]);
    for name in ["a", "b"] {
        server.nodes().delete(name, &at_once()).await.unwrap();
    }
    let of_a = |to| change(BLOCK, "a", a.uid(), to);
    let error = server.update(of_a(RELEASE)).await.unwrap_err();
    assert!(error.message.contains("not known"), "{error}");
    // The first instance of the node to ask gets it.
    let taken = server
        .update(of_a(hold(Action::Take, "one")))
        .await
        .unwrap();
    assert_eq!(taken.unwrap().hold.unwrap().instance, "one");
    let stranger = server.update(of_a(hold(Action::End, "two"))).await;
    assert_eq!(stranger.unwrap_err().reason, Reason::Forbidden);
    let of_b = change("10.0.1.0/24", "b", b.uid(), RELEASE);
    let error = server.update(of_b).await.unwrap_err();
    assert!(error.message.contains("default/w (10.0.1.2)"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn concurrent_release_and_address_see_each_other() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    for round in 0..20 {
        let a = nodes.create(&with_blocks("a", &[BLOCK])).await.unwrap();
        let pod = pod_with(json!({"metadata": {"name": "w"}, "spec": {"nodeName": "a"}}));
        let mut pod = server.pods().create(&pod).await.unwrap();
        nodes.delete("a", &at_once()).await.unwrap();
        pod.status = object::<Pod>(json!({"metadata": {}, "status": {
            "phase": "Running", "podIPs": [{"ip": "10.0.0.2"}]}}))
        .status;
        let release = server.update(change(BLOCK, "a", a.uid(), RELEASE));
        let pods = server.pods();
        let (released, written) = tokio::join!(release, pods.update_status(&pod));
        let written: u64 = written.unwrap().resource_version().parse().unwrap();
        let listed = server.client.blocks().list().await.unwrap();
        match released {
            Ok(_) => assert!(listed.blocks.is_empty(), "round {round}"),
            Err(error) => {
                assert_eq!(error.reason, Reason::InUse, "round {round}");
                assert_eq!(listed.blocks.len(), 1, "round {round}");
                assert!(written > 0);
            }
        }
        server.pods().delete("w", &at_once()).await.unwrap();
        let release: BlockUpdate = change(BLOCK, "a", a.uid(), RELEASE);
        assert_eq!(server.update(release).await.unwrap(), None, "round {round}");
    }
    server.stop().await;
}
