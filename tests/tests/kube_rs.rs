//! A program that uses kube-rs, whose client knows nothing of podplane: reflectors, a controller
//! with a finalizer, recorded events, and leader election by Lease (`kube-lease-manager`, with
//! server-side apply).

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event as CoreEvent, Pod},
    events::v1::Event,
};
use kube::{
    Api, Client, Config, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        Controller, WatchStreamExt as _,
        controller::Action,
        events::{self, EventType, Recorder, Reporter},
        finalizer::{self, finalizer},
        reflector::{self, Store},
        watcher,
    },
};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use podplane_test_etcd::Etcd;
use podplane_tests::{
    apiserver::Apiserver,
    eventually,
    programs::{finish, podplane},
};
use serde_json::json;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};

const FINALIZER: &str = "example.com/clean";

fn client(server: &Apiserver) -> Result<Client> {
    let config = Config::new(format!("http://{}", server.address()).parse()?);
    Ok(Client::try_from(config)?)
}

async fn create(pods: &Api<Pod>, name: &str) -> Result<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}]},
    }))?;
    Ok(pods.create(&PostParams::default(), &pod).await?)
}

async fn label(pods: &Api<Pod>, name: &str, value: &str) -> Result<Pod> {
    let patch = json!({"metadata": {"labels": {"value": value}}});
    let params = PatchParams::default();
    Ok(pods.patch(name, &params, &Patch::Merge(patch)).await?)
}

/// The names of pods, with the revision of each.
type PodRevisions = BTreeMap<String, String>;

fn state<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> PodRevisions {
    let revision = |pod: &Pod| pod.resource_version().unwrap_or_default();
    let pods = pods.into_iter();
    pods.map(|pod| (pod.name_any(), revision(pod))).collect()
}

/// A reflector at work, and counts of its watcher's events.
struct Follower {
    store: Store<Pod>,
    lists: Arc<AtomicUsize>,
    gone: Arc<AtomicUsize>,
}

impl Follower {
    fn start(pods: Api<Pod>, config: watcher::Config, running: &mut JoinSet<()>) -> Self {
        let (store, writer) = reflector::store();
        let mut events =
            Box::pin(reflector::reflector(writer, watcher(pods, config)).default_backoff());
        let (lists, gone) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let follower = Self {
            store,
            lists: Arc::clone(&lists),
            gone: Arc::clone(&gone),
        };
        running.spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init) => lists.fetch_add(1, Ordering::Relaxed),
                    Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                        gone.fetch_add(1, Ordering::Relaxed)
                    }
                    _ => 0,
                };
            }
        });
        follower
    }

    /// Waits until it has the pods that the server lists.
    async fn agrees(&self, pods: &Api<Pod>) -> Result<()> {
        let listed = state(&pods.list(&ListParams::default()).await?.items);
        let stored = || async { state(self.store.state().iter().map(AsRef::as_ref)) };
        eventually("the reflector has what is listed", stored, |stored| {
            *stored == listed
        })
        .await;
        Ok(())
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

async fn reflects(config: watcher::Config) -> Result<()> {
    let place = tempfile::tempdir()?;
    let (old, new) = (place.path().join("old"), place.path().join("new"));
    let backup = place.path().join("backup");
    std::fs::create_dir(&old)?;
    let server = Apiserver::start(&old).await?;
    let address = server.address().to_owned();
    let pods: Api<Pod> = Api::default_namespaced(client(&server)?);
    let mut running = JoinSet::new();
    for index in 0..7 {
        create(&pods, &format!("before-{index}")).await?;
    }

    let follower = Follower::start(pods.clone(), config, &mut running);
    follower.agrees(&pods).await?;
    create(&pods, "after").await?;
    label(&pods, "before-1", "new").await?;
    pods.delete("before-2", &DeleteParams::default()).await?;
    follower.agrees(&pods).await?;

    // It resumes at its revision, and sees what it missed.
    server.kill()?;
    let server = Apiserver::start_at(&address, &old).await?;
    create(&pods, "restarted").await?;
    label(&pods, "before-3", "new").await?;
    pods.delete("before-4", &DeleteParams::default()).await?;
    follower.agrees(&pods).await?;
    ensure!(follower.lists() == 1, "it listed again");
    ensure!(follower.gone.load(Ordering::Relaxed) == 0);

    // Its revision means nothing after a restore, and it forgets the pods that were not in the
    // backup.
    let mut back_up = podplane(["store", "backup"]);
    finish(back_up.arg(&backup).args(["--server", &address])).ok();
    create(&pods, "lost").await?;
    follower.agrees(&pods).await?;
    server.kill()?;
    let mut restore = podplane(["store", "restore"]);
    finish(restore.arg(&backup).arg("--data-dir").arg(&new)).ok();
    let server = Apiserver::start_at(&address, &new).await?;
    let lists = || async { follower.lists() };
    eventually("it lists again", lists, |lists| *lists > 1).await;
    follower.agrees(&pods).await?;
    ensure!(follower.gone.load(Ordering::Relaxed) >= 1);
    ensure!(
        follower
            .store
            .find(|pod| pod.name_any() == "lost")
            .is_none()
    );
    create(&pods, "again").await?;
    follower.agrees(&pods).await?;
    running.shutdown().await;
    server.kill()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paging_reflector_converges_to_the_server() -> Result<()> {
    Box::pin(reflects(watcher::Config::default().page_size(3))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_reflector_converges_to_the_server() -> Result<()> {
    Box::pin(reflects(watcher::Config::default().streaming_lists())).await
}

/// The store of its server moves to etcd and back, at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn a_reflector_converges_after_its_store_has_moved() -> Result<()> {
    let Some(etcd) = Etcd::start(&[]) else {
        return Ok(());
    };
    let place = tempfile::tempdir()?;
    let dir = |name: &str| {
        let dir = place.path().join(name);
        std::fs::create_dir(&dir).map(|()| dir)
    };
    let (first, of_server) = (dir("first")?, dir("of-server")?);
    let server = Apiserver::start(&first).await?;
    let address = server.address().to_owned();
    let pods: Api<Pod> = Api::default_namespaced(client(&server)?);
    let mut running = JoinSet::new();
    for index in 0..7 {
        create(&pods, &format!("first-{index}")).await?;
    }
    let follower = Follower::start(pods.clone(), watcher::Config::default(), &mut running);
    follower.agrees(&pods).await?;

    let flag = format!("--etcd-endpoints={}", etcd.endpoint());
    let moves = |to: &str, dir: &Path| {
        let mut migrate = podplane(["store", "migrate", to, flag.as_str()]);
        finish(migrate.arg("--data-dir").arg(dir)).ok()
    };
    let lists_again = async |before: usize| {
        let lists = || async { follower.lists() };
        eventually("it lists again", lists, |lists| *lists > before).await;
        follower.agrees(&pods).await
    };
    ensure!(server.terminated().await?);
    moves("etcd", &first);
    let on_etcd = ["--store=etcd", flag.as_str()];
    let server = Apiserver::start_at_with(&address, &of_server, &on_etcd).await?;
    lists_again(1).await?;
    create(&pods, "second").await?;
    pods.delete("first-3", &DeleteParams::default()).await?;
    follower.agrees(&pods).await?;

    let lists = follower.lists();
    ensure!(server.terminated().await?);
    let back = place.path().join("back");
    moves("sled", &back);
    let server = Apiserver::start_at(&address, &back).await?;
    lists_again(lists).await?;
    create(&pods, "third").await?;
    follower.agrees(&pods).await?;
    let gone = follower.gone.load(Ordering::Relaxed);
    ensure!(gone >= 2, "410 only {gone} times");
    running.shutdown().await;
    server.kill()
}

/// The context of a controller: the pods, and those that it cleaned up after.
struct ControllerContext {
    pods: Api<Pod>,
    cleaned: Mutex<Vec<Pod>>,
}

async fn reconcile(
    pod: Arc<Pod>,
    work: Arc<ControllerContext>,
) -> Result<Action, finalizer::Error<kube::Error>> {
    let pods = &work.pods;
    let each = async |event| match event {
        finalizer::Event::Apply(pod) => {
            let pod: Arc<Pod> = pod;
            let name = pod.name_any();
            let seen = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"seen": "yes"}},
            });
            let params = PatchParams::apply("controller");
            pods.patch(&name, &params, &Patch::Apply(seen)).await?;
            Ok(Action::await_change())
        }
        finalizer::Event::Cleanup(pod) => {
            let still = pods.get(&pod.name_any()).await?;
            let mut cleaned = work.cleaned.lock().unwrap_or_else(PoisonError::into_inner);
            cleaned.push(still);
            Ok(Action::await_change())
        }
    };
    finalizer(pods, FINALIZER, pod, each).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_cleans_up_before_an_object_goes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(dir.path()).await?;
    let pods: Api<Pod> = Api::default_namespaced(client(&server)?);
    let work = Arc::new(ControllerContext {
        pods: pods.clone(),
        cleaned: Mutex::default(),
    });
    let controller = Controller::new(pods.clone(), watcher::Config::default());
    let retry = |_, _: &_, _| Action::requeue(Duration::from_millis(100));
    let worked = controller.run(reconcile, retry, Arc::clone(&work));
    let mut running = JoinSet::new();
    running.spawn(worked.for_each(|_| async {}));

    let created = create(&pods, "a").await?;
    let get = || pods.get_opt("a");
    eventually("the controller labels it", get, |pod| {
        let pod = pod.as_ref().ok().and_then(Option::as_ref);
        pod.is_some_and(|pod| pod.labels().contains_key("seen"))
    })
    .await?;
    let pod = pods.get("a").await?;
    ensure!(pod.finalizers() == [FINALIZER], "{pod:?}");
    let managers = pod.managed_fields().iter();
    let managers: Vec<_> = managers.filter_map(|m| m.manager.as_deref()).collect();
    ensure!(managers.contains(&"controller"), "{managers:?}");

    pods.delete("a", &DeleteParams::default()).await?;
    let gone = |pod: &Result<Option<Pod>, _>| matches!(pod, Ok(None));
    eventually("it is gone", get, gone).await?;
    let cleaned = std::mem::take(&mut *work.cleaned.lock().unwrap_or_else(PoisonError::into_inner));
    let [still] = cleaned.as_slice() else {
        anyhow::bail!("cleaned up after {cleaned:?}");
    };
    ensure!(still.uid() == created.uid());
    ensure!(still.meta().deletion_timestamp.is_some());
    running.shutdown().await;
    server.kill()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_repeats_is_a_series_in_both_groups() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(dir.path()).await?;
    let client = client(&server)?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = create(&pods, "a").await?;
    let reporter = Reporter {
        controller: "example.com/controller".into(),
        instance: Some("controller-0".into()),
    };
    let recorder = Recorder::new(client.clone(), reporter);
    let event = events::Event {
        type_: EventType::Warning,
        reason: "Unlucky".into(),
        note: Some("nothing works".into()),
        action: "Trying".into(),
        secondary: None,
    };
    for _ in 0..3 {
        recorder.publish(&event, &pod.object_ref(&())).await?;
    }

    let about = ListParams::default().fields("reason=Unlucky");
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let list = events.list(&about).await?.items;
    let [event] = list.as_slice() else {
        anyhow::bail!("{list:?}");
    };
    ensure!(event.note.as_deref() == Some("nothing works"), "{event:?}");
    let series = event.series.as_ref().context("a series")?;
    ensure!(series.count == 3, "{series:?}");
    let regarding = event.regarding.as_ref().context("what it is about")?;
    ensure!(regarding.uid == pod.uid(), "{regarding:?}");

    let core: Api<CoreEvent> = Api::default_namespaced(client);
    let list = core
        .list(&about.fields("reason=Unlucky,involvedObject.name=a"))
        .await?
        .items;
    let [same] = list.as_slice() else {
        anyhow::bail!("{list:?}");
    };
    ensure!(same.metadata == event.metadata, "{same:?}");
    ensure!(same.message == event.note, "{same:?}");
    ensure!(same.type_.as_deref() == Some("Warning"), "{same:?}");
    ensure!(same.involved_object == *regarding, "{same:?}");
    ensure!(same.reporting_component == event.reporting_controller);
    ensure!(same.reporting_instance == event.reporting_instance);
    let same = same.series.as_ref().context("a series")?;
    ensure!(same.count == Some(3), "{same:?}");
    ensure!(same.last_observed_time.as_ref() == Some(&series.last_observed_time));
    server.kill()
}

/// A candidate for leadership.
struct Candidate {
    name: String,
    leads: watch::Receiver<bool>,
    task: JoinHandle<kube_lease_manager::Result<LeaseManager>>,
}

impl Candidate {
    async fn start(client: Client, name: &str) -> Result<Self> {
        let lease = LeaseManagerBuilder::new(client, "leader").with_identity(name);
        let manager = lease.with_duration(2).with_grace(1).build().await?;
        let (leads, task) = manager.watch().await;
        Ok(Self {
            name: name.to_owned(),
            leads,
            task,
        })
    }

    fn leads(&self) -> bool {
        *self.leads.borrow()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_leads_until_it_stops_renewing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(dir.path()).await?;
    let client = client(&server)?;
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let (a, b) = tokio::try_join!(
        Candidate::start(client.clone(), "a"),
        Candidate::start(client, "b")
    )?;
    let spec = || async {
        let lease = leases.get("leader").await;
        lease.ok().and_then(|lease| lease.spec)
    };
    let leading = || async { (a.leads(), b.leads()) };
    eventually("one leads", leading, |(a, b)| a | b).await;
    let (leader, other) = if a.leads() { (&a, &b) } else { (&b, &a) };
    for _ in 0..3 {
        let before = spec().await.and_then(|spec| spec.renew_time);
        let renewed = eventually("it renews", spec, |spec| {
            spec.as_ref().is_some_and(|spec| spec.renew_time != before)
        });
        let holder = renewed.await.and_then(|spec| spec.holder_identity);
        ensure!(holder.as_ref() == Some(&leader.name), "{holder:?}");
        ensure!(leader.leads() && !other.leads());
    }

    leader.task.abort();
    let successor = || async { other.leads() };
    eventually("the other takes over", successor, |leads| *leads).await;
    let lease = spec().await.context("the lease")?;
    ensure!(lease.holder_identity.as_ref() == Some(&other.name));
    ensure!(lease.lease_transitions == Some(2), "{lease:?}");
    other.task.abort();
    server.kill()
}
