use podplane_client::{ListParams, Reason};

use super::*;

#[tokio::test]
async fn a_watch_begins_with_existing_objects_and_a_bookmark() {
    let server = TestServer::start().await;
    let pods = server.pods();
    pods.create(&pod("a")).await.unwrap();
    pods.create(&pod("b")).await.unwrap();
    let mut events = Box::pin(pods.watch(&ListParams::default(), "").await.unwrap());
    assert_eq!(event_text(&next(&mut events).await), "added a");
    assert_eq!(event_text(&next(&mut events).await), "added b");
    let list = pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(
        within(events.next()).await.unwrap().unwrap(),
        ObjectEvent::Bookmark(list.resource_version)
    );

    pods.create(&pod("c")).await.unwrap();
    assert_eq!(event_text(&next(&mut events).await), "added c");
    let deleted = pods.delete("a", &at_once()).await.unwrap();
    match next(&mut events).await {
        ObjectEvent::Deleted(pod) => assert_eq!(pod.resource_version(), deleted.resource_version()),
        other => panic!("{other:?}"),
    }
    server.stop().await;
}

#[tokio::test]
async fn a_watch_resumes_where_another_ended() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let mut revision = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .resource_version;
    for index in 0..20 {
        pods.create(&pod(&format!("p{index}"))).await.unwrap();
    }
    // One event for each watch: none is missed and none is seen twice.
    for index in 0..20 {
        let mut events = Box::pin(pods.watch(&ListParams::default(), &revision).await.unwrap());
        match next(&mut events).await {
            ObjectEvent::Added(pod) => {
                assert_eq!(pod.name(), format!("p{index}"));
                revision = pod.resource_version().to_owned();
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_watch_from_a_revision_gets_a_bookmark_when_it_has_caught_up() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let first = pods.create(&pod("a")).await.unwrap();
    pods.create(&pod("b")).await.unwrap();
    // The bookmark is of the whole store.
    server.nodes().create(&node("n")).await.unwrap();
    let present = pods.list(&ListParams::default()).await.unwrap();
    for (selector, want) in [("", Some("added b")), ("metadata.name=none", None)] {
        let params = ListParams {
            field_selector: selector.into(),
            ..ListParams::default()
        };
        let events = pods.watch(&params, first.resource_version()).await.unwrap();
        let mut events = Box::pin(events);
        if let Some(want) = want {
            assert_eq!(
                event_text(&within(events.next()).await.unwrap().unwrap()),
                want
            );
        }
        assert_eq!(
            within(events.next()).await.unwrap().unwrap(),
            ObjectEvent::Bookmark(present.resource_version.clone())
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_selecting_watch_follows_objects_in_and_out_of_the_selection() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let params = ListParams {
        label_selector: "app=web".into(),
        ..ListParams::default()
    };
    let mut events = Box::pin(pods.watch(&params, "").await.unwrap());
    let mut pod = pods.create(&pod("a")).await.unwrap();
    for app in [Some("web"), Some("web"), Some("db"), None, Some("web")] {
        pod.metadata.labels = app.map(|app| [("app".to_owned(), app.to_owned())].into());
        let before = pod.resource_version().to_owned();
        pod.metadata
            .annotations
            .get_or_insert_default()
            .insert("before".into(), before);
        pod = pods.update(&pod).await.unwrap();
    }
    pods.delete("a", &at_once()).await.unwrap();
    for want in ["added a", "modified a", "deleted a", "added a", "deleted a"] {
        assert_eq!(event_text(&next(&mut events).await), want);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_watch_refuses_invalid_and_future_revisions() {
    let server = TestServer::start().await;
    for (revision, reason) in [
        ("999999", Reason::Expired),
        ("rubbish", Reason::BadRequest),
        ("-1", Reason::BadRequest),
    ] {
        let Err(error) = server.pods().watch(&ListParams::default(), revision).await else {
            panic!("{revision} was taken");
        };
        assert_eq!(error.reason, reason, "{error}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watch_sees_every_write_once_and_in_order() {
    const WRITERS: usize = 4;
    const EACH: usize = 25;
    let server = TestServer::start().await;
    let mut running = JoinSet::new();
    for _ in 0..8 {
        let mut events = Box::pin(
            server
                .pods()
                .watch(&ListParams::default(), "")
                .await
                .unwrap(),
        );
        running.spawn(async move {
            let mut last = 0;
            for _ in 0..WRITERS * EACH {
                let ObjectEvent::Added(pod) = next(&mut events).await else {
                    panic!("only creations")
                };
                let revision = pod.resource_version().parse().unwrap();
                assert!(revision > last, "{revision} after {last}");
                last = revision;
            }
        });
    }
    for writer in 0..WRITERS {
        let pods = server.pods();
        running.spawn(async move {
            for index in 0..EACH {
                pods.create(&pod(&format!("p{writer}-{index}")))
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = within(running.join_next()).await {
        done.unwrap();
    }
    server.stop().await;
}
