//! The CRI server over a unix socket, with real plugins, in ledger mode and in kernel mode.

mod containers;
mod fixture;
mod kernel;
mod processes;
mod streaming;

use std::{fs, path::Path};

use podplane_client::Channel;
use podplane_netlink::{Netlink, netns};
use podplane_proto::{
    cri as wire,
    cri::{NamespaceMode, RunPodSandboxRequest},
};
use podplane_test_requirements::{require, root};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use self::fixture::{
    CriClient, CriFixture, Kernel, configure, list, network_ready, own_plugins, peer_plugins,
    remove, request, run_pod, status, stop,
};
use super::{record::SandboxId, *};

#[tokio::test]
async fn the_network_is_ready_once_the_pod_cidr_is_known() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    let condition = network_ready(&mut client).await;
    assert!(!condition.status);
    assert_eq!(condition.reason, "NetworkPluginNotReady");
    let refused = run_pod(&mut client, "a").await.unwrap_err();
    assert!(
        refused.message().contains("cni plugin not initialized"),
        "{refused}"
    );
    let host = request("h", 0, NamespaceMode::Node);
    let host = client.run_pod_sandbox(host).await.unwrap().into_inner();
    let host = status(&mut client, &host.pod_sandbox_id).await.unwrap();
    assert_eq!(host.network.unwrap().ip, "", "its node knows its address");

    configure(&mut client, "").await.unwrap();
    assert!(!network_ready(&mut client).await.status, "no podCIDR yet");
    let bad = configure(&mut client, "10.0.0.1/24").await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    configure(&mut client, "10.1.0.0/24,fd00:1::/64")
        .await
        .unwrap();
    assert!(network_ready(&mut client).await.status);
    let id = run_pod(&mut client, "a").await.unwrap();
    let network = status(&mut client, &id).await.unwrap().network.unwrap();
    assert_eq!(network.ip, "10.1.0.2");
    assert_eq!(network.additional_ips[0].ip, "fd00:1::2");
    server.end().await;
}

async fn life_of_a_sandbox(bin_dir: &Path) {
    let (mut server, mut client) = CriFixture::start(bin_dir).await;
    configure(&mut client, "10.1.0.0/30").await.unwrap();
    let id = run_pod(&mut client, "a").await.unwrap();
    assert_eq!(run_pod(&mut client, "a").await.unwrap(), id, "the same one");
    assert_eq!(server.leased(), ["10.1.0.2"]);

    let full = run_pod(&mut client, "b").await.unwrap_err();
    assert_eq!(full.code(), Code::Unknown);
    let (before, after) = full.message().split_once(" for sandbox \"").unwrap();
    assert_eq!(before, "failed to setup network");
    assert_eq!(
        &after[SandboxId::LEN..],
        "\": plugin type=\"host-local\" failed (add): failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2"
    );
    let all = wire::PodSandboxFilter::default();
    assert_eq!(
        list(&mut client, all.clone()).await,
        ["a"],
        "nothing left of b"
    );

    stop(&mut client, &id).await;
    stop(&mut client, &id).await;
    assert!(server.leased().is_empty());
    let stopped = status(&mut client, &id[..12]).await.unwrap();
    assert_eq!(stopped.state(), wire::PodSandboxState::SandboxNotready);
    let again = run_pod(&mut client, "a").await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    let next = request("a", 1, NamespaceMode::Pod);
    client.run_pod_sandbox(next).await.unwrap();
    let ready = wire::PodSandboxFilter {
        state: Some(wire::PodSandboxStateValue::default()),
        label_selector: [("uid".to_owned(), "a".to_owned())].into(),
        ..all.clone()
    };
    assert_eq!(list(&mut client, ready).await, ["a"]);
    assert_eq!(list(&mut client, all).await, ["a", "a"]);

    remove(&mut client, &id).await;
    remove(&mut client, &id).await;
    stop(&mut client, &id).await;
    let gone = status(&mut client, &id).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    server.end().await;
}

#[tokio::test]
async fn each_step_of_a_sandbox_lifecycle_can_be_repeated() {
    life_of_a_sandbox(&own_plugins()).await;
}

#[tokio::test]
async fn runs_the_sandbox_lifecycle_with_foreign_plugins() {
    if let Some(dir) = peer_plugins() {
        life_of_a_sandbox(&dir).await;
    }
}

#[tokio::test]
async fn concurrent_requests_for_one_sandbox_create_it_once() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    configure(&mut client, "10.1.0.0/24").await.unwrap();
    let mut other = client.clone();
    let (a, b) = tokio::join!(run_pod(&mut client, "a"), run_pod(&mut other, "a"));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(server.leased().len(), 1);
    server.end().await;
}

#[tokio::test]
async fn a_restart_keeps_live_sandboxes_and_reclaims_orphans() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    configure(&mut client, "10.1.0.0/24").await.unwrap();
    let kept = run_pod(&mut client, "kept").await.unwrap();
    let half = run_pod(&mut client, "half").await.unwrap();
    let lost = run_pod(&mut client, "lost").await.unwrap();
    server.end().await;

    // As if the server had been killed while it made `half`, and after a record was lost.
    let sandboxes = server.node().sandboxes();
    let record = sandboxes.join(format!("{half}.json"));
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"Ready\"", "\"Creating\"")).unwrap();
    fs::remove_file(sandboxes.join(format!("{lost}.json"))).unwrap();
    let leases = server.node().networks().join("containerd-net");
    fs::write(leases.join("10.1.0.77"), "stranger\r\neth0").unwrap();
    assert_eq!(server.leased().len(), 4);

    let mut client = server.launch().await;
    assert_eq!(server.leased(), ["10.1.0.2"]);
    let all = wire::PodSandboxFilter::default();
    assert_eq!(list(&mut client, all).await, ["kept"]);
    let kept = status(&mut client, &kept).await.unwrap();
    assert_eq!(kept.state(), wire::PodSandboxState::SandboxReady);
    assert!(network_ready(&mut client).await.status, "net.d is durable");
    server.end().await;
    drop(server.dir);
}

/// Damages the allocation files of the first five addresses of 10.1.0.0/28, each in another way.
fn damage(networks: &Path) {
    let file = |last: u8| {
        networks
            .join("containerd-net")
            .join(format!("10.1.0.{last}"))
    };
    fs::write(file(2), "").unwrap();
    fs::write(file(3), [0; 70]).unwrap();
    fs::remove_file(file(4)).unwrap();
    fs::write(file(5), "stranger\r\neth0").unwrap();
    fs::write(file(6), "10.1").unwrap();
}

/// Runs a pod for every address of 10.1.0.0/28, and damages files of host-local in between.
async fn gives_no_address_of_a_live_sandbox(server: &CriFixture, client: &mut CriClient) {
    configure(client, "10.1.0.0/28").await.unwrap();
    let networks = server.node().networks();
    let mut ids = Vec::new();
    for n in 0..13 {
        ids.push(run_pod(client, &format!("p{n}")).await.unwrap());
        if n >= 4 {
            damage(&networks);
        }
    }
    let full = run_pod(client, "more").await.unwrap_err();
    assert!(
        full.message().contains("no IP addresses available"),
        "{full}"
    );
    for (n, id) in ids.iter().enumerate() {
        let network = status(client, id).await.unwrap().network.unwrap();
        assert_eq!(network.ip, format!("10.1.0.{}", n + 2));
        let file = networks.join("containerd-net").join(&network.ip);
        let content = fs::read_to_string(file).unwrap();
        assert_eq!(content, format!("{id}\r\neth0"), "{}", network.ip);
    }
    // A sandbox whose file is damaged still gives its address back, and no damaged file stays.
    damage(&networks);
    for id in &ids {
        remove(client, id).await;
    }
    assert!(server.leased().is_empty());
    run_pod(client, "next").await.unwrap();
}

#[tokio::test]
async fn restores_damaged_leases_of_live_sandboxes() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    gives_no_address_of_a_live_sandbox(&server, &mut client).await;
    server.end().await;
}

#[tokio::test]
async fn restores_damaged_leases_of_live_sandboxes_of_foreign_plugins() {
    let Some(dir) = peer_plugins() else { return };
    let (mut server, mut client) = CriFixture::start(&dir).await;
    gives_no_address_of_a_live_sandbox(&server, &mut client).await;
    server.end().await;
}

#[tokio::test]
async fn restores_leases_damaged_while_no_server_ran() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    configure(&mut client, "10.1.0.0/28").await.unwrap();
    for n in 0..5 {
        run_pod(&mut client, &format!("p{n}")).await.unwrap();
    }
    let read = |server: &CriFixture, ip: &str| {
        fs::read_to_string(server.node().networks().join("containerd-net").join(ip)).unwrap()
    };
    let before: Vec<_> = server.leased().iter().map(|ip| read(&server, ip)).collect();
    server.end().await;
    damage(&server.node().networks());
    server.launch().await;
    let after: Vec<_> = server.leased().iter().map(|ip| read(&server, ip)).collect();
    assert_eq!(after, before);
    server.end().await;
}

/// A directory with one IPAM plugin, a script; each call is noted in the file `calls` there.
fn scripted_plugin(script: &str) -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("scripted");
    let head = "#!/bin/sh\ncd \"${0%/*}\"\necho \"$CNI_COMMAND $CNI_CONTAINERID\" >>calls\n";
    fs::write(&path, format!("{head}{script}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn configure_scripted(server: &CriFixture) {
    let text = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "scripted"}}]}"#;
    fs::create_dir_all(server.node().net_d()).unwrap();
    fs::write(server.node().net_d().join("10-net.conflist"), text).unwrap();
}

#[tokio::test]
async fn rejects_an_address_that_another_sandbox_has() {
    let plugin = scripted_plugin(
        r#"[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}]}'; exit 0"#,
    );
    let (mut server, mut client) = CriFixture::start(plugin.path()).await;
    configure_scripted(&server);
    let first = run_pod(&mut client, "first").await.unwrap();
    let refused = run_pod(&mut client, "second").await.unwrap_err();
    let want = format!("gave address 10.9.0.2, which sandbox \"{first}\" has, 4 times");
    assert!(refused.message().contains(&want), "{refused}");
    let calls = fs::read_to_string(plugin.path().join("calls")).unwrap();
    let mut calls: Vec<_> = calls.lines().collect();
    assert_eq!(calls.remove(0), format!("ADD {first}"));
    let commands: Vec<_> = calls.iter().map(|call| &call[..3]).collect();
    assert_eq!(commands[..8], ["ADD", "DEL"].repeat(4));
    assert!(calls.iter().all(|call| !call.ends_with(&first)));
    let kept = status(&mut client, &first).await.unwrap();
    assert_eq!(kept.network.unwrap().ip, "10.9.0.2");
    remove(&mut client, &first).await;
    run_pod(&mut client, "third").await.unwrap();
    server.end().await;
}

#[tokio::test]
async fn retries_until_the_plugin_gives_a_free_address() {
    let plugin = scripted_plugin(
        r#"[ "$CNI_COMMAND" = ADD ] || exit 0
n=$(grep -c ADD calls); [ "$n" -gt 2 ] || n=2
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.'"$n"'/24"}]}'"#,
    );
    let (mut server, mut client) = CriFixture::start(plugin.path()).await;
    configure_scripted(&server);
    run_pod(&mut client, "first").await.unwrap();
    let second = run_pod(&mut client, "second").await.unwrap();
    let network = status(&mut client, &second).await.unwrap().network.unwrap();
    assert_eq!(network.ip, "10.9.0.3");
    server.end().await;
}

#[tokio::test]
async fn refuses_container_calls_and_invalid_requests() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    let listed = client.list_containers(wire::ListContainersRequest::default());
    assert!(listed.await.unwrap().into_inner().containers.is_empty());
    let of = |id: &str| wire::ContainerStatusRequest {
        container_id: id.into(),
        verbose: false,
    };
    let missing = client.container_status(of("x")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let exec = client.exec(wire::ExecRequest::default()).await.unwrap_err();
    assert_eq!(exec.code(), Code::Unimplemented);
    let unnamed = client.run_pod_sandbox(RunPodSandboxRequest::default());
    assert_eq!(unnamed.await.unwrap_err().code(), Code::InvalidArgument);
    let mut odd = request("a;b=c", 0, NamespaceMode::Pod);
    assert_eq!(
        client
            .run_pod_sandbox(odd.clone())
            .await
            .unwrap_err()
            .code(),
        Code::InvalidArgument,
        "CNI_ARGS cannot carry it"
    );
    odd.config = None;
    assert!(client.run_pod_sandbox(odd).await.is_err());
    server.end().await;
}

/// A plugin that answers as an IPAM plugin, and notes its input.
fn recorder(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let program = dir.join("recorder");
    let script = format!(
        r#"#!/bin/sh
{{ cat; echo; }} > {}/$CNI_COMMAND
[ $CNI_COMMAND = DEL ] || echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.7.0.9/24"}}]}}'
"#,
        dir.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn add_and_del_pass_the_declared_capabilities() {
    let plugins = tempfile::tempdir().unwrap();
    recorder(plugins.path());
    let (mut server, mut client) = CriFixture::start(plugins.path()).await;
    configure(&mut client, "10.7.0.0/24,fd07::/64")
        .await
        .unwrap();
    let list = serde_json::json!({"cniVersion": "1.0.0", "name": "own", "plugins": [{
        "type": "recorder", "ipam": {"type": "recorder"},
        "capabilities": {"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true,
            "io.kubernetes.cri.pod-annotations": true, "cgroupPath": false},
    }]});
    let first = server.node().net_d().join("00-own.conflist");
    fs::write(first, list.to_string()).unwrap();

    let mut wanted = request("a", 0, NamespaceMode::Pod);
    let config = wanted.config.as_mut().unwrap();
    config.port_mappings.push(wire::PortMapping {
        container_port: 80,
        host_port: 8080,
        ..wire::PortMapping::default()
    });
    let annotation = ("kubernetes.io/ingress-bandwidth", "1M");
    config.annotations = [annotation].map(|(k, v)| (k.into(), v.into())).into();
    config.dns_config = Some(wire::DnsConfig {
        servers: vec!["10.96.0.10".into()],
        searches: vec!["svc".into()],
        options: vec![],
    });
    config.linux.as_mut().unwrap().cgroup_parent = "/kubepods".into();
    let id = client.run_pod_sandbox(wanted).await.unwrap();
    let id = id.into_inner().pod_sandbox_id;
    let given = |command: &str| -> serde_json::Value {
        let text = fs::read(plugins.path().join(command)).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()["runtimeConfig"].clone()
    };
    let want = serde_json::json!({
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": u32::MAX},
        "dns": {"servers": ["10.96.0.10"], "searches": ["svc"], "options": []},
        "ipRanges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]],
        "io.kubernetes.cri.pod-annotations": {"kubernetes.io/ingress-bandwidth": "1M"},
    });
    assert_eq!(given("ADD"), want, "cgroupPath is not declared");
    server.end().await;

    // The record counts, not the node's configuration by now.
    let mut client = server.launch().await;
    configure(&mut client, "10.8.0.0/24").await.unwrap();
    remove(&mut client, &id).await;
    assert_eq!(given("DEL"), want);
    server.end().await;
}

#[tokio::test]
async fn refuses_unsupported_sandbox_settings() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    configure(&mut client, "10.1.0.0/24").await.unwrap();
    let mut refused = async |change: &dyn Fn(&mut RunPodSandboxRequest)| {
        let mut wanted = request("a", 0, NamespaceMode::Pod);
        change(&mut wanted);
        let error = client.run_pod_sandbox(wanted).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        error.message().to_owned()
    };
    let handler = refused(&|wanted| wanted.runtime_handler = "gvisor".into()).await;
    assert!(handler.contains("no runtime for \"gvisor\" is configured"));
    let kernel = refused(&|wanted| *wanted = with_sysctl(NamespaceMode::Pod, "kernel.msgmax"));
    assert!(kernel.await.contains("kernel.msgmax"));
    let hosts = refused(&|wanted| *wanted = with_sysctl(NamespaceMode::Node, SOMAXCONN));
    assert!(hosts.await.contains("for the whole node"));
    let ledger = refused(&|wanted| *wanted = with_sysctl(NamespaceMode::Pod, SOMAXCONN));
    assert!(ledger.await.contains("--network ledger"));
    let dns = refused(&|wanted| {
        let dns_config = wire::DnsConfig {
            servers: vec!["1.1.1.1\noptions x".into()],
            ..wire::DnsConfig::default()
        };
        wanted.config.as_mut().unwrap().dns_config = Some(dns_config);
    });
    assert!(dns.await.contains("config.dns_config.servers"));
    let hostname = refused(&|wanted| wanted.config.as_mut().unwrap().hostname = "a b".into());
    assert!(hostname.await.contains("config.hostname"));
    assert!(server.leased().is_empty());
    server.end().await;
}

const SOMAXCONN: &str = "net.core.somaxconn";

fn with_sysctl(mode: NamespaceMode, name: &str) -> RunPodSandboxRequest {
    let mut wanted = request("a", 0, mode);
    let linux = wanted.config.as_mut().unwrap().linux.as_mut().unwrap();
    linux.sysctls = [(name.to_owned(), "1234".to_owned())].into();
    wanted
}

#[tokio::test]
async fn metrics_are_unimplemented_and_verbose_status_has_the_cni_result() {
    let (mut server, mut client) = CriFixture::start(&own_plugins()).await;
    configure(&mut client, "10.1.0.0/24").await.unwrap();
    let descriptors = client.list_metric_descriptors(wire::ListMetricDescriptorsRequest {});
    assert_eq!(descriptors.await.unwrap_err().code(), Code::Unimplemented);
    let metrics = client.list_pod_sandbox_metrics(wire::ListPodSandboxMetricsRequest {});
    assert_eq!(metrics.await.unwrap_err().code(), Code::Unimplemented);

    let id = run_pod(&mut client, "a").await.unwrap();
    let inspect = wire::PodSandboxStatusRequest {
        pod_sandbox_id: id,
        verbose: true,
    };
    let answer = client.pod_sandbox_status(inspect).await.unwrap();
    let info: serde_json::Value = serde_json::from_str(&answer.into_inner().info["info"]).unwrap();
    let eth0 = &info["cniResult"]["Interfaces"]["eth0"]["IPConfigs"];
    assert_eq!(
        *eth0,
        serde_json::json!([{"IP": "10.1.0.2", "Gateway": "10.1.0.1"}])
    );
    server.end().await;
}

#[tokio::test]
async fn kernel_mode_serves_one_node() {
    let (mut server, _) = CriFixture::start(&own_plugins()).await;
    let mut config = server.config.clone();
    config.network = PodNetworkMode::Kernel;
    let refused = run(config, CancellationToken::new()).await.unwrap_err();
    assert!(matches!(refused, CriRunError::OneNode(2)), "{refused}");
    server.end().await;
}
