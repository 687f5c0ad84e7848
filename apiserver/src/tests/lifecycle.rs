use podplane_api::{
    core::{PodCondition, PodStatus},
    pod_ips::POD_READY_TO_START_CONTAINERS,
};
use podplane_client::{ListParams, Propagation, Reason};

use super::*;

fn bound(name: &str) -> Pod {
    pod_with(json!({"metadata": {"name": name}, "spec": {"nodeName": "n"}}))
}

#[tokio::test]
async fn a_bound_pod_exists_until_its_kubelet_deletes_it() {
    let server = TestServer::start().await;
    let pods = server.pods();
    pods.create(&bound("a")).await.unwrap();
    let deleting = pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(deleting.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(deleting.metadata.generation, Some(2));
    let end = deleting.metadata.deletion_timestamp.clone().unwrap();

    // A grace period can be shortened, not extended.
    let later = DeleteParams {
        grace_period_seconds: Some(60),
        ..DeleteParams::default()
    };
    assert_eq!(pods.delete("a", &later).await.unwrap(), deleting);
    let sooner = DeleteParams {
        grace_period_seconds: Some(10),
        ..DeleteParams::default()
    };
    let sooner = pods.delete("a", &sooner).await.unwrap();
    assert_eq!(
        end.0.as_second() - sooner.metadata.deletion_timestamp.unwrap().0.as_second(),
        20
    );

    pods.delete("a", &at_once()).await.unwrap();
    assert_eq!(pods.get("a").await.unwrap_err().reason, Reason::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn unbound_and_finished_pods_are_deleted_at_once() {
    let server = TestServer::start().await;
    let pods = server.pods();
    pods.create(&pod("unbound")).await.unwrap();
    let mut done = pods.create(&bound("done")).await.unwrap();
    done.status = Some(ended("False"));
    pods.update_status(&done).await.unwrap();
    for name in ["unbound", "done"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        assert_eq!(
            pods.get(name).await.unwrap_err().reason,
            Reason::NotFound,
            "{name}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn keeps_an_ended_pod_until_its_sandbox_is_gone() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let mut ending = pods.create(&bound("ending")).await.unwrap();
    ending.status = Some(ended("True"));
    pods.update_status(&ending).await.unwrap();
    pods.delete("ending", &DeleteParams::default())
        .await
        .unwrap();
    let mut ending = pods.get("ending").await.unwrap();
    assert!(ending.is_deleting(), "its kubelet has a sandbox to remove");
    ending.status = Some(ended("False"));
    pods.update_status(&ending).await.unwrap();
    // As its kubelet does: a pending deletion is shortened.
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    pods.delete("ending", &at_once).await.unwrap();
    let gone = pods.get("ending").await.unwrap_err();
    assert_eq!(gone.reason, Reason::NotFound);
    server.stop().await;
}

/// A kubelet's report of a pod that has ended, with or without its sandbox.
fn ended(sandbox: &str) -> PodStatus {
    PodStatus {
        phase: Some("Failed".into()),
        conditions: Some(vec![PodCondition {
            type_: POD_READY_TO_START_CONTAINERS.into(),
            status: sandbox.into(),
            ..PodCondition::default()
        }]),
        ..PodStatus::default()
    }
}

#[tokio::test]
async fn propagation_policy_sets_the_finalizer() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let with = |propagation| DeleteParams {
        propagation,
        ..DeleteParams::default()
    };
    let finalizers = |node: Node| node.metadata.finalizers.unwrap_or_default();
    nodes.create(&node("n")).await.unwrap();
    for (propagation, want) in [
        (Some(Propagation::Foreground), "foregroundDeletion"),
        (Some(Propagation::Orphan), "orphan"),
        (None, "orphan"),
    ] {
        let deleting = nodes.delete("n", &with(propagation)).await.unwrap();
        assert!(deleting.is_deleting());
        assert_eq!(finalizers(deleting), [want], "{propagation:?}");
    }
    let background = with(Some(Propagation::Background));
    nodes.delete("n", &background).await.unwrap();
    assert_eq!(nodes.get("n").await.unwrap_err().reason, Reason::NotFound);

    // Finalizers of others stay, and the object is removed with the last of all.
    let mut kept = node("kept");
    kept.metadata.finalizers = Some(vec!["example.com/mine".into()]);
    nodes.create(&kept).await.unwrap();
    let foreground = with(Some(Propagation::Foreground));
    let mut deleting = nodes.delete("kept", &foreground).await.unwrap();
    deleting.metadata.finalizers = Some(vec!["foregroundDeletion".into()]);
    let mut deleting = nodes.update(&deleting).await.unwrap();
    deleting.metadata.finalizers = None;
    nodes.update(&deleting).await.unwrap();
    assert_eq!(
        nodes.get("kept").await.unwrap_err().reason,
        Reason::NotFound
    );
    server.stop().await;
}

#[tokio::test]
async fn a_delete_checks_uid_and_revision() {
    let server = TestServer::start().await;
    let created = server.nodes().create(&node("n")).await.unwrap();
    let other = DeleteParams {
        uid: Some("other".into()),
        ..DeleteParams::default()
    };
    let error = server.nodes().delete("n", &other).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "Operation cannot be fulfilled on nodes \"n\": the UID in the precondition (other) does not match the UID in record ({}). \
             The object might have been deleted and then recreated",
            created.uid()
        )
    );
    let old = DeleteParams {
        resource_version: Some("1".into()),
        ..DeleteParams::default()
    };
    assert_eq!(
        server.nodes().delete("n", &old).await.unwrap_err().reason,
        Reason::Conflict
    );
    let right = DeleteParams {
        uid: created.metadata.uid.clone(),
        resource_version: created.metadata.resource_version.clone(),
        ..DeleteParams::default()
    };
    server.nodes().delete("n", &right).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn an_object_in_deletion_goes_with_its_last_finalizer() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let held: Node = object(json!({"metadata": {"name": "n", "finalizers": ["a/b", "c/d"]}}));
    nodes.create(&held).await.unwrap();
    let mut deleting = nodes.delete("n", &DeleteParams::default()).await.unwrap();
    assert!(deleting.is_deleting());

    deleting.metadata.finalizers = Some(vec!["c/d".into(), "e/f".into()]);
    let error = nodes.update(&deleting).await.unwrap_err();
    assert!(
        error
            .message
            .contains("no new finalizers can be added if the object is being deleted"),
        "{error}"
    );
    deleting.metadata.finalizers = Some(vec!["c/d".into()]);
    deleting = nodes.update(&deleting).await.unwrap();
    deleting.metadata.finalizers = None;
    nodes.update(&deleting).await.unwrap();
    assert_eq!(nodes.get("n").await.unwrap_err().reason, Reason::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn a_finalizer_holds_a_pod_past_its_grace() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let held = pod_with(
        json!({"metadata": {"name": "a", "finalizers": ["a/b"]}, "spec": {"nodeName": "n"}}),
    );
    pods.create(&held).await.unwrap();
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    let mut ended = pods.delete("a", &at_once()).await.unwrap();
    assert_eq!(ended.metadata.deletion_grace_period_seconds, Some(0));
    ended.metadata.finalizers = None;
    pods.update(&ended).await.unwrap();
    assert_eq!(pods.get("a").await.unwrap_err().reason, Reason::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn system_namespaces_exist_and_cannot_be_deleted() {
    let server = TestServer::start().await;
    let names: Vec<_> = server
        .namespaces()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let names: Vec<_> = names.iter().map(Object::name).collect();
    assert_eq!(
        names,
        ["default", "kube-node-lease", "kube-public", "kube-system"]
    );
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let error = server
            .namespaces()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap_err();
        assert_eq!(error.reason, Reason::Forbidden);
        assert_eq!(
            error.message,
            format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted")
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_namespace_is_deleted_with_its_objects() {
    let server = TestServer::start().await;
    let namespaces = server.namespaces();
    let namespace: Namespace = object(json!({"metadata": {"name": "x"}}));
    let created = namespaces.create(&namespace).await.unwrap();
    assert_eq!(
        created.metadata.labels.unwrap()["kubernetes.io/metadata.name"],
        "x"
    );
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Active"));

    let pods = server.client.namespaced::<Pod>("x");
    pods.create(&pod_with(
        json!({"metadata": {"name": "pending", "namespace": "x"}}),
    ))
    .await
    .unwrap();
    pods.create(&pod_with(
        json!({"metadata": {"name": "bound", "namespace": "x"}, "spec": {"nodeName": "n"}}),
    ))
    .await
    .unwrap();
    let mut gone = Box::pin(namespaces.watch(&ListParams::default(), "").await.unwrap());
    let ending = namespaces
        .delete("x", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));

    let late = pods
        .create(&pod_with(
            json!({"metadata": {"name": "late", "namespace": "x"}}),
        ))
        .await
        .unwrap_err();
    assert_eq!(late.reason, Reason::Forbidden);
    assert_eq!(
        late.message,
        "pods \"late\" is forbidden: unable to create new content in namespace x because it is being terminated"
    );

    // The bound pod is removed when its kubelet says so; the namespace waits for it.
    let mut changes = Box::pin(
        pods.watch(
            &ListParams {
                field_selector: "metadata.name=bound".into(),
                ..ListParams::default()
            },
            "",
        )
        .await
        .unwrap(),
    );
    loop {
        match next(&mut changes).await {
            ObjectEvent::Added(pod) | ObjectEvent::Modified(pod) if pod.is_deleting() => break,
            _ => {}
        }
    }
    assert!(namespaces.get("x").await.is_ok());
    pods.delete("bound", &at_once()).await.unwrap();
    while event_text(&next(&mut gone).await) != "deleted x" {}
    assert!(
        pods.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    server.stop().await;
}
