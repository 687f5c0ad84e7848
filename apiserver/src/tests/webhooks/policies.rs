//! Validating admission policies and their bindings.

use super::*;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

fn rules(resources: &[&str]) -> Value {
    json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources}]})
}

impl TestServer {
    /// A policy for ConfigMaps.
    async fn policy(&self, name: &str, mut spec: Value) {
        if spec["matchConstraints"].is_null() {
            spec["matchConstraints"] = rules(&["configmaps"]);
        }
        let policy = json!({"metadata": {"name": name}, "spec": spec});
        self.make(POLICIES, &policy).await;
    }

    async fn bind_policy(&self, name: &str, policy: &str, actions: &[&str], fields: Value) {
        let mut spec = json!({"policyName": policy, "validationActions": actions});
        spec.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let binding = json!({"metadata": {"name": name}, "spec": spec});
        self.make(BINDINGS, &binding).await;
    }
}

#[tokio::test]
async fn a_policy_refuses_warns_or_is_silent_as_its_binding_says() {
    let server = TestServer::start().await;
    let spec = json!({"validations": [{"expression": "!has(object.data) || !('bad' in object.data)", "message": "bad data"}]});
    server.policy("p", spec).await;
    let bad = |name: &str| config_map(name, json!({"bad": "1"}));
    // Without a binding a policy does nothing.
    server.make(CONFIG_MAPS, &bad("a")).await;
    server.bind_policy("warns", "p", &["Warn"], json!({})).await;
    let created = server.ask(Method::POST, CONFIG_MAPS, &bad("b")).await;
    assert_eq!(created.code, 201);
    let warned = "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'warns': bad data\"";
    assert_eq!(warnings(&created), [warned]);
    server
        .bind_policy("denies", "p", &["Deny"], json!({}))
        .await;
    let refused = server.ask(Method::POST, CONFIG_MAPS, &bad("c")).await;
    assert_eq!(
        (refused.code, refused.body["reason"].as_str()),
        (422, Some("Invalid"))
    );
    assert_eq!(
        refused.body["message"],
        "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'denies' denied request: bad data"
    );
    let map: podplane_api::core::ConfigMap =
        object(json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"bad": "1"}}));
    let refused = server
        .client
        .namespaced("default")
        .create(&map)
        .await
        .unwrap_err();
    assert_eq!(refused.reason, Reason::Invalid);
    server.make(CONFIG_MAPS, &config_map("c", json!({}))).await;
    // Updates are judged, too, and a deletion has no object.
    let path = format!("{CONFIG_MAPS}/c");
    let data = json!({"data": {"bad": "1"}});
    assert_eq!(server.ask(Method::PATCH, &path, &data).await.code, 422);
    let refused = server.ask(Method::DELETE, &path, &json!({})).await;
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.contains("resulted in error"), "{message}");
    server.stop().await;
}

/// A disruption is taken only for an eviction that nobody refuses.
#[tokio::test]
async fn a_refused_eviction_takes_no_disruption() {
    let server = TestServer::start().await;
    let pod = json!({"metadata": {"name": "a", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    server.make(pods, &pod).await;
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("{pods}/a");
    let place = format!("{path}/status");
    assert_eq!(server.ask(Method::PATCH, &place, &status).await.code, 200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}}});
    server.make(budgets, &budget).await;
    let counted = json!({"status": {"currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1, "disruptionsAllowed": 1, "observedGeneration": 1}});
    let place = format!("{budgets}/web/status");
    assert_eq!(server.ask(Method::PATCH, &place, &counted).await.code, 200);
    let spec = json!({"matchConstraints": rules(&["pods/eviction"]), "validations": [{"expression": "false", "message": "stays"}]});
    server.policy("stays", spec).await;
    server
        .bind_policy("stays", "stays", &["Deny"], json!({}))
        .await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let evicting = format!("{path}/eviction");
    let refused = server.ask(Method::POST, &evicting, &eviction).await;
    assert_eq!(refused.code, 422, "{:?}", refused.body);
    let budget = server
        .rest
        .get(&format!("{budgets}/web"))
        .await
        .unwrap()
        .body;
    assert_eq!(budget["status"]["disruptionsAllowed"], 1);
    assert!(budget["status"]["disruptedPods"].is_null(), "{budget}");
    let place = format!("{BINDINGS}/stays");
    let deleted = server.ask(Method::DELETE, &place, &json!({})).await;
    assert_eq!(deleted.code, 200);
    let evicted = server.ask(Method::POST, &evicting, &eviction).await;
    assert_eq!(evicted.code, 201, "{:?}", evicted.body);
    server.stop().await;
}

#[tokio::test]
async fn policies_read_parameters_namespaces_and_the_user() {
    let server = TestServer::start().await;
    for (name, env) in [("prod", "prod"), ("test", "test")] {
        let namespace = json!({"metadata": {"name": name, "labels": {"env": env}}});
        server.make("/api/v1/namespaces", &namespace).await;
    }
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": rules(&["secrets"]),
        "matchConditions": [{"name": "not-exempt", "expression": "object.metadata.name != 'exempt'"}],
        "variables": [{"name": "count", "expression": "size(object.data)"}],
        "validations": [
            {
                "expression": "variables.count <= int(params.data.max)",
                "messageExpression": "'at most ' + params.data.max + ', not ' + string(variables.count)",
                "reason": "Forbidden",
            },
            {"expression": "namespaceObject.metadata.labels.env == 'prod' || request.userInfo.username != 'system:anonymous'"},
        ],
    });
    server.policy("limits", spec).await;
    let params = |fields: Value| {
        let mut params = json!({"parameterNotFoundAction": "Deny"});
        params
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        json!({"paramRef": params, "matchResources": {"namespaceSelector": {"matchLabels": {"env": "prod"}}}})
    };
    server
        .bind_policy(
            "named",
            "limits",
            &["Deny"],
            params(json!({"name": "limit"})),
        )
        .await;
    let secrets = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
    let secret =
        |name: &str| json!({"metadata": {"name": name}, "stringData": {"a": "1", "b": "2"}});
    let (code, message) = server.refused(&secrets("prod"), &secret("s")).await;
    assert_eq!(code, 422);
    assert!(message.ends_with("denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"), "{message}");
    // The binding is of other namespaces.
    server.make(&secrets("test"), &secret("s")).await;
    let maps = "/api/v1/namespaces/prod/configmaps";
    let limit = |name: &str, max: &str| json!({"metadata": {"name": name, "labels": {"limits": "all"}}, "data": {"max": max}});
    server.make(maps, &limit("limit", "1")).await;
    let refused = server
        .ask(Method::POST, &secrets("prod"), &secret("s"))
        .await;
    assert_eq!(
        (refused.code, refused.body["reason"].as_str()),
        (403, Some("Forbidden"))
    );
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        message.ends_with("denied request: at most 1, not 2"),
        "{message}"
    );
    server.make(&secrets("prod"), &secret("exempt")).await;
    let path = format!("{maps}/limit");
    let raised = json!({"data": {"max": "2"}});
    assert_eq!(server.ask(Method::PATCH, &path, &raised).await.code, 200);
    server.make(&secrets("prod"), &secret("s")).await;
    // Every parameter that is selected must allow.
    let selected = params(json!({"selector": {"matchLabels": {"limits": "all"}}}));
    server
        .bind_policy("selected", "limits", &["Deny"], selected)
        .await;
    server.make(&secrets("prod"), &secret("t")).await;
    server.make(maps, &limit("other", "0")).await;
    let (_, message) = server.refused(&secrets("prod"), &secret("u")).await;
    assert!(
        message.contains("with binding 'selected' denied request: at most 0, not 2"),
        "{message}"
    );
    server.stop().await;
}

#[tokio::test]
async fn errors_follow_the_failure_policy_and_policies_must_compile() {
    let server = TestServer::start().await;
    let spec = |policy: &str| json!({"failurePolicy": policy, "validations": [{"expression": "object.data.missing == 'x'"}]});
    server.policy("open", spec("Ignore")).await;
    server
        .bind_policy("open", "open", &["Deny"], json!({}))
        .await;
    server
        .make(CONFIG_MAPS, &config_map("a", json!({"k": "v"})))
        .await;
    server.policy("closed", spec("Fail")).await;
    server
        .bind_policy("closed", "closed", &["Deny"], json!({}))
        .await;
    let (code, message) = server
        .refused(CONFIG_MAPS, &config_map("b", json!({"k": "v"})))
        .await;
    assert_eq!(code, 422);
    let why = "expression 'object.data.missing == 'x'' resulted in error: no such key: missing";
    assert!(message.ends_with(why), "{message}");
    let wrong = json!({"metadata": {"name": "w"}, "spec": {"matchConstraints": rules(&["pods"]), "validations": [{"expression": "object.spec +"}]}});
    let (code, message) = server.refused(POLICIES, &wrong).await;
    assert_eq!(code, 422);
    let why = "spec.validations[0].expression: Invalid value: \"object.spec +\": compilation failed: ERROR: <input>:1:";
    assert!(message.contains(why), "{message}");
    let metrics = server.rest.get("/metrics").await.unwrap();
    let metrics = metrics.body.as_str().unwrap().to_owned();
    let counted = "apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"no_error\",policy=\"closed\",policy_binding=\"closed\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    server.stop().await;
}
