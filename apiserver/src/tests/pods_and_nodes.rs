use podplane_client::{Binding, Reason};

use super::*;

fn binding(pod: &Pod, node: &str) -> Binding {
    Binding {
        name: pod.name().into(),
        uid: pod.uid().into(),
        resource_version: None,
        node_name: node.into(),
    }
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let created = pods.create(&pod("a")).await.unwrap();
    let other = Binding {
        uid: "other".into(),
        ..binding(&created, "n")
    };
    assert_eq!(
        pods.bind(&other).await.unwrap_err().reason,
        Reason::Conflict
    );
    let stale = Binding {
        resource_version: Some("1".into()),
        ..binding(&created, "n")
    };
    assert_eq!(
        pods.bind(&stale).await.unwrap_err().reason,
        Reason::Conflict
    );

    pods.bind(&binding(&created, "n")).await.unwrap();
    let bound = pods.get(created.name()).await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().node_name.as_deref(), Some("n"));
    let condition = &bound.status.as_ref().unwrap().conditions.as_ref().unwrap()[0];
    assert_eq!(
        (&*condition.type_, &*condition.status),
        ("PodScheduled", "True")
    );

    let error = pods.bind(&binding(&created, "m")).await.unwrap_err();
    assert_eq!(error.reason, Reason::Conflict);
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n\""
    );
    assert_eq!(
        pods.bind(&binding(&pod("b"), "n"))
            .await
            .unwrap_err()
            .message,
        "pods \"b\" not found"
    );

    pods.delete("a", &DeleteParams::default()).await.unwrap();
    let error = pods.bind(&binding(&created, "n")).await.unwrap_err();
    assert!(
        error
            .message
            .ends_with("pod a is being deleted, cannot be assigned to a host"),
        "{error}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_gated_pod_is_not_bound() {
    let server = TestServer::start().await;
    let gated =
        pod_with(json!({"metadata": {"name": "a"}, "spec": {"schedulingGates": [{"name": "g"}]}}));
    let gated = server.pods().create(&gated).await.unwrap();
    assert_eq!(
        gated.status.as_ref().unwrap().conditions.as_ref().unwrap()[0]
            .reason
            .as_deref(),
        Some("SchedulingGated")
    );
    let error = server.pods().bind(&binding(&gated, "n")).await.unwrap_err();
    assert!(
        error
            .message
            .ends_with("pod a has non-empty .spec.schedulingGates"),
        "{error}"
    );
    server.stop().await;
}

fn cidrs(list: &[&str]) -> Vec<String> {
    list.iter().map(|cidr| (*cidr).to_owned()).collect()
}

#[tokio::test]
async fn the_blocks_of_a_node_are_assigned_once() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let created = nodes.create(&node("n")).await.unwrap();
    let assign = |uid: &str, revision: &str, blocks: &[&str]| {
        let (nodes, uid, revision, blocks) = (
            nodes.clone(),
            uid.to_owned(),
            revision.to_owned(),
            cidrs(blocks),
        );
        async move { nodes.assign_pod_cidrs("n", &uid, &revision, &blocks).await }
    };
    assert_eq!(
        assign("other", "", &["10.0.0.0/24"])
            .await
            .unwrap_err()
            .reason,
        Reason::Conflict
    );
    assert_eq!(
        assign(created.uid(), "1", &["10.0.0.0/24"])
            .await
            .unwrap_err()
            .reason,
        Reason::Conflict
    );
    assert_eq!(
        assign(created.uid(), "", &["rubbish"])
            .await
            .unwrap_err()
            .reason,
        Reason::Invalid
    );

    let assigned = assign(
        created.uid(),
        created.resource_version(),
        &["10.0.0.0/24", "fd00::/64"],
    )
    .await
    .unwrap();
    let spec = assigned.spec.as_ref().unwrap();
    assert_eq!(spec.pod_cidr.as_deref(), Some("10.0.0.0/24"));
    assert_eq!(spec.pod_cidrs, Some(cidrs(&["10.0.0.0/24", "fd00::/64"])));
    // After a lost answer the request can be repeated at the old revision.
    let again = assign(
        created.uid(),
        created.resource_version(),
        &["10.0.0.0/24", "fd00::/64"],
    )
    .await
    .unwrap();
    assert_eq!(again, assigned);
    assert_eq!(
        assign(created.uid(), "", &["10.0.1.0/24"])
            .await
            .unwrap_err()
            .reason,
        Reason::Conflict
    );
    server.stop().await;
}

#[tokio::test]
async fn pod_cidr_and_pod_cidrs_of_a_node_agree() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let one: Node = object(json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}}));
    let mut created = nodes.create(&one).await.unwrap();
    assert_eq!(
        created.spec.as_ref().unwrap().pod_cidrs,
        Some(cidrs(&["10.0.0.0/24"]))
    );
    created.spec.as_mut().unwrap().pod_cidr = Some("10.0.1.0/24".into());
    let error = nodes.update(&created).await.unwrap_err();
    assert_eq!(
        error.message,
        "Node \"n\" is invalid: spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"
    );
    server.stop().await;
}
