//! Deployments, ReplicaSets and owners, from the API to addresses.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use podplane_api::{
    IntOrString, Object,
    apps::{Deployment, DeploymentSpec, DeploymentStrategy, ReplicaSet, RollingUpdateDeployment},
    core::{Container, Event, Pod, PodSpec, PodTemplateSpec},
    meta::{LabelSelector, ObjectMeta, OwnerReference},
    pod_ips,
};
use podplane_client::{
    Api, ApiError, CacheChange, DeleteParams, ListParams, Propagation, reflector,
};
use podplane_tests::{Cluster, Network, builder, eventually, pods::running};
use rustix::process::{Pid, Signal, kill_process};

const REVISION: &str = "deployment.kubernetes.io/revision";

/// A cluster, with clients of the objects in its default namespace.
struct DeploymentFixture {
    cluster: Cluster,
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    pods: Api<Pod>,
}

impl DeploymentFixture {
    async fn up(args: &str) -> Result<Option<Self>> {
        let up = builder(Network::Ledger).flags(args);
        Ok(Cluster::up(up).await?.map(|cluster| Self {
            deployments: cluster.client().namespaced("default"),
            sets: cluster.client().namespaced("default"),
            pods: cluster.client().namespaced("default"),
            cluster,
        }))
    }

    /// Changes the Deployment, whoever else writes to it.
    async fn change(&self, change: impl Fn(&mut DeploymentSpec)) -> Deployment {
        let write = || async {
            let mut deployment = self.deployments.get("web").await?;
            change(deployment.spec.as_mut().unwrap());
            self.deployments.update(&deployment).await
        };
        eventually("the Deployment is changed", write, Result::is_ok)
            .await
            .unwrap()
    }

    /// Waits until the Deployment reports that it is complete, as `kubectl rollout status` does.
    async fn rolled_out(&self, replicas: i32) -> Deployment {
        let read = || self.deployments.get("web");
        let is_complete = |read: &Result<Deployment, ApiError>| {
            read.as_ref().is_ok_and(|deployment| {
                let status = deployment.status.clone().unwrap_or_default();
                let all = [
                    status.replicas,
                    status.updated_replicas,
                    status.available_replicas,
                ];
                status.observed_generation >= deployment.metadata.generation
                    && all
                        .iter()
                        .all(|count| count.unwrap_or_default() == replicas)
            })
        };
        eventually("the rollout is complete", read, is_complete)
            .await
            .unwrap()
    }

    async fn all<K: Object>(&self, api: &Api<K>) -> Vec<K> {
        let list = || async { api.list(&ListParams::default()).await };
        let list = eventually("a list", list, Result::is_ok).await;
        list.unwrap().items
    }

    /// The pods that have not ended and are not being deleted.
    async fn live_pods(&self) -> Vec<Pod> {
        let pods = self.all(&self.pods).await.into_iter();
        pods.filter(|pod| !pod.is_deleting() && !pod_ips::is_terminal(pod))
            .collect()
    }

    async fn delete(&self, propagation: Propagation) {
        let params = DeleteParams {
            propagation: Some(propagation),
            ..DeleteParams::default()
        };
        self.deployments.delete("web", &params).await.unwrap();
    }

    async fn nothing_is_left(&self) {
        let left = || async {
            let sets = self.all(&self.sets).await.len();
            (sets, self.all(&self.pods).await.len())
        };
        eventually("nothing is left", left, |left| *left == (0, 0)).await;
    }

    async fn kill_controllers(&self) -> Result<()> {
        let services = self.cluster.status().await?.services;
        let mut services = services.into_iter();
        let controllers = services.find(|service| service.name == "controller-manager");
        if let Some(pid) = controllers.and_then(|service| service.pid) {
            let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
            // The process may have ended since.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }
}

fn web(replicas: i32) -> Deployment {
    let labels = || Some([("app".to_owned(), "web".to_owned())].into());
    let strategy = DeploymentStrategy {
        type_: Some("RollingUpdate".into()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(1)),
        }),
    };
    Deployment {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: labels(),
                ..LabelSelector::default()
            },
            strategy: Some(strategy),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: labels(),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    containers: vec![Container {
                        name: "c".into(),
                        image: Some("web:1".into()),
                        ..Container::default()
                    }],
                    termination_grace_period_seconds: Some(1),
                    ..PodSpec::default()
                }),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn set_image(spec: &mut DeploymentSpec, image: &str) {
    let template = spec.template.spec.as_mut().unwrap();
    template.containers[0].image = Some(image.into());
}

fn image(pod: &Pod) -> &str {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    container.image.as_deref().unwrap_or_default()
}

fn revision<K: Object>(object: &K) -> &str {
    let annotations = object.metadata().annotations.as_ref();
    annotations
        .and_then(|all| all.get(REVISION))
        .map_or("", String::as_str)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_created_scaled_updated_and_undone() -> Result<()> {
    let Some(world) = DeploymentFixture::up("--nodes 2").await? else {
        return Ok(());
    };
    world.deployments.create(&web(3)).await?;
    let first = world.rolled_out(3).await;
    assert_eq!(revision(&first), "1");
    assert_eq!(
        first.metadata.generation,
        Some(1),
        "the revision is no new generation"
    );
    let pods = world.live_pods().await;
    assert_eq!(running(&pods), 3);
    let [set] = &world.all(&world.sets).await[..] else {
        panic!("one ReplicaSet");
    };
    for pod in &pods {
        assert!(
            pod.name().starts_with(&format!("{}-", set.name())),
            "{}",
            pod.name()
        );
        assert_eq!(
            pod.metadata.generate_name.as_deref(),
            Some(&*format!("{}-", set.name()))
        );
    }

    world.change(|spec| spec.replicas = Some(5)).await;
    world.rolled_out(5).await;
    assert_eq!(world.all(&world.sets).await.len(), 1);

    world.change(|spec| set_image(spec, "web:2")).await;
    let second = world.rolled_out(5).await;
    assert_eq!(revision(&second), "2");
    assert!(
        world
            .live_pods()
            .await
            .iter()
            .all(|pod| image(pod) == "web:2")
    );
    let sets = world.all(&world.sets).await;
    assert_eq!(sets.len(), 2);

    // As `kubectl rollout undo` does: the template of the old ReplicaSet, without its hash.
    let old = sets.iter().find(|set| revision(*set) == "1").unwrap();
    let mut template = old.spec.clone().unwrap().template.unwrap();
    let labels = template.metadata.as_mut().unwrap().labels.as_mut().unwrap();
    labels.remove("pod-template-hash").unwrap();
    world.change(|spec| spec.template = template.clone()).await;
    let third = world.rolled_out(5).await;
    assert_eq!(revision(&third), "3");
    assert!(
        world
            .live_pods()
            .await
            .iter()
            .all(|pod| image(pod) == "web:1")
    );
    let sets = world.all(&world.sets).await;
    let again = sets.iter().find(|set| set.uid() == old.uid()).unwrap();
    let history =
        &again.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision-history"];
    assert_eq!(
        (sets.len(), history.as_str(), revision(again)),
        (2, "1", "3")
    );

    let conditions = third.status.unwrap().conditions.unwrap();
    let reasons: BTreeSet<_> = conditions
        .iter()
        .filter_map(|one| one.reason.as_deref())
        .collect();
    assert_eq!(
        reasons,
        ["MinimumReplicasAvailable", "NewReplicaSetAvailable"].into()
    );
    let events = world.cluster.client().namespaced::<Event>("default");
    let messages = || async {
        let events = world.all(&events).await.into_iter();
        let of_controllers =
            events.filter(|event| event.involved_object.name.as_deref() == Some("web"));
        of_controllers
            .filter_map(|event| event.message)
            .collect::<Vec<_>>()
    };
    let scaled = format!("Scaled up replica set {} from 3 to 5", set.name());
    eventually("the scale is told", messages, |all| all.contains(&scaled)).await;
    world.cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn propagation_policy_decides_on_the_objects_of_a_deployment() -> Result<()> {
    let Some(world) = DeploymentFixture::up("--nodes 1").await? else {
        return Ok(());
    };
    world.deployments.create(&web(3)).await?;
    world.rolled_out(3).await;
    world.delete(Propagation::Background).await;
    assert!(
        world
            .deployments
            .get("web")
            .await
            .is_err_and(|error| error.is_not_found())
    );
    world.nothing_is_left().await;

    // With foreground deletion, the owner goes last.
    world.deployments.create(&web(3)).await?;
    world.rolled_out(3).await;
    let (deployments, follow) = reflector(world.deployments.clone(), ListParams::default());
    let (pods, follow_pods) = reflector(world.pods.clone(), ListParams::default());
    let last = async {
        tokio::join!(deployments.synced(), pods.synced());
        let mut changes = deployments.subscribe();
        world.delete(Propagation::Foreground).await;
        while !matches!(changes.next().await, CacheChange::Deleted(_)) {}
        world.all(&world.pods).await.len()
    };
    let left = tokio::select! {
        () = follow => unreachable!("it never ends"),
        () = follow_pods => unreachable!("it never ends"),
        left = last => left,
    };
    assert_eq!(left, 0, "the Deployment went before its pods");
    world.nothing_is_left().await;

    // Orphans stay, and a Deployment with the same selector and template takes them over.
    world.deployments.create(&web(3)).await?;
    world.rolled_out(3).await;
    let uids = async || {
        let pods = world.live_pods().await.into_iter();
        pods.map(|pod| pod.metadata.uid.unwrap())
            .collect::<BTreeSet<_>>()
    };
    let before = uids().await;
    world.delete(Propagation::Orphan).await;
    let gone = || world.deployments.get("web");
    eventually("the Deployment is gone", gone, |read| {
        read.as_ref().is_err_and(ApiError::is_not_found)
    })
    .await
    .unwrap_err();
    let [set] = &world.all(&world.sets).await[..] else {
        panic!("its ReplicaSet stays");
    };
    assert_eq!(set.metadata.owner_references, None);
    world.deployments.create(&web(3)).await?;
    world.rolled_out(3).await;
    let sets = world.all(&world.sets).await;
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].uid(), set.uid());
    assert_eq!(uids().await, before, "no pod was made anew");

    // An owner that never existed does not count as an owner.
    let mut stray = sets[0].clone();
    stray.metadata = ObjectMeta {
        name: Some("stray".into()),
        namespace: Some("default".into()),
        owner_references: Some(vec![OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            uid: "00000000-0000-0000-0000-000000000000".into(),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    };
    stray.spec.as_mut().unwrap().replicas = Some(0);
    world.sets.create(&stray).await?;
    let gone = || world.sets.get("stray");
    eventually("the stray is collected", gone, |read| {
        read.as_ref().is_err_and(ApiError::is_not_found)
    })
    .await
    .unwrap_err();
    world.cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_removed_node_are_recreated_elsewhere() -> Result<()> {
    let Some(world) = DeploymentFixture::up("--nodes 2").await? else {
        return Ok(());
    };
    world.deployments.create(&web(4)).await?;
    world.rolled_out(4).await;
    world.cluster.podplane("node remove node-1").ok();
    let on_first = || async {
        let pods = world.live_pods().await;
        let here = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("node-0");
        (running(&pods), pods.iter().filter(here).count())
    };
    eventually("all run on the node that is left", on_first, |seen| {
        *seen == (4, 4)
    })
    .await;
    world.rolled_out(4).await;
    world.cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_controllers_keep_a_rollout_within_its_surge() -> Result<()> {
    const REPLICAS: i32 = 20;
    const SURGE: usize = 1;
    let Some(world) = DeploymentFixture::up("--nodes 2").await? else {
        return Ok(());
    };
    let (pods, follow) = reflector(world.pods.clone(), ListParams::default());
    let mut changes = pods.subscribe();
    let watch = async {
        // The pods that count, by the server's history.
        let (mut live, mut most) = (BTreeSet::new(), 0);
        loop {
            match changes.next().await {
                CacheChange::Applied { new, .. }
                    if !new.is_deleting() && !pod_ips::is_terminal(&new) =>
                {
                    live.insert(new.uid().to_owned());
                }
                CacheChange::Applied { new: pod, .. } | CacheChange::Deleted(pod) => {
                    live.remove(pod.uid());
                }
            }
            most = most.max(live.len());
            let allowed = usize::try_from(REPLICAS).unwrap() + SURGE;
            // One ReplicaSet may be scaled up before the other has deleted the pods by which it was
            // scaled down: a step of two.
            assert!(most <= allowed + 2, "{most} pods at once");
        }
    };
    let rollout = async {
        world.deployments.create(&web(REPLICAS)).await?;
        for (round, image) in ["web:1", "web:2", "web:3"].into_iter().enumerate() {
            world.change(|spec| set_image(spec, image)).await;
            for kill in 1..=3 {
                let some = || async {
                    world
                        .live_pods()
                        .await
                        .iter()
                        .filter(|pod| self::image(pod) == image)
                        .count()
                };
                eventually("the rollout has begun", some, |some| *some >= kill * 4).await;
                world.kill_controllers().await?;
            }
            let done = world.rolled_out(REPLICAS).await;
            assert_eq!(revision(&done), (round + 1).to_string());
            let pods = world.live_pods().await;
            assert_eq!(pods.len(), usize::try_from(REPLICAS)?);
            assert!(pods.iter().all(|pod| self::image(pod) == image));
        }
        anyhow::Ok(())
    };
    tokio::select! {
        () = follow => unreachable!("it never ends"),
        () = watch => unreachable!("it never ends"),
        done = rollout => done?,
    }
    let services = world.cluster.status().await?.services;
    let restarts: u32 = services
        .iter()
        .filter(|service| service.name == "controller-manager")
        .map(|service| service.restarts)
        .sum();
    assert!(restarts >= 3, "{restarts}");
    world.cluster.finish().await
}
