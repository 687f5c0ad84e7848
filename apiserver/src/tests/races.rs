use podplane_client::{Binding, Reason};

use super::*;

const WRITERS: usize = 16;

/// Runs them at once and counts who won; the others must have lost for `reason`.
async fn winners<K: Object>(
    writers: Vec<impl Future<Output = Result<K, ApiError>> + Send + 'static>,
    reason: Reason,
) -> usize {
    let mut running: JoinSet<_> = writers.into_iter().collect();
    let mut won = 0;
    while let Some(done) = within(running.join_next()).await {
        match done.unwrap() {
            Ok(_) => won += 1,
            Err(error) => assert_eq!(error.reason, reason, "{error}"),
        }
    }
    won
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_creates_wins() {
    let server = TestServer::start().await;
    let create = |_| {
        let pods = server.pods();
        async move { pods.create(&pod("a")).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(create).collect(), Reason::AlreadyExists).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_binds_wins() {
    let server = TestServer::start().await;
    let created = server.pods().create(&pod("a")).await.unwrap();
    let bind = |index| {
        let pods = server.pods();
        let binding = Binding {
            name: "a".into(),
            uid: created.uid().into(),
            resource_version: None,
            node_name: format!("n{index}"),
        };
        async move { pods.bind(&binding).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(bind).collect(), Reason::Conflict).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_updates_from_the_same_revision_wins() {
    let server = TestServer::start().await;
    let created = server.nodes().create(&node("n")).await.unwrap();
    let update = |index: usize| {
        let nodes = server.nodes();
        let mut node = created.clone();
        node.metadata.labels = Some([("writer".to_owned(), index.to_string())].into());
        async move { nodes.update(&node).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(update).collect(), Reason::Conflict).await,
        1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_updates_without_a_revision_all_win() {
    let server = TestServer::start().await;
    server.nodes().create(&node("n")).await.unwrap();
    let update = |index: usize| {
        let nodes = server.nodes();
        let node: Node =
            object(json!({"metadata": {"name": "n", "labels": {"writer": index.to_string()}}}));
        async move { nodes.update(&node).await }
    };
    assert_eq!(
        winners((0..WRITERS).map(update).collect(), Reason::Conflict).await,
        WRITERS
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_created_in_a_namespace_that_ends() {
    let server = TestServer::start().await;
    let namespace: Namespace = object(json!({"metadata": {"name": "x"}}));
    server.namespaces().create(&namespace).await.unwrap();
    let mut creating = JoinSet::new();
    for index in 0..WRITERS {
        let pods = server.client.namespaced::<Pod>("x");
        creating.spawn(async move {
            let pod =
                pod_with(json!({"metadata": {"name": format!("p{index}"), "namespace": "x"}}));
            pods.create(&pod).await
        });
    }
    let mut changes = Box::pin(
        server
            .namespaces()
            .watch(&Default::default(), "")
            .await
            .unwrap(),
    );
    server
        .namespaces()
        .delete("x", &DeleteParams::default())
        .await
        .unwrap();
    while let Some(created) = within(creating.join_next()).await {
        if let Err(error) = created.unwrap() {
            assert!(
                matches!(error.reason, Reason::Forbidden | Reason::NotFound),
                "{error}"
            );
        }
    }
    while told(&next(&mut changes).await) != "deleted x" {}
    let left = server
        .client
        .namespaced::<Pod>("x")
        .list(&Default::default())
        .await
        .unwrap();
    assert!(left.items.is_empty(), "{left:?}");
    server.stop().await;
}
