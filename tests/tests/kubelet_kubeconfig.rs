//! The kubelet alone, which joins a cluster of others by a kubeconfig, as `system:node:NAME` with
//! the rights that Kubernetes' Node authorizer gives it. Another podplane plays the other cluster.

use std::{fs, process::Stdio};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use podplane_tests::{
    cri::Cri,
    eventually, peers,
    programs::{finish, podplane},
    secure::SecureApiserver,
    service::Service,
};
use serde_json::Value;

const ALLOCATE: [&str; 2] = ["--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"];
const LISTEN: &str = "127.0.0.1:0";

/// Starts the kubelet of a node with its kubeconfig, which is written here.
async fn kubelet(secure: &SecureApiserver, node: &str) -> Result<Service> {
    secure.issue(&format!("node/{node}"));
    let _ = secure.kubectl(&format!("node-{node}"))?;
    let kubeconfig = secure.text(&format!("kubeconfig-node-{node}"));
    let nodes_dir = secure.text("nodes");
    let flags = ["--kubeconfig", &kubeconfig, "--node", node];
    let flags = [
        &flags[..],
        &["--nodes-dir", &nodes_dir, "--authentication=none"],
    ]
    .concat();
    Service::start("kubelet", LISTEN, &secure.path(""), &flags).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_joins_another_cluster_by_kubeconfig() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let secure = SecureApiserver::start(&["--authorization-mode=Node,RBAC"]).await?;
    let dir = secure.path("");
    let (ca, key) = (secure.text("pki/ca.crt"), secure.text("pki/ca.key"));
    let signing = [
        "--cluster-signing-cert-file",
        &ca,
        "--cluster-signing-key-file",
        &key,
    ];
    let signing = [&signing[..], &["--root-ca-file", &ca]].concat();
    let mut services = Vec::new();
    for (name, flags) in [
        ("ipam-controller", &ALLOCATE[..]),
        ("controller-manager", &signing),
        ("scheduler", &[]),
    ] {
        services.push(secure.service(name, name, flags).await?);
    }
    let admin = secure.kubectl("admin")?;
    let authority = || async { admin("get configmap kube-root-ca.crt -o name").stdout };
    eventually("pods can have tokens", authority, |found| !found.is_empty()).await;

    let _cri = Cri::start("n1", &dir, &["--containers=pretend"])?;
    names_the_missing_rules(&secure)?;
    let _kubelet = kubelet(&secure, "n1").await?;

    admin("create deployment web --image=registry.k8s.io/pause:3.10 --replicas=3").ok();
    let ready = "get deployment web -o jsonpath={.status.readyReplicas}";
    let ready = || async { admin(ready).stdout };
    eventually("three pods are ready", ready, |ready| ready == "3").await;
    let block: IpNet = admin("get node n1 -o jsonpath={.spec.podCIDR}")
        .ok()
        .parse()?;
    let pods: Value = serde_json::from_str(&admin("get pods -o json").ok())?;
    for pod in pods["items"].as_array().context("a list")? {
        let address = pod["status"]["podIP"].as_str().context("an address")?;
        assert!(
            block.contains(&address.parse::<std::net::IpAddr>()?),
            "{pod}"
        );
        let container = &pod["status"]["containerStatuses"][0];
        let id = container["containerID"].as_str().unwrap_or_default();
        assert!(id.starts_with("podplane://"), "{pod}");
    }
    let holder = "get lease n1 -n kube-node-lease -o jsonpath={.spec.holderIdentity}";
    assert_eq!(admin(holder).ok(), "n1");
    let events = admin("get events -o jsonpath={.items[*].reason}").ok();
    for reason in ["AddedInterface", "Pulled", "Created", "Started"] {
        assert!(events.contains(reason), "{reason}: {events}");
    }

    admin("delete deployment web --timeout=60s").ok();
    let left = || async { admin("get pods -o name").stdout };
    eventually("no pod is left", left, String::is_empty).await;
    let leases = || async {
        let networks = fs::read_dir(dir.join("nodes/n1/networks"))
            .into_iter()
            .flatten();
        let files = networks
            .flatten()
            .flat_map(|network| fs::read_dir(network.path()));
        let names = files.flatten().flatten().map(|file| file.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            .count()
    };
    eventually("all addresses are free", leases, |leases| *leases == 0).await;

    let log = fs::read_to_string(dir.join("kubelet.log"))?;
    assert!(log.contains("found the API server"), "{log}");
    let refused = log.lines().find(|line| line.contains("is forbidden"));
    assert_eq!(refused, None);
    Ok(())
}

/// A user without the rights of a node: the kubelet ends, and names what it may not do.
fn names_the_missing_rules(secure: &SecureApiserver) -> Result<()> {
    let _ = secure.kubectl("scheduler")?;
    let kubeconfig = secure.text("kubeconfig-scheduler");
    let mut kubelet = podplane(["kubelet", "--node", "n1", "--authentication=none"]);
    kubelet.args(["--kubeconfig", &kubeconfig, "--listen", LISTEN]);
    kubelet.args(["--nodes-dir", &secure.text("nodes")]);
    let output = finish(kubelet.stdin(Stdio::null()));
    assert!(output.code != Some(0), "{output:?}");
    let missing = "the API server does not permit: ";
    let said = format!("{}{}", output.stdout, output.stderr);
    assert!(said.contains(missing), "{said}");
    assert!(said.contains("update nodes/status"), "{said}");
    Ok(())
}
