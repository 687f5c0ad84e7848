//! Policies that ask the authorizers.

use super::*;

#[tokio::test]
async fn policies_ask_what_the_sender_may_do() {
    let server = GatedServer::start().await;
    let kinds = "/apis/admissionregistration.k8s.io/v1";
    let secrets = "authorizer.group('').resource('secrets').namespace(request.namespace)";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"]}]},
        "matchConditions": [{"name": "not-root", "expression": "!authorizer.path('/metrics').check('get').allowed()"}],
        "validations": [
            {"expression": "authorizer.requestResource.check('create').allowed()", "message": "own right"},
            {"expression": format!("{secrets}.check('get').allowed()"), "message": "needs the right to read secrets"},
        ],
    });
    let policy = json!({"metadata": {"name": "p"}, "spec": spec});
    server
        .make(&format!("{kinds}/validatingadmissionpolicies"), &policy)
        .await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    server
        .make(
            &format!("{kinds}/validatingadmissionpolicybindings"),
            &binding,
        )
        .await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let grant = async |name: &str, resource: &str, verb: &str| {
        let role = json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": [verb]}]});
        server.make(&format!("{rbac}/roles"), &role).await;
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        });
        server.make(&format!("{rbac}/rolebindings"), &binding).await;
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str| json!({"metadata": {"name": name}});
    server.make(maps, &map("by-root")).await;
    grant("maps", "configmaps", "create").await;
    let refused = server.ask("bob", Method::POST, maps, &map("a")).await;
    assert_eq!(refused.code, 422, "{:?}", refused.body);
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        message.ends_with("denied request: needs the right to read secrets"),
        "{message}"
    );
    grant("secrets", "secrets", "get").await;
    let created = server.ask("bob", Method::POST, maps, &map("a")).await;
    assert_eq!(created.code, 201, "{:?}", created.body);
    server.stop().await;
}
