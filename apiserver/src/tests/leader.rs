//! Leader election against the real server.

use clap::Parser;
use podplane_api::{
    coordination::{Lease, LeaseSpec},
    jiff::Timestamp,
};
use podplane_client::{
    Reason,
    leader::{Candidate, LeaderElection, LeaderError, Leadership},
};
use podplane_host::{clock, simulation};
use tokio::sync::mpsc;

use super::*;

#[derive(Parser)]
#[command(args_override_self = true)]
struct ElectionProgram {
    #[command(flatten)]
    election: LeaderElection,
}

fn candidate(server: &TestServer, flags: &[&str]) -> Result<Candidate, LeaderError> {
    let quick = [
        "test",
        "--leader-elect-lease-duration=1s",
        "--leader-elect-renew-deadline=700ms",
        "--leader-elect-retry-period=50ms",
    ];
    let cli = ElectionProgram::parse_from(quick.iter().chain(flags));
    cli.election.candidate(server.client.clone(), "component")
}

/// Runs a candidate that reports when it leads, and works until it is stopped.
fn run(
    candidate: Candidate,
    stop: &CancellationToken,
) -> (
    mpsc::UnboundedReceiver<Leadership>,
    JoinSet<Result<Option<()>, LeaderError>>,
) {
    let (tell, told) = mpsc::unbounded_channel();
    let mut running = JoinSet::new();
    let stop = stop.clone();
    running.spawn(async move {
        let work = |leading| {
            tell.send(leading).unwrap();
            stop.cancelled()
        };
        candidate.lead(&stop, work).await
    });
    (told, running)
}

async fn ended(
    mut running: JoinSet<Result<Option<()>, LeaderError>>,
) -> Result<Option<()>, LeaderError> {
    within(running.join_next()).await.unwrap().unwrap()
}

async fn held_lease(server: &TestServer) -> LeaseSpec {
    let leases = server.client.namespaced::<Lease>("kube-system");
    leases.get("component").await.unwrap().spec.unwrap()
}

#[tokio::test]
async fn the_next_candidate_leads_after_a_release() {
    let server = TestServer::start().await;
    let (stop_one, stop_two) = (CancellationToken::new(), CancellationToken::new());
    let one = candidate(&server, &["--leader-elect-identity=one"]).unwrap();
    let (mut told_one, one) = run(one, &stop_one);
    let leading = within(told_one.recv()).await.unwrap();
    leading
        .client
        .all::<Node>()
        .create(&node("a"))
        .await
        .unwrap();
    let two = candidate(&server, &["--leader-elect-identity=two"]).unwrap();
    let (mut told_two, two) = run(two, &stop_two);
    // Longer than an unrenewed lease lasts.
    assert!(
        time::timeout(Duration::from_millis(1500), told_two.recv())
            .await
            .is_err()
    );
    assert_eq!(
        held_lease(&server).await.holder_identity.as_deref(),
        Some("one")
    );
    stop_one.cancel();
    assert!(ended(one).await.unwrap().is_some());
    let next = within(told_two.recv()).await.unwrap();
    assert!(next.fence.as_ref().unwrap().epoch > leading.fence.as_ref().unwrap().epoch);
    assert_eq!(held_lease(&server).await.lease_transitions, Some(1));
    // A late write of the first leader.
    let late = leading.client.all::<Node>().create(&node("b")).await;
    assert_eq!(late.unwrap_err().reason, Reason::FenceLost);
    next.client.all::<Node>().create(&node("b")).await.unwrap();
    stop_two.cancel();
    assert!(ended(two).await.unwrap().is_some());
    assert_eq!(
        held_lease(&server).await.holder_identity.as_deref(),
        Some("")
    );
    server.stop().await;
}

#[tokio::test]
async fn a_restarted_leader_leads_at_once() {
    let server = TestServer::start().await;
    let stop = CancellationToken::new();
    let flags = [
        "--leader-elect-identity=one",
        "--leader-elect-lease-duration=1000s",
    ];
    let (mut told, first) = run(candidate(&server, &flags).unwrap(), &stop);
    let old = within(told.recv()).await.unwrap();
    // Killed: the Lease is not released.
    drop(first);
    let (mut told, second) = run(candidate(&server, &flags).unwrap(), &stop);
    let new = within(told.recv()).await.unwrap();
    let late = old.client.all::<Node>().create(&node("a")).await;
    assert_eq!(late.unwrap_err().reason, Reason::FenceLost);
    new.client.all::<Node>().create(&node("a")).await.unwrap();
    stop.cancel();
    ended(second).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_replaced_or_unreachable_leader_stops() {
    let server = TestServer::start().await;
    let stop = CancellationToken::new();
    let (mut told, running) = run(candidate(&server, &[]).unwrap(), &stop);
    within(told.recv()).await.unwrap();
    let leases = server.client.namespaced::<Lease>("kube-system");
    loop {
        let mut lease = leases.get("component").await.unwrap();
        lease.spec.as_mut().unwrap().holder_identity = Some("another".into());
        match leases.update(&lease).await {
            Err(error) if error.is_conflict() => {}
            done => break drop(done.unwrap()),
        }
    }
    let lost = ended(running).await.unwrap_err();
    assert!(lost.to_string().ends_with("another holds it"), "{lost}");

    leases.delete("component", &at_once()).await.unwrap();
    let (mut told, running) = run(candidate(&server, &[]).unwrap(), &stop);
    within(told.recv()).await.unwrap();
    server.stop().await;
    let lost = ended(running).await.unwrap_err();
    assert!(matches!(lost, LeaderError::Deadline { .. }), "{lost}");
}

#[tokio::test]
async fn leads_without_a_lease_if_election_is_disabled() {
    let server = TestServer::start().await;
    let alone = candidate(&server, &["--leader-elect=false"]).unwrap();
    let fence = alone
        .lead(&CancellationToken::new(), async |leading| leading.fence)
        .await;
    assert_eq!(fence.unwrap(), Some(None));
    for (flag, why) in [
        (
            "--leader-elect-lease-duration=500ms",
            "leaseDuration must be greater than renewDeadline",
        ),
        (
            "--leader-elect-retry-period=600ms",
            "renewDeadline must be greater than retryPeriod*JitterFactor",
        ),
        ("--leader-elect-identity=", "Lock identity is empty"),
        ("--leader-elect-resource-name=a/b", "must be an object name"),
    ] {
        let error = candidate(&server, &[flag]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    server.stop().await;
}

/// The Lease and its UID after its holder led for ten minutes and was killed, in a simulation.
async fn simulated_takeover(seed: u64, begun: Timestamp) -> (LeaseSpec, String) {
    let _simulation = simulation::begin(seed, begun);
    let server = TestServer::at("127.0.0.1:7080", uncounted(), MemStore::new()).await;
    let stop = CancellationToken::new();
    let flags = [
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=2s",
    ];
    let (mut told_one, one) = run(candidate(&server, &flags).unwrap(), &stop);
    within(told_one.recv()).await.unwrap();
    let (mut told_two, two) = run(candidate(&server, &flags).unwrap(), &stop);
    clock::sleep(Duration::from_secs(600)).await;
    assert!(told_two.is_empty());
    drop(one);
    within(told_two.recv()).await.unwrap();
    let leases = server.client.namespaced::<Lease>("kube-system");
    let lease = leases.get("component").await.unwrap();
    stop.cancel();
    assert!(ended(two).await.unwrap().is_some());
    server.stop().await;
    (lease.spec.unwrap(), lease.metadata.uid.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_simulated_takeover_follows_the_seed() {
    let begun: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let (spec, uid) = simulated_takeover(7, begun).await;
    let taken = spec.acquire_time.clone().unwrap().0;
    let waited = Duration::try_from(taken.duration_since(begun)).unwrap();
    let least = Duration::from_secs(600 + 15 - 2);
    let most = Duration::from_secs(600 + 15 + 5);
    assert!(least <= waited && waited <= most, "{waited:?}");
    let again = simulated_takeover(7, begun).await;
    assert_eq!(again, (spec.clone(), uid));
    let other = simulated_takeover(8, begun).await;
    assert_ne!(other.0.holder_identity, spec.holder_identity);
}
