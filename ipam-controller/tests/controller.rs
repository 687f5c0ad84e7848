//! The whole controller, over gRPC, against an apiserver that loses requests and answers.

mod common;

use std::time::Duration;

use common::{Fault, World};
use podplane_ipam_controller::{AllocatorType, Config, run};
use podplane_proto::ipam::{
    AuditRequest, BlockState, FindBlocksRequest, GetOwnerRequest, ListFreeRequest,
    ListPoolsRequest, ipam_service_client::IpamServiceClient,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct Running {
    config: Config,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    directory: tempfile::TempDir,
}

impl Running {
    /// A controller of four blocks, one of them in the service range.
    async fn start(world: &World) -> Self {
        Self::start_with(world, |_| {}).await
    }

    async fn start_with(world: &World, change: impl FnOnce(&mut Config)) -> Self {
        let mut tasks = JoinSet::new();
        let server = world.serve(&mut tasks).await;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config {
            server: server.to_string().parse().expect("an address"),
            listen: "127.0.0.1:0".parse().expect("an address"),
            allowed_hosts: Default::default(),
            address_file: Some(directory.path().join("address")),
            allocate_node_cidrs: true,
            cidr_allocator_type: AllocatorType::RangeAllocator,
            cloud_endpoint: None,
            cluster_cidr: "10.244.0.0/22".to_owned(),
            node_cidr_mask_size: None,
            node_cidr_mask_size_ipv4: None,
            node_cidr_mask_size_ipv6: None,
            service_cluster_ip_range: "10.244.3.0/28".to_owned(),
            compat: podplane_ipam::Compat::None,
            inject_patch: None,
            orphan_quarantine: 0,
            release_delay: Duration::ZERO,
            assign_batch_size: 16,
            leader_election: common::no_election(),
        };
        change(&mut config);
        let mut running = Self {
            config,
            stop: CancellationToken::new(),
            tasks,
            directory,
        };
        running.spawn();
        running
    }

    fn spawn(&mut self) {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        self.tasks
            .spawn(async move { run(config, stop).await.expect("the controller runs") });
    }

    /// Ends the controller in the middle of whatever it does, and starts another.
    async fn restart(&mut self) {
        self.stop.cancel();
        self.tasks
            .join_next()
            .await
            .expect("the controller is a task")
            .expect("it does not panic");
        self.stop = CancellationToken::new();
        self.spawn();
    }

    fn ask(&self) -> IpamServiceClient<tonic::transport::Channel> {
        let address =
            std::fs::read_to_string(self.directory.path().join("address")).expect("it listens");
        let endpoint: podplane_client::Endpoint = address.trim().parse().expect("an address");
        IpamServiceClient::new(podplane_client::endpoint::channel(&endpoint).expect("no TLS"))
    }
}

fn holds(node: &'static str, block: &'static str) -> impl Fn(&common::State) -> bool {
    move |state| state.blocks(node) == [block]
}

#[tokio::test]
async fn nodes_get_blocks_until_none_is_left_and_again_when_one_is_freed() {
    let world = World::default();
    world.add_node("old", "u0", &["10.244.1.0/24"]);
    let running = Running::start(&world).await;
    world.add_node("a", "u1", &[]);
    world.until(holds("a", "10.244.0.0/24")).await;
    world.add_node("b", "u2", &[]);
    world.until(holds("b", "10.244.2.0/24")).await;

    world.add_node("late", "u3", &[]);
    world.until(|state| !state.events.is_empty()).await;
    let event = world.read(|state| state.events[0].clone());
    assert_eq!(event.reason.as_deref(), Some("CIDRNotAvailable"));
    assert_eq!(
        event.message.as_deref(),
        Some("Node late status is now: CIDRNotAvailable")
    );
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(
        event.source.unwrap().component.as_deref(),
        Some("cidrAllocator")
    );
    assert_eq!(event.reporting_component.as_deref(), Some("cidrAllocator"));
    assert_eq!(event.involved_object.name.as_deref(), Some("late"));
    assert_eq!(world.read(|state| state.blocks("late")), [""; 0]);

    world.remove_node("old");
    world.until(holds("late", "10.244.1.0/24")).await;

    let mut client = running.ask();
    let question = GetOwnerRequest {
        address: "10.244.1.9".to_owned(),
    };
    let blocks = client
        .get_owner(question)
        .await
        .unwrap()
        .into_inner()
        .blocks;
    assert_eq!(blocks.len(), 1);
    assert_eq!(
        (blocks[0].cidr.as_str(), blocks[0].node_name.as_str()),
        ("10.244.1.0/24", "late")
    );
    let pools = client
        .list_pools(ListPoolsRequest {})
        .await
        .unwrap()
        .into_inner()
        .pools;
    assert_eq!((pools[0].capacity, pools[0].used, pools[0].free), (4, 4, 0));
    assert_eq!(
        pools[0].blocks.last().unwrap().state(),
        BlockState::Reserved
    );
    let refused = client
        .get_owner(GetOwnerRequest {
            address: "late".to_owned(),
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    running.stop.cancel();
}

#[tokio::test]
async fn lost_calls_give_no_block_twice() {
    let world = World::default();
    let mut running = Running::start(&world).await;
    for fault in [
        Fault::AnswerLost,
        Fault::RequestLost,
        Fault::Conflict,
        Fault::Refused,
    ] {
        world.change(|state| state.faults = vec![fault; 3]);
        for (node, uid) in [("a", "u1"), ("b", "u2"), ("c", "u3")] {
            world.add_node(node, &format!("{uid}{fault:?}"), &[]);
        }
        let assigned = |state: &common::State| {
            ["a", "b", "c"]
                .iter()
                .all(|node| state.blocks(node).len() == 1)
        };
        world.until(assigned).await;
        let mut blocks: Vec<String> = world.read(|state| {
            ["a", "b", "c"]
                .iter()
                .flat_map(|node| state.blocks(node))
                .collect()
        });
        blocks.sort();
        assert_eq!(
            blocks,
            ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"],
            "{fault:?}"
        );
        ["a", "b", "c"]
            .iter()
            .for_each(|node| world.remove_node(node));
    }
    running.stop.cancel();
    running.tasks.abort_all();
    while running.tasks.join_next().await.is_some() {}
}

#[tokio::test]
async fn a_new_controller_knows_what_the_last_one_gave() {
    let world = World::default();
    let mut running = Running::start(&world).await;
    world.add_node("a", "u1", &[]);
    world.until(holds("a", "10.244.0.0/24")).await;
    running.restart().await;
    world.add_node("b", "u2", &[]);
    world.until(holds("b", "10.244.1.0/24")).await;
    running.stop.cancel();
}

#[tokio::test]
async fn a_block_that_overlaps_is_reported_and_left_alone() {
    let world = World::default();
    world.add_node("a", "u1", &["10.244.0.0/24"]);
    world.add_node("b", "u2", &["10.244.0.0/24"]);
    let running = Running::start(&world).await;
    world.until(|state| !state.events.is_empty()).await;
    let event = world.read(|state| state.events[0].clone());
    assert_eq!(event.reason.as_deref(), Some("ForeignPodCIDR"));
    assert_eq!(
        event.message.as_deref(),
        Some(
            "cidr 10.244.0.0/24 overlaps 10.244.0.0/24 of node a; the block is kept, and nothing else is given there"
        )
    );
    assert_eq!(event.involved_object.name.as_deref(), Some("b"));
    world.add_node("c", "u3", &[]);
    world.until(holds("c", "10.244.1.0/24")).await;

    let mut client = running.ask();
    let findings = client.audit(AuditRequest {}).await.unwrap().into_inner();
    let findings = findings.findings.iter();
    let found: Vec<_> = findings
        .map(|found| (found.code.as_str(), found.severity.as_str()))
        .collect();
    assert_eq!(found, [("duplicate-pod-cidr", "error"); 2]);
    let free = client.list_free(ListFreeRequest::default()).await.unwrap();
    let free = free.into_inner().prefixes;
    let free: Vec<_> = free.iter().map(|free| (&*free.cidr, free.blocks)).collect();
    assert_eq!(free, [("10.244.2.0/24", 1)]);
    let foreign = FindBlocksRequest {
        states: vec![BlockState::Foreign.into()],
        ..FindBlocksRequest::default()
    };
    let foreign = client.find_blocks(foreign).await.unwrap().into_inner();
    assert_eq!((foreign.blocks.len(), foreign.more), (1, false));
    assert_eq!(foreign.blocks[0].node_name, "b");
    running.stop.cancel();
}

/// Waits until that is what is found.
async fn found(running: &Running, want: &[&str]) {
    let asked = async {
        loop {
            if running.directory.path().join("address").exists()
                && let Ok(answer) = running.ask().audit(AuditRequest {}).await
                && answer
                    .get_ref()
                    .findings
                    .iter()
                    .map(|found| found.code.as_str())
                    .eq(want.iter().copied())
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), asked).await;
    assert!(found.is_ok(), "{want:?} is found");
}

#[tokio::test]
async fn overlaps_are_seen_beside_the_references_allocator_and_nothing_is_written() {
    let world = World::default();
    world.add_node("a", "u1", &["10.244.0.0/24"]);
    world.add_node("b", "u2", &["10.244.0.0/24"]);
    world.add_node("c", "u3", &["10.244.1.0/24"]);
    let running = Running::start_with(&world, |config| {
        config.compat = podplane_ipam::Compat::Upstream;
    })
    .await;
    found(&running, &["duplicate-pod-cidr"; 2]).await;
    world.remove_node("b");
    world.remove_node("c");
    found(&running, &[]).await;
    let record = world.record("10.244.1.0/24").expect("it is not released");
    assert_eq!(record.state(), BlockState::Draining);
    assert_eq!(world.read(|state| state.events.len()), 0);
    running.stop.cancel();
}

#[tokio::test]
async fn pods_of_a_node_that_is_gone_are_deleted_and_no_others() {
    let world = World::default();
    world.add_node("stays", "u1", &[]);
    world.add_node("goes", "u2", &[]);
    world.add_pod("on-stays", "stays");
    world.add_pod("on-goes", "goes");
    world.add_pod("orphan-from-the-start", "long-gone");
    // It exists, but lists and watches are behind.
    world.change(|state| state.unseen.push("new".to_owned()));
    world.add_node("new", "u3", &[]);
    world.add_pod("on-new", "new");
    let running = Running::start(&world).await;
    world
        .until(|state| !state.pods.contains_key("orphan-from-the-start"))
        .await;
    world.remove_node("goes");
    world
        .until(|state| !state.pods.contains_key("on-goes"))
        .await;
    let left: Vec<String> = world.read(|state| state.pods.keys().cloned().collect());
    assert_eq!(left, ["on-new", "on-stays"]);
    running.stop.cancel();
}

#[tokio::test]
async fn flags_without_a_block_for_any_node_are_refused() {
    let world = World::default();
    let running = Running::start(&world).await;
    let refused = |change: fn(&mut Config)| {
        let mut config = running.config.clone();
        change(&mut config);
        config.ranges().unwrap_err().to_string()
    };
    assert_eq!(
        refused(|config| config.service_cluster_ip_range = "10.0.0.0/8".to_owned()),
        "service range 10.0.0.0/8 takes every block of cluster CIDR 10.244.0.0/22; no node can be given one"
    );
    assert_eq!(
        refused(|config| config.cluster_cidr.clear()),
        "invalid CIDR[0]: <nil> (invalid CIDR address: )"
    );
    running.stop.cancel();
    let mut tasks = running.tasks;
    let ended = tokio::time::timeout(Duration::from_secs(4), tasks.join_next()).await;
    assert!(ended.is_ok(), "the controller ends when it is asked to");
}

#[tokio::test]
async fn an_answer_that_never_comes_holds_back_its_own_node_only() {
    let world = World::default();
    world.change(|state| state.hanging.push("slow".to_owned()));
    let running = Running::start_with(&world, |config| config.assign_batch_size = 1).await;
    world.add_node("slow", "u1", &[]);
    for (node, uid) in [("a", "u2"), ("b", "u3")] {
        world.add_node(node, uid, &[]);
        world.until(|state| state.blocks(node).len() == 1).await;
    }
    assert_eq!(world.read(|state| state.blocks("slow")), [""; 0]);
    running.stop.cancel();
}

#[tokio::test]
async fn nodes_that_come_together_are_served_by_few_calls() {
    let world = World::default();
    for index in 0..100 {
        world.add_node(&format!("node-{index:02}"), &format!("u{index}"), &[]);
    }
    let running = Running::start_with(&world, |config| {
        config.cluster_cidr = "10.244.0.0/16".into()
    })
    .await;
    let all = |state: &common::State| {
        let mut names = state.nodes.keys();
        names.all(|node| state.blocks(node).len() == 1)
    };
    world.until(all).await;
    let batches = world.read(|state| state.batches.clone());
    assert!(batches.len() < 20 && batches.contains(&16), "{batches:?}");
    running.stop.cancel();
}

#[tokio::test]
async fn a_released_block_is_quarantined_in_the_store_and_a_successor_releases_it() {
    let world = World::default();
    let mut running = Running::start_with(&world, |config| {
        config.cluster_cidr = "10.244.0.0/24".into();
        config.service_cluster_ip_range.clear();
        config.release_delay = Duration::from_secs(1);
    })
    .await;
    world.add_node("a", "u1", &[]);
    world.until(holds("a", "10.244.0.0/24")).await;
    world.remove_node("a");
    let state = |wanted: BlockState| {
        move |state: &common::State| state.records.values().any(|r| r.state() == wanted)
    };
    world.until(state(BlockState::Quarantined)).await;
    running.restart().await;
    world.add_node("b", "u2", &[]);
    world.until(|state| !state.events.is_empty()).await;
    assert!(
        world
            .record("10.244.0.0/24")
            .is_some_and(|record| record.node_uid == "u1")
    );
    world.until(holds("b", "10.244.0.0/24")).await;
    assert!(
        world
            .record("10.244.0.0/24")
            .is_some_and(|record| record.node_uid == "u2")
    );
    running.stop.cancel();
}

#[tokio::test]
async fn a_block_of_another_configuration_is_marked_until_it_fits() {
    let condition = |state: &common::State| {
        let status = state.nodes["a"].status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition.type_ == "PodCIDRForeign");
        found.map(|found| (found.status, found.reason.unwrap_or_default()))
    };
    let is = |status: &'static str, reason: &'static str| {
        move |state: &common::State| condition(state) == Some((status.into(), reason.into()))
    };
    let world = World::default();
    world.add_node("a", "u1", &["10.244.1.0/24"]);
    let mut running =
        Running::start_with(&world, |config| config.node_cidr_mask_size = Some(23)).await;
    world.until(is("True", "WrongSize")).await;
    let recorded = |wanted: BlockState| {
        move |state: &common::State| state.records.values().all(|r| r.state() == wanted)
    };
    world.until(recorded(BlockState::Foreign)).await;
    world.add_node("b", "u2", &[]);
    world
        .until(|state| {
            !state
                .events
                .iter()
                .all(|event| event.reason.as_deref() == Some("ForeignPodCIDR"))
        })
        .await;
    running.config.node_cidr_mask_size = None;
    running.restart().await;
    world.until(is("False", "PodCIDRFits")).await;
    world.until(recorded(BlockState::Assigned)).await;
    world.until(holds("b", "10.244.0.0/24")).await;
    running.stop.cancel();
}

#[tokio::test]
async fn whoever_leads_no_more_ends() {
    let world = World::default();
    world.change(|state| state.faults = vec![Fault::FenceLost]);
    world.add_node("a", "u1", &[]);
    let running = Running::start_with(&world, |config| config.allocate_node_cidrs = false).await;
    let (mut config, stop) = (running.config.clone(), CancellationToken::new());
    config.allocate_node_cidrs = true;
    let ended = tokio::time::timeout(Duration::from_secs(20), run(config, stop)).await;
    let error = ended.expect("it ends by itself").unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    assert!(
        causes.contains(&"another controller leads".to_owned()),
        "{causes:?}"
    );
    assert_eq!(world.read(|state| state.blocks("a")), [""; 0]);
    running.stop.cancel();
}
