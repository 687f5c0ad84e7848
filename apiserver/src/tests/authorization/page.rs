//! The rights to the summary, and the page that needs none.

use super::*;

const CLUSTER: &str = "/summary/v1alpha1/cluster";

/// Lets a user do these things with pods, nodes and blocks.
async fn allow(server: &GatedServer, name: &str, user: &str, rules: &[(&str, &str, &str)]) {
    let rules: Vec<_> = rules
        .iter()
        .map(|(verb, group, resource)| {
            json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
        })
        .collect();
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    server.make(&format!("{rbac}/clusterroles"), &role).await;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    server
        .make(&format!("{rbac}/clusterrolebindings"), &binding)
        .await;
}

#[tokio::test]
async fn the_summary_needs_the_rights_to_its_lists_and_the_page_none() {
    let server = GatedServer::start().await;
    for path in ["/ui", "/ui/", "/ui/index.html"] {
        let answer = server.get("anonymous", path).await;
        assert!(matches!(answer.code, 200 | 308), "{path}: {}", answer.code);
    }
    let session = server.get("anonymous", "/ui/session").await;
    assert_eq!(
        (session.code, &session.body["kind"]),
        (401, &json!("Status"))
    );
    for (user, needs_login) in [("anonymous", true), ("bob", false)] {
        let about = server.get(user, "/ui/server").await;
        let want = json!({"source": "apiserver", "needsLogin": needs_login});
        assert_eq!((about.code, about.body), (200, want), "{user}");
    }
    let session = server.get("bob", "/ui/session").await;
    assert_eq!((session.code, &session.body["user"]), (200, &json!("bob")));

    let paths = [
        CLUSTER,
        "/summary/v1alpha1/map",
        "/summary/v1alpha1/addresses",
        "/summary/v1alpha1/nodes/n1",
        "/summary/v1alpha1/recording",
        "/summary/v1alpha1/pods/default/web/explanation",
        "/summary/v1alpha1/pods/default/web/trace",
    ];
    for identity in ["anonymous", "nobody"] {
        for path in paths {
            let answer = server.get(identity, path).await;
            assert!(is_refused(&answer), "{identity} {path}: {:?}", answer.body);
        }
    }

    let mut rules = Vec::new();
    for (verb, group, resource, missing) in [
        ("list", "", "pods", "list resource \"pods\""),
        ("list", "", "nodes", "list resource \"nodes\""),
        ("list", "", "services", "list resource \"services\""),
        (
            "list",
            "ipam.podplane.io",
            "blocks",
            "list resource \"blocks\"",
        ),
    ] {
        let answer = server.get("bob", CLUSTER).await;
        let message = answer.body["message"].as_str().unwrap();
        assert!(answer.code == 403 && message.contains(missing), "{message}");
        rules.push((verb, group, resource));
        allow(
            &server,
            &format!("bob-{resource}"),
            "bob",
            &rules[rules.len() - 1..],
        )
        .await;
    }
    assert_eq!(server.get("bob", CLUSTER).await.code, 200);
    let watch = server.get("bob", &format!("{CLUSTER}?watch=true")).await;
    let message = watch.body["message"].as_str().unwrap();
    assert!(message.contains("watch resource \"pods\""), "{message}");
    server.stop().await;
}
