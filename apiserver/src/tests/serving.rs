//! The server as other clients see it: raw calls, health, reflection, the address file.

use std::os::unix::fs::PermissionsExt as _;

use bytes::Bytes;
use podplane_api::{core::Event, pod_ips::PodIpFlags};
use podplane_client::{Channel, Reason, endpoint};
use podplane_etcd::EtcdFlags;
use podplane_proto::wire::{WriteRequest, method_path};
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::*;
use crate::{ApiserverConfig, HoldFlags, StoreKind, run};

async fn call(channel: Channel, method: &str, object: Option<Bytes>) -> ApiError {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = method_path::<Pod>(method).parse().unwrap();
    let codec = ProstCodec::<WriteRequest, WriteRequest>::default();
    let answer = grpc
        .unary(tonic::Request::new(WriteRequest { object }), path, codec)
        .await;
    ApiError::from(&answer.unwrap_err())
}

#[tokio::test]
async fn refuses_invalid_grpc_requests() {
    let listen: Listen = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&listen).await.unwrap();
    let channel = endpoint::channel(&listener.address().to_string().parse().unwrap()).unwrap();
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(server::serve(
        MemStore::new(),
        uncounted(),
        vec![listener],
        |_| Ok(()),
        stop.clone(),
    ));

    let missing = within(call(channel.clone(), "CreatePod", None)).await;
    assert_eq!(
        (missing.reason, &*missing.message),
        (Reason::BadRequest, "pod is required")
    );
    // Field 100 of a Pod, a string of one byte.
    let unknown = within(call(
        channel.clone(),
        "CreatePod",
        Some(Bytes::from_static(&[0xa2, 0x06, 1, b'x'])),
    ))
    .await;
    assert_eq!(
        (unknown.reason, &*unknown.message),
        (
            Reason::BadRequest,
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"#100\""
        )
    );
    assert_eq!(unknown.fields[0].field, "#100");
    let rubbish = within(call(
        channel.clone(),
        "CreatePod",
        Some(Bytes::from_static(&[0xff])),
    ))
    .await;
    assert_eq!(rubbish.reason, Reason::BadRequest);
    let unknown = within(call(channel, "DoPod", None)).await;
    assert_eq!(
        unknown.message,
        "podplane.core.v1.PodService has no method DoPod"
    );
    stop.cancel();
    within(running.join_next()).await;
}

#[tokio::test]
async fn a_long_error_still_arrives() {
    let server = TestServer::start().await;
    let long = pod_with(json!({"metadata": {"name": "ä".repeat(20_000)}}));
    let error = server.pods().create(&long).await.unwrap_err();
    assert_eq!(error.reason, Reason::Invalid);
    assert!(
        error.message.starts_with("Pod \"ää") && error.message.len() <= 2048,
        "{error}"
    );
    server.stop().await;
}

#[tokio::test]
async fn events_of_nodes_are_in_the_default_namespace() {
    let server = TestServer::start().await;
    let event = |namespace: &str| -> Event {
        object(
            json!({"metadata": {"name": "e", "namespace": namespace}, "involvedObject": {"kind": "Node", "name": "n"}}),
        )
    };
    server
        .client
        .namespaced("default")
        .create(&event("default"))
        .await
        .unwrap();
    let error = server
        .client
        .namespaced("kube-system")
        .create(&event("kube-system"))
        .await
        .unwrap_err();
    assert_eq!(
        error.message,
        "Event \"e\" is invalid: involvedObject.namespace: Invalid value: \"\": does not match event.namespace"
    );
    server.stop().await;
}

#[tokio::test]
async fn publishes_the_address_once_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("address");
    let config = ApiserverConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        allowed_hosts: Default::default(),
        authentication: Default::default(),
        account_tokens: Default::default(),
        tls: Default::default(),
        own_certificates: Default::default(),
        authorization: Default::default(),
        audit: Default::default(),
        limits: Default::default(),
        address_file: Some(file.clone()),
        data_dir: Some(dir.path().into()),
        store: StoreKind::Sled,
        service_cluster_ip_range: podplane_ipam::ServiceRanges::default(),
        service_node_port_range: Default::default(),
        advertise_address: None,
        cluster_cidr: Vec::new(),
        compat: podplane_ipam::Compat::None,
        pod_ips: PodIpFlags::default(),
        cluster: HoldFlags {
            release_after: Duration::ZERO,
        },
        bounds: HistoryBounds::default(),
        runtime_config: Vec::new(),
        etcd: EtcdFlags::default(),
    };
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(run(config.clone(), stop.clone()));
    let address = within(async {
        loop {
            match std::fs::read_to_string(&file) {
                Ok(address) => break address,
                Err(_) => time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    // It has made its own certificates, and its user needs none at the socket.
    assert!(address.starts_with("https://127.0.0.1:"), "{address}");
    for (name, mode) in [
        ("kubeconfig", 0o600),
        ("pki/ca.key", 0o600),
        ("pki/apiserver.pem", 0o600),
        ("pki/admin.pem", 0o600),
        ("pki/ca.crt", 0o644),
        ("apiserver.sock", 0o600),
    ] {
        let file = std::fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, mode, "{name}");
    }
    let socket = format!("unix:{}", dir.path().join("apiserver.sock").display());
    let client = Client::connect(&socket.parse().unwrap()).unwrap();
    assert!(
        client
            .all::<Node>()
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );

    let second = within(run(
        ApiserverConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..config
        },
        stop.clone(),
    ))
    .await;
    assert!(
        matches!(second, Err(server::ApiserverRunError::Serve(_))),
        "{second:?}"
    );
    stop.cancel();
    within(running.join_next()).await.unwrap().unwrap().unwrap();
}
