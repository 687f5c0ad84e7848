//! Addresses and node ports of Services.

use std::collections::BTreeSet;

use http::Method;
use podplane_http_client::HttpAnswer;

use super::*;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const MERGE: &str = "application/merge-patch+json";

impl TestServer {
    async fn with_range(ranges: &str) -> Self {
        Self::with_range_on(ranges, MemStore::new()).await
    }

    async fn with_range_on(ranges: &str, store: impl Store) -> Self {
        let policy = BlockPolicy {
            service_ranges: ranges.parse().unwrap(),
            ..BlockPolicy::default()
        };
        Self::under(policy, store).await
    }

    async fn create_service(&self, name: &str, spec: Value) -> HttpAnswer {
        self.ask(Method::POST, SERVICES, &service(name, spec)).await
    }

    /// Creates a Service and returns its spec.
    async fn service_spec(&self, name: &str, spec: Value) -> Value {
        let made = self.create_service(name, spec).await;
        assert_eq!(made.code, 201, "{}", made.body);
        made.body["spec"].clone()
    }

    async fn patch_service(&self, name: &str, spec: Value) -> HttpAnswer {
        let path = format!("{SERVICES}/{name}");
        let patch = json!({"spec": spec});
        let answer = self.rest.send(Method::PATCH, &path, Some((MERGE, &patch)));
        within(answer).await.unwrap()
    }

    async fn delete_service(&self, name: &str) {
        let path = format!("{SERVICES}/{name}");
        let answer = self.ask(Method::DELETE, &path, &json!({})).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
    }

    /// Each reserved address and the name of its Service, but for that of the API server.
    async fn reserved(&self) -> Vec<(String, String)> {
        let list = self.rest.get(ADDRESSES).await.unwrap();
        let items = list.body["items"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = items.map(|item| {
            let parent = &item["spec"]["parentRef"];
            (text(&item["metadata"]["name"]), text(&parent["name"]))
        });
        all.filter(|(_, name)| name != "kubernetes").collect()
    }
}

fn service(name: &str, mut spec: Value) -> Value {
    if spec["ports"].is_null() && spec["type"] != "ExternalName" {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn message(answer: &HttpAnswer) -> &str {
    answer.body["message"].as_str().unwrap_or_default()
}

/// Types without node ports reserve none, and a Service that is being deleted takes none of another.
#[tokio::test]
async fn a_taken_node_port_is_refused_or_not_asked_for() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let ports = json!([{"port": 80, "nodePort": 30080}]);
    let taken = json!({"type": "NodePort", "ports": ports});
    server.service_spec("first", taken.clone()).await;
    let external = json!({"type": "ExternalName", "externalName": "a.example.com", "ports": ports});
    server.service_spec("external", external).await;
    server.service_spec("ending", json!({})).await;
    let path = format!("{SERVICES}/ending");
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    assert_eq!(server.ask(Method::PATCH, &path, &held).await.code, 200);
    server.delete_service("ending").await;
    let refused = server.patch_service("ending", taken).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(message(&refused).contains("provided port is already allocated"));
    server.stop().await;
}

#[tokio::test]
async fn a_service_has_an_address_until_it_ends() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let spec = server.service_spec("a", json!({})).await;
    let address = spec["clusterIP"].as_str().unwrap().to_owned();
    assert_eq!(spec["clusterIPs"], json!([address]));
    assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
    assert_eq!(spec["ipFamilyPolicy"], "SingleStack");
    let last: u8 = address.strip_prefix("10.96.0.").unwrap().parse().unwrap();
    assert!(
        (17..=254).contains(&last),
        "{address}: the first are for people"
    );
    let path = format!("{ADDRESSES}/{address}");
    let reservation = server.rest.get(&path).await.unwrap().body;
    let labels = json!({
        "ipaddress.kubernetes.io/ip-family": "IPv4",
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
    });
    assert_eq!(reservation["metadata"]["labels"], labels);
    assert_eq!(reservation["spec"]["parentRef"]["namespace"], "default");
    // It cannot be deleted alone.
    let refused = server.ask(Method::DELETE, &path, &json!({})).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert!(message(&refused).contains("the Service default/a has the address"));
    // Headless ones and external names have none.
    let headless = server.service_spec("h", json!({"clusterIP": "None"})).await;
    assert_eq!(headless["clusterIPs"], json!(["None"]));
    let external = json!({"type": "ExternalName", "externalName": "a.example.com"});
    let external_spec = server.service_spec("e", external.clone()).await;
    assert!(external_spec["clusterIP"].is_null());
    assert_eq!(server.reserved().await, [(address.clone(), "a".to_owned())]);
    // A type without addresses gives it back; the other way it gets one.
    let changed = server.patch_service("a", external).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    assert!(changed.body["spec"]["clusterIP"].is_null());
    assert_eq!(server.reserved().await, []);
    let back = json!({"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]});
    let changed = server.patch_service("a", back).await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    assert!(changed.body["spec"]["clusterIP"].is_string());
    assert_eq!(server.reserved().await.len(), 1);
    server.delete_service("a").await;
    assert_eq!(server.reserved().await, []);
    server.stop().await;
}

#[tokio::test]
async fn a_chosen_address_is_taken_or_refused() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let chosen = json!({"clusterIP": "10.96.0.5"});
    assert_eq!(
        server.service_spec("a", chosen.clone()).await["clusterIP"],
        "10.96.0.5"
    );
    for (spec, want) in [
        (
            chosen.clone(),
            "failed to allocate IP 10.96.0.5: provided IP is already allocated",
        ),
        (
            json!({"clusterIP": "10.97.0.5"}),
            "the provided IP (10.97.0.5) is not in the valid range. The range of valid IPs is 10.96.0.0/24",
        ),
        (
            json!({"clusterIP": "10.96.0.0"}),
            "is not in the valid range",
        ),
        (
            json!({"clusterIP": "10.96.0.255"}),
            "is not in the valid range",
        ),
        (
            json!({"clusterIP": "fd00::1"}),
            "IPv6 is not configured on this cluster",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "not configured on this cluster",
        ),
    ] {
        let refused = server.create_service("b", spec.clone()).await;
        assert_eq!(refused.code, 422, "{spec}: {}", refused.body);
        assert!(
            message(&refused).contains(want),
            "{spec}: {}",
            message(&refused)
        );
    }
    let changed = server
        .patch_service(
            "a",
            json!({"clusterIP": "10.96.0.6", "clusterIPs": ["10.96.0.6"]}),
        )
        .await;
    assert_eq!(changed.code, 422);
    assert!(
        message(&changed).contains("may not change once set"),
        "{}",
        message(&changed)
    );
    server.delete_service("a").await;
    server.service_spec("b", chosen).await;
    server.stop().await;
}

#[tokio::test]
async fn a_service_is_upgraded_and_downgraded() {
    let server = TestServer::with_range("10.96.0.0/24,fd00:96::/112").await;
    server.service_spec("a", json!({})).await;
    let two = server
        .patch_service("a", json!({"ipFamilyPolicy": "RequireDualStack"}))
        .await;
    assert_eq!(two.code, 200, "{}", two.body);
    assert_eq!(two.body["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let ips = two.body["spec"]["clusterIPs"].as_array().unwrap().clone();
    assert!(ips[1].as_str().unwrap().starts_with("fd00:96::"));
    assert_eq!(server.reserved().await.len(), 2);
    let one = server
        .patch_service("a", json!({"ipFamilyPolicy": "SingleStack"}))
        .await;
    assert_eq!(
        one.body["spec"]["clusterIPs"],
        json!([ips[0]]),
        "{}",
        one.body
    );
    assert_eq!(server.reserved().await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn node_ports_are_given_once() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let spec = server.service_spec("a", json!({"type": "NodePort"})).await;
    let port = spec["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..=32_767).contains(&port));
    let same = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let refused = server.create_service("b", same.clone()).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(message(&refused).contains("provided port is already allocated"));
    let outside = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    let refused = server.create_service("b", outside).await;
    assert!(
        message(&refused).contains("The range of valid ports is 30000-32767"),
        "{}",
        message(&refused)
    );
    // The refused ones have left no address behind.
    assert_eq!(server.reserved().await.len(), 1);
    // An update that leaves the port out keeps it; another type gives it back.
    let kept = server
        .patch_service("a", json!({"ports": [{"port": 80}]}))
        .await;
    assert_eq!(
        kept.body["spec"]["ports"][0]["nodePort"], port,
        "{}",
        kept.body
    );
    let changed = server
        .patch_service("a", json!({"type": "ClusterIP"}))
        .await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    assert!(changed.body["spec"]["ports"][0]["nodePort"].is_null());
    server.service_spec("b", same).await;
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let spec = server.service_spec("c", local).await;
    let health = spec["healthCheckNodePort"].as_u64().unwrap();
    assert_ne!(spec["ports"][0]["nodePort"], health);
    assert_ne!(health, port);
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_reserves_nothing() {
    let server = TestServer::with_range("10.96.0.0/30").await;
    for _ in 0..3 {
        let path = format!("{SERVICES}?dryRun=All");
        let dry = service("a", json!({"type": "NodePort"}));
        let answer = server.ask(Method::POST, &path, &dry).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        assert_eq!(answer.body["spec"]["clusterIP"], "10.96.0.2");
    }
    assert_eq!(server.reserved().await, []);
    server.service_spec("a", json!({})).await;
    let full = server.create_service("b", json!({})).await;
    assert_eq!(full.code, 500);
    assert!(
        message(&full).contains("failed to allocate a serviceIP"),
        "{}",
        full.body
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_creations_never_get_the_last_address() {
    const ROUNDS: usize = 1_000;
    let server = TestServer::with_range("10.96.0.0/30").await;
    for round in 0..ROUNDS {
        // Every other round both ask for it.
        let spec = match round % 2 {
            0 => json!({}),
            _ => json!({"clusterIP": "10.96.0.2"}),
        };
        let (a, b) = tokio::join!(
            server.create_service("a", spec.clone()),
            server.create_service("b", spec),
        );
        let winner = match (a.code, b.code) {
            (201, 422 | 500) => "a",
            (422 | 500, 201) => "b",
            codes => panic!("{codes:?}: {} {}", a.body, b.body),
        };
        let reserved = [("10.96.0.2".to_owned(), winner.to_owned())];
        assert_eq!(server.reserved().await, reserved);
        server.delete_service(winner).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_range_has_each_address_once() {
    let server = TestServer::with_range("10.96.0.0/25").await;
    let creating = (0..130).map(|index| {
        let name = format!("s{index}");
        let server = &server;
        async move { server.create_service(&name, json!({})).await }
    });
    let answers = futures::future::join_all(creating).await;
    let made = answers.iter().filter(|answer| answer.code == 201);
    let addresses: Vec<_> = made
        .map(|answer| answer.body["spec"]["clusterIP"].clone())
        .collect();
    // 126, without that of the API server.
    assert_eq!(addresses.len(), 125);
    let distinct: BTreeSet<String> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(distinct.len(), 125);
    assert_eq!(server.reserved().await.len(), 125);
    server.stop().await;
}

#[tokio::test]
async fn an_old_store_is_completed() {
    let store = Arc::new(MemStore::new());
    let server = TestServer::with(Arc::clone(&store)).await;
    let chosen = json!({"clusterIP": "10.96.0.7", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]});
    for (name, spec) in [
        ("first", chosen.clone()),
        ("second", chosen),
        ("none", json!({})),
        (
            "port",
            json!({"clusterIP": "10.96.0.8", "type": "NodePort"}),
        ),
    ] {
        server.service_spec(name, spec).await;
    }
    assert!(
        server.rest.get(ADDRESSES).await.unwrap().body["items"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    server.stop().await;

    let server = TestServer::with_range_on("10.96.0.0/24", Arc::clone(&store)).await;
    let reserved = server.reserved().await;
    assert!(
        reserved.contains(&("10.96.0.7".to_owned(), "first".to_owned())),
        "{reserved:?}"
    );
    assert_eq!(reserved.len(), 3, "{reserved:?}");
    let path = format!("{SERVICES}/port");
    let completed = server.rest.get(&path).await.unwrap().body;
    assert!(
        completed["spec"]["ports"][0]["nodePort"].is_u64(),
        "{completed}"
    );
    let path = format!("{SERVICES}/none");
    let completed = server.rest.get(&path).await.unwrap().body;
    assert_eq!(
        completed["spec"]["clusterIP"],
        reserved.iter().find(|(_, name)| name == "none").unwrap().0
    );
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]});
    assert_eq!(server.create_service("b", taken).await.code, 422);
    // The end of the other one takes nothing from the first.
    server.delete_service("second").await;
    assert_eq!(server.reserved().await.len(), 3);
    server.stop().await;

    // A later start changes nothing.
    let before = Store::current(&store).await.unwrap();
    let server = TestServer::with_range_on("10.96.0.0/24", Arc::clone(&store)).await;
    server.stop().await;
    assert_eq!(Store::current(&store).await.unwrap(), before);
}

#[tokio::test]
async fn a_range_is_added_and_ends_when_it_is_unused() {
    let server = TestServer::with_range("10.96.0.0/30").await;
    let of_flag = server
        .rest
        .get(&format!("{RANGES}/kubernetes"))
        .await
        .unwrap()
        .body;
    assert_eq!(of_flag["spec"]["cidrs"], json!(["10.96.0.0/30"]));
    assert_eq!(
        of_flag["status"]["conditions"][0]["status"], "True",
        "{of_flag}"
    );
    server.service_spec("a", json!({})).await;
    assert_eq!(server.create_service("b", json!({})).await.code, 500);
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    let made = server.ask(Method::POST, RANGES, &range).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let finalizer = json!(["networking.k8s.io/service-cidr-finalizer"]);
    assert_eq!(made.body["metadata"]["finalizers"], finalizer);
    let spec = server.service_spec("b", json!({})).await;
    assert!(spec["clusterIP"].as_str().unwrap().starts_with("10.97.0."));

    let path = format!("{RANGES}/more");
    let deleted = server.ask(Method::DELETE, &path, &json!({})).await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    // Nobody gets an address by it from that answer on.
    assert_eq!(server.create_service("c", json!({})).await.code, 500);
    let chosen = json!({"clusterIP": "10.97.0.200"});
    assert_eq!(server.create_service("c", chosen).await.code, 422);
    let waiting = async {
        loop {
            let found = server.rest.get(&path).await.unwrap();
            let condition = &found.body["status"]["conditions"][0];
            if condition["reason"] == "Terminating" {
                return condition["status"].clone();
            }
            assert_eq!(found.code, 200, "it is in use");
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(within(waiting).await, "False");
    server.delete_service("b").await;
    let gone = async {
        while server.rest.get(&path).await.unwrap().code != 404 {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(gone).await;
    server.stop().await;
}

#[tokio::test]
async fn ranges_and_blocks_exclude_each_other() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let node = |name: &str, block: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDR": block, "podCIDRs": [block]}});
    let made = server
        .ask(Method::POST, "/api/v1/nodes", &node("a", "10.1.2.0/24"))
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let range = |name: &str, cidr: &str| json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
    for cidr in ["10.1.0.0/16", "10.1.2.0/24", "10.1.2.128/25"] {
        let refused = server.ask(Method::POST, RANGES, &range("r", cidr)).await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        assert!(
            message(&refused).contains("overlaps 10.1.2.0/24 of node \"a\""),
            "{}",
            message(&refused)
        );
    }
    let made = server
        .ask(Method::POST, RANGES, &range("r", "10.1.3.0/24"))
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    for block in ["10.1.3.0/25", "10.1.0.0/16", "10.96.0.0/26"] {
        let refused = server
            .ask(Method::POST, "/api/v1/nodes", &node("b", block))
            .await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        assert!(
            message(&refused).contains("overlaps the service range"),
            "{}",
            message(&refused)
        );
    }
    let deleted = server
        .ask(Method::DELETE, &format!("{RANGES}/r"), &json!({}))
        .await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    let free = async {
        while server
            .ask(Method::POST, "/api/v1/nodes", &node("b", "10.1.3.0/25"))
            .await
            .code
            != 201
        {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(free).await;
    server.stop().await;
}

#[tokio::test]
async fn the_api_server_has_a_service() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let found = server
        .rest
        .get(&format!("{SERVICES}/kubernetes"))
        .await
        .unwrap()
        .body;
    let spec = &found["spec"];
    assert_eq!(spec["clusterIP"], "10.96.0.1", "{found}");
    assert_eq!(spec["ports"][0]["port"], 443);
    let port: u64 = server.address.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(spec["ports"][0]["targetPort"], port);
    // Nobody else reaches a loopback address.
    let endpoints = "/api/v1/namespaces/default/endpoints/kubernetes";
    assert_eq!(server.rest.get(endpoints).await.unwrap().code, 404);
    server.stop().await;

    let rules = ServerRules {
        blocks: BlockPolicy {
            service_ranges: "10.96.0.0/24".parse().unwrap(),
            ..BlockPolicy::default()
        },
        advertise: Some("192.0.2.1".parse().unwrap()),
        ..uncounted()
    };
    let server = TestServer::at("127.0.0.1:0", rules, MemStore::new()).await;
    let subset = &server.rest.get(endpoints).await.unwrap().body["subsets"][0];
    assert_eq!(subset["addresses"][0]["ip"], "192.0.2.1");
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = server.rest.get(slices).await.unwrap().body;
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    assert_eq!(
        slice["metadata"]["labels"]["kubernetes.io/service-name"],
        "kubernetes"
    );
    server.stop().await;
}

#[tokio::test]
async fn the_service_of_the_api_server_comes_back() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let path = format!("{SERVICES}/kubernetes");
    let first = server.rest.get(&path).await.unwrap().body["metadata"]["uid"].clone();
    server.delete_service("kubernetes").await;
    let back = async {
        loop {
            let found = server.rest.get(&path).await.unwrap();
            if found.code == 200 {
                return found.body;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    let back = within(back).await;
    assert_ne!(back["metadata"]["uid"], first);
    assert_eq!(back["spec"]["clusterIP"], "10.96.0.1");
    server.stop().await;
}

#[tokio::test]
async fn a_service_of_a_family_that_the_cluster_has_no_more_can_be_changed_and_deleted() {
    let store = Arc::new(MemStore::new());
    let server = TestServer::with_range_on("10.96.0.0/24", Arc::clone(&store)).await;
    server.service_spec("a", json!({})).await;
    server.stop().await;
    let server = TestServer::with_range_on("fd00:96::/112", Arc::clone(&store)).await;
    let path = format!("{SERVICES}/a");
    let labels = json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/wait"]}});
    let patched = server
        .rest
        .send(Method::PATCH, &path, Some((MERGE, &labels)));
    assert_eq!(within(patched).await.unwrap().code, 200);
    let deleted = server.ask(Method::DELETE, &path, &json!({})).await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    let released = json!({"metadata": {"finalizers": null}});
    let patched = server
        .rest
        .send(Method::PATCH, &path, Some((MERGE, &released)));
    assert_eq!(within(patched).await.unwrap().code, 200);
    assert_eq!(server.rest.get(&path).await.unwrap().code, 404);
    assert_eq!(server.reserved().await, []);
    server.stop().await;
}

#[tokio::test]
async fn grpc_gives_the_same() {
    let server = TestServer::with_range("10.96.0.0/24").await;
    let services = server
        .client
        .namespaced::<podplane_api::core::Service>("default");
    let mut wanted = service("a", json!({"type": "NodePort"}));
    wanted["metadata"]["namespace"] = "default".into();
    let made = services.create(&object(wanted.clone())).await.unwrap();
    let spec = made.spec.unwrap();
    let address = spec.cluster_ip.unwrap();
    let node_port = spec.ports.unwrap()[0].node_port.unwrap();
    assert_eq!(server.reserved().await, [(address.clone(), "a".to_owned())]);
    wanted["metadata"]["name"] = "b".into();
    wanted["spec"]["clusterIP"] = address.clone().into();
    let refused = services.create(&object(wanted.clone())).await.unwrap_err();
    assert_eq!(refused.reason, podplane_client::Reason::Invalid);
    let why = format!("failed to allocate IP {address}: provided IP is already allocated");
    assert!(refused.message.contains(&why), "{refused}");
    wanted["spec"]["clusterIP"] = Value::Null;
    wanted["spec"]["ports"][0]["nodePort"] = node_port.into();
    let refused = services.create(&object(wanted.clone())).await.unwrap_err();
    assert!(
        refused
            .message
            .contains("provided port is already allocated")
    );
    let addresses = server.client.all::<podplane_api::networking::IPAddress>();
    addresses.get(&address).await.unwrap();
    services.delete("a", &at_once()).await.unwrap();
    assert!(addresses.get(&address).await.unwrap_err().is_not_found());
    services.create(&object(wanted)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn without_a_range_services_keep_what_they_have() {
    let server = TestServer::start().await;
    let spec = server.service_spec("a", json!({"type": "NodePort"})).await;
    assert!(
        spec["clusterIP"].is_null() && spec["ports"][0]["nodePort"].is_null(),
        "{spec}"
    );
    assert_eq!(spec["ipFamilies"], json!(["IPv4"]));
    let chosen = json!({"clusterIP": "10.0.0.1"});
    for name in ["b", "c"] {
        assert_eq!(
            server.service_spec(name, chosen.clone()).await["clusterIP"],
            "10.0.0.1"
        );
    }
    assert_eq!(server.reserved().await, []);
    let services = server.rest.get(SERVICES).await.unwrap().body;
    assert_eq!(services["items"].as_array().unwrap().len(), 3);
    server.stop().await;
}
