//! Nothing acknowledged is ever lost: clients write through gRPC to an API server that is killed
//! again and again, and watch it through gRPC and REST.
//!
//! Everything that the clients saw is recorded and judged at the end: the operations on each key by
//! linearizability ([`podplane_tests::history`]), the watches by the guarantees of a watch
//! ([`log`]), the lists by what the watches saw.

#![expect(clippy::unwrap_used, reason = "a test")]

mod clients;
mod log;

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use podplane_api::{Object as _, core::Node};
use podplane_client::{Api, ListParams};
use podplane_test_cluster::within;
use podplane_test_etcd::{Etcd, apart};
use podplane_tests::{apiserver::Apiserver, eventually, peers};
use rand::RngExt as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;

use self::{
    clients::{HistoryRecord, Round, node},
    log::{Log, Watcher},
};

/// Clients that contend for a few keys.
const CONTENDERS: usize = 8;
/// Clients that only create objects, each once.
const CREATORS: usize = 3;

/// The number of kills, and the acknowledged writes before each.
struct KillPlan {
    kills: usize,
    after: std::ops::Range<usize>,
}

fn soak() -> bool {
    std::env::var_os("PODPLANE_SOAK").is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_no_acknowledged_write() -> Result<()> {
    let kills = if soak() { 200 } else { 20 };
    let after = 1..150;
    run(KillPlan { kills, after }).await
}

/// Longer histories, in which most unknown outcomes are those for which clients did not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_is_linearizable() -> Result<()> {
    let kills = if soak() { 20 } else { 1 };
    let after = if soak() { 2_000..3_000 } else { 500..700 };
    run(KillPlan { kills, after }).await
}

async fn run(plan: KillPlan) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = Apiserver::start(dir.path()).await?;
    let world = Arc::new(HistoryRecord::default());
    let empty = nodes(&server)?.list(&ListParams::default()).await?;
    let mut watchers = Watcher::both(empty.resource_version.parse()?);
    for number in 0..plan.kills {
        let enough = rand::rng().random_range(plan.after.clone());
        let mut watching = JoinSet::new();
        for watcher in watchers {
            watching.spawn(watcher.follow(server.client()?, server.rest(), None));
        }
        let round = Round::start(&world, &[&server], number, CONTENDERS, CREATORS)?;
        let acknowledged = || async { round.writes.count() };
        let patience = Duration::from_secs(300);
        within(patience, "enough is acknowledged", acknowledged, |n| {
            *n >= enough
        })
        .await?;
        round.killed.store(true, Ordering::SeqCst);
        server.kill()?;
        let created = round.end().await;
        // Operations under way died with the server.
        world.recorder.lost();
        watchers = watching.join_all().await;

        server = Apiserver::start(dir.path()).await?;
        let newest = newest(&world, &watchers);
        check_round(&server, number, &created, newest).await?;
    }
    judge(&world, &server, watchers).await
}

/// The newest revision that any client saw.
fn newest(world: &HistoryRecord, watchers: &[Watcher]) -> u64 {
    let seen = watchers.iter().map(Watcher::revision).max();
    world.newest().max(seen.unwrap_or(0))
}

/// Checks that a server has all that was acknowledged in a round.
async fn check_round(
    server: &Apiserver,
    number: usize,
    created: &[String],
    newest: u64,
) -> Result<()> {
    let of_round = ListParams {
        label_selector: format!("round={number}"),
        ..ListParams::default()
    };
    let list = nodes(server)?.list(&of_round).await?;
    let present: BTreeSet<_> = list.items.iter().map(|node| node.name()).collect();
    let lost: Vec<_> = created
        .iter()
        .filter(|name| !present.contains(name.as_str()))
        .collect();
    ensure!(
        lost.is_empty(),
        "kill {number}: lost {lost:?} of {} acknowledged",
        created.len()
    );
    let revision: u64 = list.resource_version.parse()?;
    ensure!(
        revision >= newest,
        "kill {number}: revision {revision} after {newest}"
    );
    Ok(())
}

/// Clients of two servers on one etcd, of which one is killed each round; the watches go on at the
/// other one.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_etcd_are_linearizable() -> Result<()> {
    let Some(etcd) = Etcd::start(&[]) else {
        return Ok(());
    };
    let endpoint = format!("--etcd-endpoints={}", etcd.endpoint());
    let flags = ["--store=etcd", endpoint.as_str()];
    let (dir, other_dir) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut dying = Apiserver::start_with(dir.path(), &flags).await?;
    let mut staying = Apiserver::start_with(other_dir.path(), &flags).await?;
    let (mut dying_dir, mut staying_dir) = (dir.path(), other_dir.path());
    let world = Arc::new(HistoryRecord::default());
    let empty = nodes(&dying)?.list(&ListParams::default()).await?;
    let mut watchers = Watcher::both(empty.resource_version.parse()?);
    for number in 0..if soak() { 100 } else { 6 } {
        let enough = rand::rng().random_range(1..300);
        let mut watching = JoinSet::new();
        for watcher in watchers {
            watching.spawn(watcher.follow(dying.client()?, dying.rest(), None));
        }
        let round = Round::start(&world, &[&dying, &staying], number, CONTENDERS, CREATORS)?;
        let acknowledged = || async { round.writes.count() };
        let patience = Duration::from_secs(300);
        within(patience, "enough is acknowledged", acknowledged, |n| {
            *n >= enough
        })
        .await?;
        round.killed.store(true, Ordering::SeqCst);
        dying.kill()?;
        let created = round.end().await;
        // Operations of the dead server may be in etcd's hands: they are not lost, but open.
        watchers = watching.join_all().await;
        check_round(&staying, number, &created, newest(&world, &watchers)).await?;
        dying = staying;
        staying = Apiserver::start_with(dying_dir, &flags).await?;
        std::mem::swap(&mut dying_dir, &mut staying_dir);
    }
    judge(&world, &staying, watchers).await
}

/// A fault of a cluster of three members.
#[derive(Clone, Copy, Debug)]
enum EtcdFault {
    KillLeader,
    PauseLeader,
    MoveLeader,
    KillAll,
    /// History is compacted by somebody else, up to now.
    Compact,
    /// Nothing that the leader sends arrives.
    CutOffLeader,
    /// The disk of the leader is full, at which etcd ends.
    FillDiskOfLeader,
}

impl EtcdFault {
    /// Faults of processes.
    const OF_PROCESSES: [Self; 5] = [
        Self::KillLeader,
        Self::PauseLeader,
        Self::MoveLeader,
        Self::KillAll,
        Self::Compact,
    ];
    /// Faults of members with networks and disks of their own.
    const OF_MACHINES: [Self; 2] = [Self::CutOffLeader, Self::FillDiskOfLeader];

    /// Does it, lets clients write meanwhile if two members are left, and undoes it.
    async fn happen(self, members: &mut [Etcd], round: &Round) -> Result<()> {
        let (leader, follower) = leader_and_follower(members).await?;
        match self {
            Self::KillLeader => {
                members[leader].kill()?;
                progress(round, self).await?;
                members[leader].start_again()?;
            }
            Self::PauseLeader => {
                let pid = Pid::from_raw(members[leader].pid().try_into()?).context("a pid")?;
                kill_process(pid, Signal::STOP)?;
                progress(round, self).await?;
                kill_process(pid, Signal::CONT)?;
            }
            Self::MoveLeader => {
                let to = format!("{:x}", member_status(&members[follower])?.member);
                members[leader].etcdctl(&["move-leader", &to])?;
            }
            Self::KillAll => {
                for member in members.iter_mut() {
                    member.kill()?;
                }
                Etcd::start_all_again(members)?;
            }
            Self::Compact => {
                let now = member_status(&members[leader])?.revision.to_string();
                members[leader].etcdctl(&["compact", &now])?;
            }
            Self::CutOffLeader => {
                members[leader].cut_off()?;
                progress(round, self).await?;
                Etcd::connect_all()?;
            }
            Self::FillDiskOfLeader => {
                members[leader].fill_disk()?;
                progress(round, self).await?;
                members[leader].empty_disk()?;
                members[leader].start_again()?;
            }
        }
        Ok(())
    }
}

/// The members of an etcd are killed and paused, and their leader is moved, while clients work.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_three_members_is_linearizable() -> Result<()> {
    match Etcd::start_members(3) {
        Some(members) => endure(members, &EtcdFault::OF_PROCESSES).await,
        None => Ok(()),
    }
}

/// A member is cut off, and a disk is full.
#[test]
fn a_server_on_three_machines_is_linearizable() {
    if !peers::root() || !peers::nftables() {
        return;
    }
    apart(
        "histories::a_server_on_three_machines_is_linearizable",
        || {
            let runtime = tokio::runtime::Runtime::new()?;
            match Etcd::start_members_apart(3) {
                Some(members) => runtime.block_on(endure(members, &EtcdFault::OF_MACHINES)),
                None => Ok(()),
            }
        },
    );
}

/// Clients of a server work while the faults happen; compares all that they saw.
#[expect(clippy::print_stderr, reason = "shown if the test fails")]
async fn endure(mut members: Vec<Etcd>, faults: &[EtcdFault]) -> Result<()> {
    let endpoints: Vec<_> = members.iter().map(Etcd::endpoint).collect();
    let flag = format!("--etcd-endpoints={}", endpoints.join(","));
    let flags = ["--store=etcd", flag.as_str()];
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    let world = Arc::new(HistoryRecord::default());
    let empty = nodes(&server)?.list(&ListParams::default()).await?;
    let mut watching = JoinSet::new();
    for watcher in Watcher::both(empty.resource_version.parse()?) {
        watching.spawn(watcher.follow(server.client()?, server.rest(), None));
    }
    let rounds = if soak() { 25 } else { 1 };
    let rounds = faults.iter().cycle().take(faults.len() * rounds);
    for (number, fault) in rounds.copied().enumerate() {
        eprintln!("round {number}: {fault:?}");
        let round = Round::start(&world, &[&server], number, CONTENDERS, CREATORS)?;
        progress(&round, fault).await?;
        round.cut_off.store(true, Ordering::SeqCst);
        fault.happen(&mut members, &round).await?;
        progress(&round, fault).await?;
        eprintln!(
            "writes stood still for {:?}",
            round.writes.longest_standstill()
        );
        round.killed.store(true, Ordering::SeqCst);
        let created = round.end().await;
        check_round(&server, number, &created, world.newest()).await?;
    }
    server.kill()?;
    let watchers = watching.join_all().await;
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    judge(&world, &server, watchers).await
}

/// Waits until clients have written again.
async fn progress(round: &Round, fault: EtcdFault) -> Result<()> {
    let before = round.writes.count();
    let acknowledged = || async { round.writes.count() };
    let patience = Duration::from_secs(120);
    let what = format!("clients write again: {fault:?}");
    within(patience, &what, acknowledged, |n| *n >= before + 50).await?;
    Ok(())
}

/// The numbers of the leader, once there is one, and of another member.
async fn leader_and_follower(members: &[Etcd]) -> Result<(usize, usize)> {
    let leader = || async {
        let mut members = members.iter();
        members.position(|member| {
            member_status(member).is_ok_and(|status| status.member == status.leader)
        })
    };
    let leader = eventually("a member is the leader", leader, Option::is_some).await;
    let leader = leader.context("no leader")?;
    Ok((leader, (leader + 1) % members.len()))
}

/// The ids of a member and of the leader that it knows, and the revision that it has.
struct MemberStatus {
    member: u64,
    leader: u64,
    revision: u64,
}

fn member_status(member: &Etcd) -> Result<MemberStatus> {
    let status: serde_json::Value =
        serde_json::from_str(&member.etcdctl(&["endpoint", "status", "-w", "json"])?)?;
    let status = &status[0]["Status"];
    let id = |pointer| {
        let id = status.pointer(pointer).and_then(serde_json::Value::as_u64);
        id.with_context(|| format!("{pointer} of {status}"))
    };
    Ok(MemberStatus {
        member: id("/header/member_id")?,
        leader: id("/leader")?,
        revision: id("/header/revision")?,
    })
}

/// Lets the watchers come to the end, and compares all that was seen.
async fn judge(world: &HistoryRecord, server: &Apiserver, watchers: Vec<Watcher>) -> Result<()> {
    let last = nodes(server)?.create(&node::new("last", 0, "")).await?;
    world.listed("", &nodes(server)?.list(&ListParams::default()).await?);
    for watcher in watchers {
        let until = Some(node::revision(&last));
        let followed = watcher.follow(server.client()?, server.rest(), until);
        world.judge(&Log::new(followed.await.seen)?)?;
    }
    if let Err(violation) = world.recorder.check() {
        bail!("{violation:?}");
    }
    Ok(())
}

fn nodes(server: &Apiserver) -> Result<Api<Node>> {
    Ok(server.client()?.all())
}
