//! The whole scheduler, over gRPC, against an API server that loses requests and answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{Fault, World, node, pod};
use podplane_client::Endpoint;
use podplane_proto::scheduler::{
    ExplainPodRequest, PodState, scheduler_service_client::SchedulerServiceClient,
};
use podplane_scheduler::{Config, IpPolicy, run};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct Running {
    config: Config,
    stop: CancellationToken,
    scheduler: JoinSet<()>,
    directory: tempfile::TempDir,
    _server: JoinSet<()>,
}

impl Running {
    async fn start(world: &World) -> Self {
        let mut server = JoinSet::new();
        let address = world.serve(&mut server).await;
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            server: address.to_string().parse().unwrap(),
            listen: "127.0.0.1:0".parse().unwrap(),
            allowed_hosts: Default::default(),
            address_file: Some(directory.path().join("address")),
            ip_policy: IpPolicy::Resource,
        };
        let mut running = Self {
            config,
            stop: CancellationToken::new(),
            scheduler: JoinSet::new(),
            directory,
            _server: server,
        };
        running.spawn();
        running
    }

    fn spawn(&mut self) {
        let (config, stop) = (self.config.clone(), self.stop.clone());
        self.scheduler
            .spawn(async move { run(config, stop).await.unwrap() });
    }

    /// Ends the scheduler in the middle of whatever it does, and starts another.
    async fn restart(&mut self) {
        self.stop.cancel();
        self.scheduler.join_next().await.unwrap().unwrap();
        self.stop = CancellationToken::new();
        self.spawn();
    }

    /// State and message of a pod, and the nodes that refuse it.
    async fn explain(&self, name: &str) -> (PodState, String, Vec<String>) {
        let address = std::fs::read_to_string(self.directory.path().join("address")).unwrap();
        let endpoint: Endpoint = address.trim().parse().unwrap();
        let channel = podplane_client::endpoint::channel(&endpoint).unwrap();
        let question = ExplainPodRequest {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let mut client = SchedulerServiceClient::new(channel);
        let answer = client.explain_pod(question).await.unwrap().into_inner();
        let refusing = answer.verdicts.iter().map(|v| v.node_name.clone());
        (answer.state(), answer.message.clone(), refusing.collect())
    }
}

#[tokio::test]
async fn pods_run_where_there_are_addresses_and_the_others_say_why_they_wait() {
    let world = World::new();
    world.change(|state| state.put_node(node("n", "10.255.0.0/29", 5)));
    let running = Running::start(&world).await;
    for n in 0..9 {
        world.change(|state| state.put_pod(pod(&format!("p{n}"))));
    }
    world
        .until("five run, four wait", |state| {
            state.on("n").len() == 5 && state.waiting().len() == 4
        })
        .await;
    let message = "0/1 nodes are available: 1 Insufficient pod IPs.";
    let condition = ("Unschedulable".to_owned(), message.to_owned());
    assert_eq!(world.read(common::State::waiting), vec![condition; 4]);
    world
        .until("each has its event", |state| {
            state.events("Scheduled").len() == 5 && state.events("FailedScheduling").len() == 4
        })
        .await;
    world.read(|state| {
        let event = state.events("Scheduled")[0];
        let name = event.involved_object.name.as_deref().unwrap();
        let assigned = format!("Successfully assigned default/{name} to n");
        assert_eq!(event.message.as_ref(), Some(&assigned));
        assert_eq!(event.type_.as_deref(), Some("Normal"));
        assert_eq!(event.action.as_deref(), Some("Binding"));
        assert_eq!(
            event.reporting_component.as_deref(),
            Some("default-scheduler")
        );
        let event = state.events("FailedScheduling")[0];
        assert_eq!(event.message.as_deref(), Some(message));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.action.as_deref(), Some("Scheduling"));
    });
    let waiting = (
        PodState::Unschedulable,
        message.to_owned(),
        vec!["n".to_owned()],
    );
    assert_eq!(running.explain("p8").await, waiting);
    let placed = running.explain("p0").await.0; // The watch may not have said so yet.
    assert!(matches!(placed, PodState::Assumed | PodState::Bound));
    assert_eq!(running.explain("nobody").await.0, PodState::Unknown);

    world.change(|state| state.remove_pod("p0"));
    // The three that are woken in vain have an event each, so that all has settled when these are counted.
    let attempts = |state: &common::State| -> i32 {
        let events = state.events("FailedScheduling");
        events.iter().filter_map(|event| event.count).sum()
    };
    world
        .until("one more runs", |state| {
            state.bindings == 6 && attempts(state) == 7
        })
        .await;
    world.read(|state| {
        assert_eq!((state.on("n").len(), state.waiting().len()), (5, 3));
        assert_eq!(
            state.status_writes, 4,
            "an unchanged condition is not written"
        );
        assert_eq!(state.bound_again, [""; 0]);
    });
}

#[tokio::test]
async fn no_failure_of_a_binding_binds_a_pod_twice_or_loses_it() {
    for fault in [
        Fault::AnswerLost,
        Fault::RequestLost,
        Fault::Conflict,
        Fault::Usurped("elsewhere"),
    ] {
        let world = World::new();
        world.change(|state| state.put_node(node("n", "10.255.0.0/29", 5)));
        world.change(|state| state.faults.push_back(fault));
        world.change(|state| state.put_pod(pod("p")));
        let running = Running::start(&world).await;
        let want = match fault {
            Fault::Usurped(node) => node,
            _ => "n",
        };
        world
            .until(&format!("{fault:?}"), |state| state.on(want) == ["p"])
            .await;
        // A second pod shows that the first has not taken the scheduler down, nor its address with it.
        world.change(|state| state.put_pod(pod("q")));
        world
            .until("the next", |state| state.on("n").contains(&"q"))
            .await;
        let again = world.read(|state| state.bound_again.clone());
        assert_eq!(again, [""; 0], "{fault:?}");
        let blamed = world.read(|state| state.events("FailedScheduling").len());
        // A pod that was written meanwhile with the same spec is bound at once at its new revision.
        let failed = matches!(fault, Fault::RequestLost);
        assert_eq!(blamed, usize::from(failed), "{fault:?}");
        assert_eq!(running.explain("p").await.0, PodState::Bound, "{fault:?}");
    }
}

#[tokio::test]
async fn a_binding_that_failed_frees_its_address_for_another() {
    let world = World::new();
    world.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    world.change(|state| state.faults.push_back(Fault::RequestLost));
    world.change(|state| state.put_pod(pod("a")));
    let _running = Running::start(&world).await;
    world
        .until("the reason is told", |state| {
            state
                .waiting()
                .iter()
                .any(|(reason, _)| reason == "SchedulerError")
        })
        .await;
    world.change(|state| state.put_pod(pod("b")));
    world
        .until("one runs", |state| state.on("n").len() == 1)
        .await;
}

#[tokio::test]
async fn a_scheduler_that_ends_between_decision_and_binding_leaves_nothing_behind() {
    let world = World::new();
    world.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    world.change(|state| state.faults.push_back(Fault::Hang));
    world.change(|state| state.put_pod(pod("p")));
    let mut running = Running::start(&world).await;
    world
        .until("the binding hangs", |state| state.faults.is_empty())
        .await;
    running.restart().await;
    world
        .until("its successor binds", |state| state.on("n") == ["p"])
        .await;
    // And a third one, which finds it bound, leaves it alone.
    running.restart().await;
    world.change(|state| state.put_pod(pod("q")));
    world
        .until("the next waits", |state| state.waiting().len() == 1)
        .await;
    assert_eq!(
        world.read(|state| (state.bindings, state.bound_again.len())),
        (1, 0)
    );
}

#[tokio::test]
async fn a_block_that_arrives_and_a_node_that_comes_are_noticed() {
    let world = World::new();
    let mut bare = node("n", "", 0);
    bare["spec"] = serde_json::json!({});
    world.change(|state| state.put_node(bare));
    for name in ["p", "q"] {
        world.change(|state| state.put_pod(pod(name)));
    }
    let _running = Running::start(&world).await;
    world
        .until("both wait", |state| state.waiting().len() == 2)
        .await;
    world.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    world
        .until("one runs", |state| state.on("n").len() == 1)
        .await;
    world.change(|state| state.put_node(node("m", "10.255.0.4/30", 1)));
    world
        .until("both run", |state| state.on("m").len() == 1)
        .await;
}
