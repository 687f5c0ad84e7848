//! The whole scheduler, over gRPC, against an API server that loses requests and answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(clippy::disallowed_methods, reason = "a test")]

mod common;

use clap::Parser as _;
use common::{BindingFault, SchedulerApiserver, node, pod};
use podplane_api::core::Pod;
use podplane_client::Endpoint;
use podplane_proto::scheduler::{
    ExplainPodRequest, PodState, scheduler_service_client::SchedulerServiceClient,
};
use podplane_scheduler::{SchedulerConfig, SchedulerRunError, run};
use serde_json::{from_value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{Code, service::Routes};

/// The flags of a scheduler that stands no election.
const ALONE: [&str; 1] = ["--leader-elect=false"];
/// The flags of a candidate.
const CANDIDATE: [&str; 4] = [
    "--leader-elect-identity=it",
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=50ms",
];

#[derive(clap::Parser)]
struct SchedulerProgram {
    #[command(flatten)]
    config: SchedulerConfig,
}

struct RunningScheduler {
    config: SchedulerConfig,
    stop: CancellationToken,
    scheduler: JoinSet<Result<(), SchedulerRunError>>,
    directory: tempfile::TempDir,
    _server: JoinSet<()>,
}

impl RunningScheduler {
    async fn start(fake: &SchedulerApiserver) -> Self {
        Self::start_with(fake, &ALONE).await
    }

    async fn start_with(fake: &SchedulerApiserver, flags: &[&str]) -> Self {
        let mut server = JoinSet::new();
        let address = fake.serve(Routes::default(), &mut server).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("address");
        let server_flag = format!("--server={address}");
        let file_flag = format!("--address-file={}", file.display());
        let open = "--authentication=none";
        let own = ["scheduler", &server_flag, &file_flag, open];
        let SchedulerProgram { config } = SchedulerProgram::parse_from(own.iter().chain(flags));
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
        self.scheduler.spawn(run(config, stop));
    }

    /// Stops the scheduler wherever it is, and starts another.
    async fn restart(&mut self) {
        self.stop.cancel();
        self.ended().await.unwrap();
        self.stop = CancellationToken::new();
        self.spawn();
    }

    async fn ended(&mut self) -> Result<(), SchedulerRunError> {
        self.scheduler.join_next().await.unwrap().unwrap()
    }

    /// State and message of a pod, and the nodes that refuse it.
    async fn explain(&self, name: &str) -> (PodState, String, Vec<String>) {
        let file = self.directory.path().join("address");
        let address = loop {
            match std::fs::read_to_string(&file) {
                Ok(address) => break address,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let endpoint: Endpoint = address.trim().parse().unwrap();
        let channel = podplane_client::endpoint::channel(&endpoint).unwrap();
        let question = ExplainPodRequest {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            ..ExplainPodRequest::default()
        };
        let mut client = SchedulerServiceClient::new(channel);
        let answer = loop {
            match client.explain_pod(question.clone()).await {
                // It has not listed the pods yet.
                Err(status) if status.code() == Code::Unavailable => {
                    tokio::task::yield_now().await;
                }
                answer => break answer.unwrap().into_inner(),
            }
        };
        let refusing = answer.verdicts.iter().map(|v| v.node_name.clone());
        (answer.state(), answer.message.clone(), refusing.collect())
    }
}

#[tokio::test]
async fn binds_pods_to_free_addresses_and_reports_why_others_wait() {
    let fake = SchedulerApiserver::default();
    fake.change(|state| state.put_node(node("n", "10.255.0.0/29", 5)));
    let running = RunningScheduler::start(&fake).await;
    for n in 0..9 {
        fake.change(|state| state.put_pod(pod(&format!("p{n}"))));
    }
    fake.until("five run, four wait", |state| {
        state.on("n").len() == 5 && state.waiting().len() == 4
    })
    .await;
    let message = "0/1 nodes are available: 1 Insufficient pod IPs.";
    let condition = ("Unschedulable".to_owned(), message.to_owned());
    assert_eq!(
        fake.read(common::SchedulerState::waiting),
        vec![condition; 4]
    );
    fake.until("each has its event", |state| {
        state.events("Scheduled").len() == 5 && state.events("FailedScheduling").len() == 4
    })
    .await;
    fake.read(|state| {
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

    fake.change(|state| state.remove_pod("p0"));
    // Only one pod is woken: the others have no further event.
    let attempts = |state: &common::SchedulerState| -> i32 {
        let events = state.events("FailedScheduling");
        events.iter().filter_map(|event| event.count).sum()
    };
    fake.until("one more runs", |state| {
        state.bindings == 6 && state.events("Scheduled").len() == 6
    })
    .await;
    fake.read(|state| {
        assert_eq!(attempts(state), 4);
        assert_eq!((state.on("n").len(), state.waiting().len()), (5, 3));
        assert_eq!(
            state.status_writes, 4,
            "an unchanged condition is not written"
        );
        assert_eq!(state.bound_again, [""; 0]);
    });
}

#[tokio::test]
async fn failed_bindings_neither_repeat_nor_lose_a_pod() {
    for fault in [
        BindingFault::AnswerLost,
        BindingFault::RequestLost,
        BindingFault::Conflict,
        BindingFault::Usurped("elsewhere"),
    ] {
        let fake = SchedulerApiserver::default();
        fake.change(|state| state.put_node(node("n", "10.255.0.0/29", 5)));
        fake.change(|state| state.faults.push_back(fault));
        fake.change(|state| state.put_pod(pod("p")));
        let running = RunningScheduler::start(&fake).await;
        let want = match fault {
            BindingFault::Usurped(node) => node,
            _ => "n",
        };
        fake.until(&format!("{fault:?}"), |state| state.on(want) == ["p"])
            .await;
        // A second pod shows that the scheduler still works, and that no address was lost.
        fake.change(|state| state.put_pod(pod("q")));
        fake.until("the next", |state| state.on("n").contains(&"q"))
            .await;
        let again = fake.read(|state| state.bound_again.clone());
        assert_eq!(again, [""; 0], "{fault:?}");
        let blamed = fake.read(|state| state.events("FailedScheduling").len());
        // A pod that was written meanwhile with the same spec is bound at once at its new revision.
        let failed = matches!(fault, BindingFault::RequestLost);
        assert_eq!(blamed, usize::from(failed), "{fault:?}");
        assert_eq!(running.explain("p").await.0, PodState::Bound, "{fault:?}");
    }
}

#[tokio::test]
async fn failed_binding_frees_its_address_for_another_pod() {
    let fake = SchedulerApiserver::default();
    fake.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    fake.change(|state| state.faults.push_back(BindingFault::RequestLost));
    fake.change(|state| state.put_pod(pod("a")));
    let _running = RunningScheduler::start(&fake).await;
    fake.until("the reason is reported", |state| {
        state
            .waiting()
            .iter()
            .any(|(reason, _)| reason == "SchedulerError")
    })
    .await;
    fake.change(|state| state.put_pod(pod("b")));
    fake.until("one runs", |state| state.on("n").len() == 1)
        .await;
}

#[tokio::test]
async fn scheduler_stopped_before_a_binding_leaves_nothing_behind() {
    let fake = SchedulerApiserver::default();
    fake.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    fake.change(|state| state.faults.push_back(BindingFault::Hang));
    fake.change(|state| state.put_pod(pod("p")));
    let mut running = RunningScheduler::start(&fake).await;
    fake.until("the binding hangs", |state| state.faults.is_empty())
        .await;
    running.restart().await;
    fake.until("its successor binds", |state| state.on("n") == ["p"])
        .await;
    // A third scheduler, which finds it bound, leaves it alone.
    running.restart().await;
    fake.change(|state| state.put_pod(pod("q")));
    fake.until("the next waits", |state| state.waiting().len() == 1)
        .await;
    assert_eq!(
        fake.read(|state| (state.bindings, state.bound_again.len())),
        (1, 0)
    );
}

#[tokio::test]
async fn wakes_pods_for_a_new_block_and_a_new_node() {
    let fake = SchedulerApiserver::default();
    let mut bare = node("n", "", 0);
    bare.spec = None;
    fake.change(|state| state.put_node(bare));
    for name in ["p", "q"] {
        fake.change(|state| state.put_pod(pod(name)));
    }
    let _running = RunningScheduler::start(&fake).await;
    fake.until("both wait", |state| state.waiting().len() == 2)
        .await;
    fake.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    fake.until("one runs", |state| state.on("n").len() == 1)
        .await;
    fake.change(|state| state.put_node(node("m", "10.255.0.4/30", 1)));
    fake.until("both run", |state| state.on("m").len() == 1)
        .await;
}

#[tokio::test]
async fn standby_writes_nothing_and_binds_as_soon_as_it_leads() {
    let fake = SchedulerApiserver::default();
    fake.change(|state| state.put_node(node("n", "10.255.0.0/30", 1)));
    fake.change(|state| state.lead("another"));
    let running = RunningScheduler::start_with(&fake, &CANDIDATE).await;
    for name in ["p", "q"] {
        fake.change(|state| state.put_pod(pod(name)));
    }
    // It has observed the pod once it explains it, and answers between two attempts.
    let explained = loop {
        let (state, message, _) = running.explain("q").await;
        if state != PodState::Unknown {
            break (state, message);
        }
        tokio::task::yield_now().await;
    };
    let stands_by = "this scheduler does not lead, so it tries no pod".to_owned();
    assert_eq!(explained, (PodState::Queued, stands_by));
    fake.read(|state| {
        assert_eq!((state.bindings, state.status_writes), (0, 0));
        assert_eq!(state.events.len(), 0);
    });

    fake.change(|state| state.lead(""));
    fake.until("one runs, one waits", |state| {
        state.on("n").len() == 1 && state.waiting().len() == 1
    })
    .await;
    fake.until("each has its event", |state| {
        state.events("Scheduled").len() == 1 && state.events("FailedScheduling").len() == 1
    })
    .await;
}

#[tokio::test]
async fn ends_when_a_binding_is_refused_because_another_scheduler_leads() {
    let fake = SchedulerApiserver::default();
    fake.change(|state| state.put_node(node("n", "10.255.0.0/29", 5)));
    fake.change(|state| state.faults.push_back(BindingFault::FenceLost));
    fake.change(|state| state.lead(""));
    fake.change(|state| state.put_pod(pod("p")));
    let mut running = RunningScheduler::start_with(&fake, &CANDIDATE).await;
    let error = running.ended().await.unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
        error.source()
    });
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    let expected = [
        "failed to run the scheduler",
        "driver failed",
        "another process leads",
        "another leads",
    ];
    assert_eq!(causes, expected);
    fake.read(|state| {
        assert_eq!((state.bindings, state.status_writes), (0, 0));
        assert!(state.events("FailedScheduling").is_empty());
    });
}

#[tokio::test]
async fn pods_of_a_workload_are_placed_apart() {
    // Node b has fewer pods than a, but one of the same workload.
    let labels = json!({"app": "web"});
    let labelled = |name: &str| {
        let mut pod = pod(name);
        pod.metadata.labels = Some(from_value(labels.clone()).unwrap());
        pod
    };
    let on = |mut pod: Pod, node: &str| {
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        pod
    };
    let fake = SchedulerApiserver::default();
    fake.change(|state| {
        for (name, cidr) in [("a", "10.255.0.0/24"), ("b", "10.255.1.0/24")] {
            let mut node = node(name, cidr, 253);
            let labels = node.metadata.labels.get_or_insert_default();
            labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
            state.put_node(node);
        }
        for name in ["other-0", "other-1", "other-2"] {
            state.put_pod(on(pod(name), "a"));
        }
        state.put_pod(on(labelled("web-0"), "b"));
        let metadata = json!({"name": "web", "namespace": "default"});
        let service = json!({"metadata": metadata, "spec": {"selector": labels}});
        state.put_service(from_value(service).unwrap());
        let set =
            json!({"metadata": metadata, "spec": {"selector": {"matchLabels": {"set": "s"}}}});
        state.put_replica_set(from_value(set).unwrap());
    });
    let _running = RunningScheduler::start(&fake).await;
    fake.change(|state| state.put_pod(labelled("of-service")));
    fake.until("it is placed", |state| {
        state.on("a").contains(&"of-service")
    })
    .await;

    let of_set = |name: &str| {
        let mut pod = pod(name);
        let labels = json!({"set": "s"});
        pod.metadata.labels = Some(from_value(labels).unwrap());
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
            "uid": "u", "controller": true}]);
        pod.metadata.owner_references = Some(from_value(owner).unwrap());
        pod
    };
    fake.change(|state| state.put_pod(on(of_set("web-1"), "b")));
    fake.change(|state| state.put_pod(of_set("of-set")));
    fake.until("it is placed", |state| state.on("a").contains(&"of-set"))
        .await;
}
