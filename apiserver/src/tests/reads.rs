use podplane_client::{ListParams, Reason};

use super::*;

fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.key().to_string()).collect()
}

#[tokio::test]
async fn selectors_filter_lists() {
    let server = TestServer::start().await;
    for (name, labels, node) in [
        ("a", json!({"app": "web"}), "n"),
        ("b", json!({"app": "db"}), "n"),
        ("c", json!({}), "m"),
    ] {
        let pod = pod_with(
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node}}),
        );
        server.pods().create(&pod).await.unwrap();
    }
    let cases = [
        ("", "", vec!["a", "b", "c"]),
        ("app=web", "", vec!["a"]),
        ("app", "", vec!["a", "b"]),
        ("app in (web,db)", "spec.nodeName=n", vec!["a", "b"]),
        ("!app", "", vec!["c"]),
        ("", "spec.nodeName!=n", vec!["c"]),
        ("", "metadata.name=b,status.phase=Pending", vec!["b"]),
    ];
    for (labels, fields, want) in cases {
        let params = ListParams {
            label_selector: labels.into(),
            field_selector: fields.into(),
            ..ListParams::default()
        };
        let list = server.pods().list(&params).await.unwrap();
        let found: Vec<_> = list.items.iter().map(Object::name).collect();
        assert_eq!(found, want, "{labels} {fields}");
    }
    let unsupported = ListParams {
        field_selector: "spec.foo=a".into(),
        ..ListParams::default()
    };
    let error = server.pods().list(&unsupported).await.unwrap_err();
    assert_eq!(
        (error.reason, &*error.message),
        (Reason::BadRequest, "field label not supported: spec.foo")
    );
    server.stop().await;
}

/// The order of keys differs from the order of names here: `a-b/` is before `a/`.
#[tokio::test]
async fn pages_are_of_one_revision() {
    let server = TestServer::start().await;
    for name in ["a", "a-b"] {
        let namespace: Namespace = object(json!({"metadata": {"name": name}}));
        server.namespaces().create(&namespace).await.unwrap();
        for index in 0..5 {
            let pod = pod_with(
                json!({"metadata": {"name": format!("p{index}"), "namespace": name, "labels": {"odd": (index % 2).to_string()}}}),
            );
            server.client.namespaced(name).create(&pod).await.unwrap();
        }
    }
    let all = server.client.all::<Pod>();
    for selector in ["", "odd=1"] {
        let params = |token: String, limit| ListParams {
            label_selector: selector.into(),
            limit,
            continue_token: token,
            ..ListParams::default()
        };
        let whole = all.list(&params(String::new(), 0)).await.unwrap();
        let mut page = all.list(&params(String::new(), 2)).await.unwrap();
        let revision = page.resource_version.clone();
        let mut found = names(&page.items);
        let mut round = 0;
        while let Some(token) = page.continue_token {
            // Pods created meanwhile are not in the list, and deleted ones are.
            let name = format!("a{selector:.0}{round}{}", selector.len());
            server
                .client
                .namespaced("a")
                .create(&pod_with(
                    json!({"metadata": {"name": name, "namespace": "a", "labels": {"odd": "1"}}}),
                ))
                .await
                .unwrap();
            server
                .client
                .namespaced::<Pod>("a")
                .delete(&name, &at_once())
                .await
                .unwrap();
            page = all.list(&params(token, 2)).await.unwrap();
            assert_eq!(page.resource_version, revision);
            assert!(page.items.len() <= 2);
            found.extend(names(&page.items));
            round += 1;
        }
        assert_eq!(found, names(&whole.items), "{selector}");
    }
    let bad = ListParams {
        continue_token: "rubbish!".into(),
        ..ListParams::default()
    };
    assert_eq!(all.list(&bad).await.unwrap_err().reason, Reason::BadRequest);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_return_all_acknowledged_writes() {
    let server = TestServer::start().await;
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let pods = server.pods();
        writers.spawn(async move {
            for index in 0..25 {
                let name = format!("p{writer}-{index}");
                let created = pods.create(&pod(&name)).await.unwrap();
                assert_eq!(pods.get(&name).await.unwrap(), created);
                let params = ListParams {
                    field_selector: format!("metadata.name={name}"),
                    ..ListParams::default()
                };
                assert_eq!(pods.list(&params).await.unwrap().items, [created]);
                pods.delete(&name, &at_once()).await.unwrap();
                assert_eq!(pods.get(&name).await.unwrap_err().reason, Reason::NotFound);
            }
        });
    }
    while let Some(done) = within(writers.join_next()).await {
        done.unwrap();
    }
    server.stop().await;
}
