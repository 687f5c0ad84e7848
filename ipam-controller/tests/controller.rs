//! The whole controller, over gRPC, against an apiserver that loses requests and answers.

#![expect(clippy::disallowed_methods, reason = "a test")]

mod common;

use std::time::Duration;

use common::{AssignmentFault, IpamApiserver};
use podplane_client::ServerFlags;
use podplane_ipam_controller::{AllocatorType, CloudFlags, IpamControllerConfig, run};
use podplane_proto::ipam::{
    AuditRequest, BlockState, FindBlocksRequest, GetOwnerRequest, ListFreeRequest,
    ListPoolsRequest, ipam_service_client::IpamServiceClient,
};
use podplane_service_runtime::serving::{AuthenticationMode, ServingFlags};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct RunningController {
    config: IpamControllerConfig,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    directory: tempfile::TempDir,
}

impl RunningController {
    /// A controller of four blocks, one of them in the service range.
    async fn start(fake: &IpamApiserver) -> Self {
        Self::start_with(fake, |_| {}).await
    }

    async fn start_with(
        fake: &IpamApiserver,
        change: impl FnOnce(&mut IpamControllerConfig),
    ) -> Self {
        let mut tasks = JoinSet::new();
        let server = fake.serve(&mut tasks).await;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = IpamControllerConfig {
            server: ServerFlags::of(server.to_string().parse().expect("an address")),
            listen: "127.0.0.1:0".parse().expect("an address"),
            allowed_hosts: Default::default(),
            serving: ServingFlags {
                authentication: AuthenticationMode::None,
                ..ServingFlags::default()
            },
            address_file: Some(directory.path().join("address")),
            allocate_node_cidrs: true,
            cidr_allocator_type: AllocatorType::RangeAllocator,
            cluster_cidr: "10.244.0.0/22".to_owned(),
            node_cidr_mask_size: None,
            node_cidr_mask_size_ipv4: None,
            node_cidr_mask_size_ipv6: None,
            service_cluster_ip_range: "10.244.3.0/28".to_owned(),
            compat: podplane_ipam::Compat::None,
            inject_patch: None,
            orphan_quarantine: 0,
            cluster: CloudFlags {
                cloud_endpoint: None,
                cloud_certificate_authority: None,
                cloud_client_certificate: None,
                cloud_client_key: None,
                release_delay: Duration::ZERO,
            },
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

    /// Stops the controller wherever it is, and starts another.
    async fn restart(&mut self) {
        self.end().await;
        self.begin();
    }

    async fn end(&mut self) {
        self.stop.cancel();
        self.tasks
            .join_next()
            .await
            .expect("the controller is a task")
            .expect("it does not panic");
    }

    fn begin(&mut self) {
        self.stop = CancellationToken::new();
        self.spawn();
    }

    fn ask(&self) -> IpamServiceClient<podplane_client::Channel> {
        let address =
            std::fs::read_to_string(self.directory.path().join("address")).expect("it listens");
        let endpoint: podplane_client::Endpoint = address.trim().parse().expect("an address");
        IpamServiceClient::new(podplane_client::endpoint::channel(&endpoint).expect("no TLS"))
    }
}

fn holds(node: &'static str, block: &'static str) -> impl Fn(&common::ControllerState) -> bool {
    move |state| state.blocks(node) == [block]
}

#[tokio::test]
async fn assigns_blocks_until_exhausted_and_again_after_a_release() {
    let fake = IpamApiserver::default();
    fake.add_node("old", "u0", &["10.244.1.0/24"]);
    let running = RunningController::start(&fake).await;
    fake.add_node("a", "u1", &[]);
    fake.until(holds("a", "10.244.0.0/24")).await;
    fake.add_node("b", "u2", &[]);
    fake.until(holds("b", "10.244.2.0/24")).await;

    fake.add_node("late", "u3", &[]);
    fake.until(|state| !state.events.is_empty()).await;
    let event = fake.read(|state| state.events[0].clone());
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
    assert_eq!(fake.read(|state| state.blocks("late")), [""; 0]);

    fake.remove_node("old");
    fake.until(holds("late", "10.244.1.0/24")).await;

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
async fn assigns_no_block_twice_after_lost_calls() {
    let fake = IpamApiserver::default();
    let mut running = RunningController::start(&fake).await;
    for fault in [
        AssignmentFault::AnswerLost,
        AssignmentFault::RequestLost,
        AssignmentFault::Conflict,
        AssignmentFault::Refused,
    ] {
        fake.change(|state| state.faults = vec![fault; 3]);
        for (node, uid) in [("a", "u1"), ("b", "u2"), ("c", "u3")] {
            fake.add_node(node, &format!("{uid}{fault:?}"), &[]);
        }
        let assigned = |state: &common::ControllerState| {
            ["a", "b", "c"]
                .iter()
                .all(|node| state.blocks(node).len() == 1)
        };
        fake.until(assigned).await;
        let mut blocks: Vec<String> = fake.read(|state| {
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
            .for_each(|node| fake.remove_node(node));
    }
    running.stop.cancel();
    running.tasks.abort_all();
    while running.tasks.join_next().await.is_some() {}
}

#[tokio::test]
async fn new_controller_knows_assigned_blocks() {
    let fake = IpamApiserver::default();
    let mut running = RunningController::start(&fake).await;
    fake.add_node("a", "u1", &[]);
    fake.until(holds("a", "10.244.0.0/24")).await;
    running.restart().await;
    fake.add_node("b", "u2", &[]);
    fake.until(holds("b", "10.244.1.0/24")).await;
    running.stop.cancel();
}

/// The record of the block has its state, and not the watch of a controller.
#[tokio::test]
async fn new_controller_releases_the_block_of_a_node_deleted_meanwhile() {
    let fake = IpamApiserver::default();
    let mut running = RunningController::start_with(&fake, |config| {
        config.cluster_cidr = "10.244.0.0/24".into();
        config.service_cluster_ip_range.clear();
    })
    .await;
    fake.add_node("a", "u1", &[]);
    fake.until(holds("a", "10.244.0.0/24")).await;
    running.end().await;
    fake.remove_node("a");
    fake.add_node("b", "u2", &[]);
    running.begin();
    fake.until(holds("b", "10.244.0.0/24")).await;
    running.stop.cancel();
}

#[tokio::test]
async fn reports_and_keeps_overlapping_blocks() {
    let fake = IpamApiserver::default();
    fake.add_node("a", "u1", &["10.244.0.0/24"]);
    fake.add_node("b", "u2", &["10.244.0.0/24"]);
    let running = RunningController::start(&fake).await;
    fake.until(|state| !state.events.is_empty()).await;
    let event = fake.read(|state| state.events[0].clone());
    assert_eq!(event.reason.as_deref(), Some("ForeignPodCIDR"));
    assert_eq!(
        event.message.as_deref(),
        Some(
            "cidr 10.244.0.0/24 overlaps 10.244.0.0/24 of node a; the block is kept, and nothing else is given there"
        )
    );
    assert_eq!(event.involved_object.name.as_deref(), Some("b"));
    fake.add_node("c", "u3", &[]);
    fake.until(holds("c", "10.244.1.0/24")).await;

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

/// Waits until the findings are `want`.
async fn wait_for_findings(running: &RunningController, want: &[&str]) {
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
async fn reports_overlaps_beside_an_imitated_allocator_without_writing() {
    let fake = IpamApiserver::default();
    fake.add_node("a", "u1", &["10.244.0.0/24"]);
    fake.add_node("b", "u2", &["10.244.0.0/24"]);
    fake.add_node("c", "u3", &["10.244.1.0/24"]);
    let running = RunningController::start_with(&fake, |config| {
        config.compat = podplane_ipam::Compat::Upstream;
    })
    .await;
    wait_for_findings(&running, &["duplicate-pod-cidr"; 2]).await;
    fake.remove_node("b");
    fake.remove_node("c");
    wait_for_findings(&running, &[]).await;
    let record = fake.record("10.244.1.0/24").expect("it is not released");
    assert_eq!(record.state(), BlockState::Draining);
    assert_eq!(fake.read(|state| state.events.len()), 0);
    running.stop.cancel();
}

#[tokio::test]
async fn deletes_only_pods_of_deleted_nodes() {
    let fake = IpamApiserver::default();
    fake.add_node("stays", "u1", &[]);
    fake.add_node("goes", "u2", &[]);
    fake.add_pod("on-stays", "stays");
    fake.add_pod("on-goes", "goes");
    fake.add_pod("orphan-from-the-start", "long-gone");
    // The node exists, but lists and watches are behind.
    fake.change(|state| state.unseen.push("new".to_owned()));
    fake.add_node("new", "u3", &[]);
    fake.add_pod("on-new", "new");
    let running = RunningController::start(&fake).await;
    fake.until(|state| !state.pods.contains_key("orphan-from-the-start"))
        .await;
    fake.remove_node("goes");
    fake.until(|state| !state.pods.contains_key("on-goes"))
        .await;
    let left: Vec<String> = fake.read(|state| state.pods.keys().cloned().collect());
    assert_eq!(left, ["on-new", "on-stays"]);
    running.stop.cancel();
}

#[tokio::test]
async fn rejects_flags_that_leave_no_block() {
    let fake = IpamApiserver::default();
    let running = RunningController::start(&fake).await;
    let refused = |change: fn(&mut IpamControllerConfig)| {
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
async fn hanging_call_delays_only_its_own_node() {
    let fake = IpamApiserver::default();
    fake.change(|state| state.hanging.push("slow".to_owned()));
    let running = RunningController::start_with(&fake, |config| config.assign_batch_size = 1).await;
    fake.add_node("slow", "u1", &[]);
    for (node, uid) in [("a", "u2"), ("b", "u3")] {
        fake.add_node(node, uid, &[]);
        fake.until(|state| state.blocks(node).len() == 1).await;
    }
    assert_eq!(fake.read(|state| state.blocks("slow")), [""; 0]);
    running.stop.cancel();
}

#[tokio::test]
async fn batches_assignments_of_simultaneous_nodes() {
    let fake = IpamApiserver::default();
    for index in 0..100 {
        fake.add_node(&format!("node-{index:02}"), &format!("u{index}"), &[]);
    }
    let running =
        RunningController::start_with(&fake, |config| config.cluster_cidr = "10.244.0.0/16".into())
            .await;
    let all = |state: &common::ControllerState| {
        let mut names = state.nodes.keys();
        names.all(|node| state.blocks(node).len() == 1)
    };
    fake.until(all).await;
    let batches = fake.read(|state| state.batches.clone());
    assert!(batches.len() < 20 && batches.contains(&16), "{batches:?}");
    running.stop.cancel();
}

#[tokio::test]
async fn successor_releases_a_block_quarantined_in_the_store() {
    let fake = IpamApiserver::default();
    let mut running = RunningController::start_with(&fake, |config| {
        config.cluster_cidr = "10.244.0.0/24".into();
        config.service_cluster_ip_range.clear();
        config.cluster.release_delay = Duration::from_secs(1);
    })
    .await;
    fake.add_node("a", "u1", &[]);
    fake.until(holds("a", "10.244.0.0/24")).await;
    fake.remove_node("a");
    let state = |wanted: BlockState| {
        move |state: &common::ControllerState| state.records.values().any(|r| r.state() == wanted)
    };
    fake.until(state(BlockState::Quarantined)).await;
    running.restart().await;
    fake.add_node("b", "u2", &[]);
    fake.until(|state| !state.events.is_empty()).await;
    assert!(
        fake.record("10.244.0.0/24")
            .is_some_and(|record| record.node_uid == "u1")
    );
    fake.until(holds("b", "10.244.0.0/24")).await;
    assert!(
        fake.record("10.244.0.0/24")
            .is_some_and(|record| record.node_uid == "u2")
    );
    running.stop.cancel();
}

#[tokio::test]
async fn marks_a_foreign_block_until_it_fits() {
    let condition = |state: &common::ControllerState| {
        let status = state.nodes["a"].status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition.type_ == "PodCIDRForeign");
        found.map(|found| (found.status, found.reason.unwrap_or_default()))
    };
    let is = |status: &'static str, reason: &'static str| {
        move |state: &common::ControllerState| {
            condition(state) == Some((status.into(), reason.into()))
        }
    };
    let fake = IpamApiserver::default();
    fake.add_node("a", "u1", &["10.244.1.0/24"]);
    let mut running =
        RunningController::start_with(&fake, |config| config.node_cidr_mask_size = Some(23)).await;
    fake.until(is("True", "WrongSize")).await;
    let recorded = |wanted: BlockState| {
        move |state: &common::ControllerState| state.records.values().all(|r| r.state() == wanted)
    };
    fake.until(recorded(BlockState::Foreign)).await;
    fake.add_node("b", "u2", &[]);
    fake.until(|state| {
        !state
            .events
            .iter()
            .all(|event| event.reason.as_deref() == Some("ForeignPodCIDR"))
    })
    .await;
    running.config.node_cidr_mask_size = None;
    running.restart().await;
    fake.until(is("False", "PodCIDRFits")).await;
    fake.until(recorded(BlockState::Assigned)).await;
    fake.until(holds("b", "10.244.0.0/24")).await;
    running.stop.cancel();
}

#[tokio::test]
async fn ends_when_leadership_is_lost() {
    let fake = IpamApiserver::default();
    fake.change(|state| state.faults = vec![AssignmentFault::FenceLost]);
    fake.add_node("a", "u1", &[]);
    let running =
        RunningController::start_with(&fake, |config| config.allocate_node_cidrs = false).await;
    let (mut config, stop) = (running.config.clone(), CancellationToken::new());
    config.allocate_node_cidrs = true;
    let ended = tokio::time::timeout(Duration::from_secs(20), run(config, stop)).await;
    let error = ended.expect("it ends by itself").unwrap_err();
    let said = podplane_error_chain::one_line(&error);
    assert!(said.contains("another process leads"), "{said}");
    assert_eq!(fake.read(|state| state.blocks("a")), [""; 0]);
    running.stop.cancel();
}
