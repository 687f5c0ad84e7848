//! kubectl with Services and their addresses.

use super::{custom_kinds_kubectl::Kubectl, *};

/// The words of the row that begins with `name`.
#[track_caller]
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = table.lines().map(|line| line.split_whitespace().collect());
    let found = rows.find(|row: &Vec<&str>| row.first() == Some(&name));
    found.unwrap_or_else(|| panic!("no {name} in\n{table}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_makes_services_with_addresses() {
    let policy = BlockPolicy {
        service_ranges: "10.96.0.0/24".parse().unwrap(),
        ..BlockPolicy::default()
    };
    let server = TestServer::under(policy, MemStore::new()).await;
    let kubectl = Kubectl::of(&server);
    for command in [
        "create deployment web --image=nginx",
        "expose deployment web --port=80",
        "create service clusterip chosen --tcp=80 --clusterip=10.96.0.9",
        "create service nodeport api --tcp=80:8080 --node-port=30080",
        "create service nodeport any --tcp=80",
        "create service loadbalancer outside --tcp=80",
        "create service clusterip none --tcp=80 --clusterip=None",
        "create service externalname away --external-name=a.example.com",
    ] {
        kubectl.run(command, "").await;
    }
    let table = kubectl.run("get svc", "").await;
    let kubernetes = row(&table, "kubernetes");
    assert_eq!(
        kubernetes[1..5],
        ["ClusterIP", "10.96.0.1", "<none>", "443/TCP"]
    );
    assert_eq!(row(&table, "chosen")[2], "10.96.0.9");
    assert_eq!(row(&table, "api")[4], "80:30080/TCP");
    assert_eq!(row(&table, "none")[2], "None");
    assert_eq!(row(&table, "away")[2..4], ["<none>", "a.example.com"]);
    assert_eq!(row(&table, "outside")[3], "<pending>");
    for name in ["web", "api", "any", "outside"] {
        let address = row(&table, name)[2];
        assert!(address.starts_with("10.96.0."), "{table}");
        let addresses = kubectl.run("get ipaddress", "").await;
        let of = format!("services/default/{name}");
        assert_eq!(row(&addresses, address), [address, &*of]);
    }
    let described = kubectl.run("describe svc web", "").await;
    assert!(described.contains("IP Family Policy:") && described.contains("SingleStack"));
    let ranges = kubectl.run("get servicecidr", "").await;
    assert_eq!(row(&ranges, "kubernetes")[1], "10.96.0.0/24");

    for (command, why) in [
        (
            "create service nodeport more --tcp=80 --node-port=30080",
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated",
        ),
        (
            "create service nodeport more --tcp=80 --node-port=80",
            "provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
        (
            "create service clusterip more --tcp=80 --clusterip=10.96.0.9",
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: failed to allocate IP 10.96.0.9: provided IP is already allocated",
        ),
        (
            "create service clusterip more --tcp=80 --clusterip=10.97.0.9",
            "The range of valid IPs is 10.96.0.0/24",
        ),
    ] {
        let refused = kubectl.fail(command, "").await;
        assert!(refused.contains(why), "{refused}");
    }
    // What kubectl applies again keeps what the server has given.
    let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: applied}\nspec: {type: NodePort, ports: [{port: 80}]}\n";
    kubectl.run("apply -f -", manifest).await;
    let of = "get svc applied -o jsonpath={.spec.clusterIP}/{.spec.ports[0].nodePort}";
    let given = kubectl.run(of, "").await;
    let again = kubectl.run("apply -f -", manifest).await;
    assert_eq!(again, "service/applied unchanged\n");
    let other = manifest.replace("port: 80", "port: 81");
    kubectl.run("apply -f -", &other).await;
    kubectl
        .run("apply --server-side --force-conflicts -f -", &other)
        .await;
    let replaced = kubectl.run("get svc applied -o yaml", "").await;
    kubectl.run("replace -f -", &replaced).await;
    let kept = kubectl.run(of, "").await;
    assert_eq!(kept.split('/').next(), given.split('/').next());
    kubectl.run("delete svc --all", "").await;
    let left = kubectl.run("get ipaddress --no-headers", "").await;
    assert!(
        left.lines()
            .all(|line| line.ends_with("services/default/kubernetes")),
        "{left}"
    );
    server.stop().await;
}
