//! Fences: of two processes that believe they lead, only one can write.

use podplane_api::coordination::Lease;
use podplane_client::{Api, Binding, Fence, Reason};
use podplane_proto::{
    ipam::{
        AssignBlocksRequest, Assignment, BlockState, block_service_client::BlockServiceClient,
        block_update,
    },
    wire::{AssignPodCidrsRequest, method_path},
};
use podplane_store::SledStore;
use tonic::{Code, Request};
use tonic_types::StatusExt as _;

use super::{admission::with_blocks, blocks::change, *};

fn lease(holder: &str, acquired: &str) -> Lease {
    object(json!({
        "metadata": {"name": "ipam", "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, "acquireTime": acquired, "leaseDurationSeconds": 15},
    }))
}

const FIRST: &str = "2026-11-21T12:00:00.000000Z";
const LATER: &str = "2026-11-21T12:00:20.000000Z";

fn fence(lease: &Lease) -> Fence {
    Fence {
        namespace: "kube-system".into(),
        name: "ipam".into(),
        epoch: lease.resource_version().parse().unwrap(),
    }
}

fn leases(server: &TestServer) -> Api<Lease> {
    server.client.namespaced("kube-system")
}

/// Another leader takes the Lease, or the same one takes it again.
async fn take(server: &TestServer, holder: &str, acquired: &str) -> Lease {
    let leases = leases(server);
    let mut taken = leases.get("ipam").await.unwrap();
    taken.spec = lease(holder, acquired).spec;
    leases.update(&taken).await.unwrap()
}

#[tokio::test]
async fn only_the_newer_of_two_leaders_assigns() {
    let server = TestServer::start().await;
    let nodes = server.nodes();
    let a = nodes.create(&node("a")).await.unwrap();
    let b = nodes.create(&node("b")).await.unwrap();
    let taken = leases(&server).create(&lease("one", FIRST)).await.unwrap();
    let one = server.client.fenced(&fence(&taken));
    let assign = async |client: &Client, node: &Node, block: &str| {
        let nodes = client.all::<Node>();
        let blocks = [block.to_owned()];
        nodes
            .assign_pod_cidrs(node.name(), node.uid(), "", &blocks)
            .await
    };
    assign(&one, &a, "10.0.0.0/24").await.unwrap();
    // A renewal does not begin another term.
    let mut renewed = taken.clone();
    renewed.spec.as_mut().unwrap().lease_duration_seconds = Some(20);
    leases(&server).update(&renewed).await.unwrap();
    let two = server
        .client
        .fenced(&fence(&take(&server, "two", LATER).await));

    // `one` still believes that it leads.
    let error = assign(&one, &b, "10.0.1.0/24").await.unwrap_err();
    assert_eq!(error.reason, Reason::FenceLost);
    assert!(error.message.contains("\"two\" has the lease"), "{error}");
    let pods = server.client.namespaced::<Pod>("default");
    let pod = pods.create(&pod("p")).await.unwrap();
    let binding = Binding {
        name: pod.name().into(),
        uid: pod.uid().into(),
        resource_version: None,
        node_name: "a".into(),
    };
    let of_one = one.namespaced::<Pod>("default");
    let error = of_one.bind(&binding).await.unwrap_err();
    assert_eq!(error.reason, Reason::FenceLost, "{error}");
    let refused = [
        one.all::<Node>().create(&node("c")).await.unwrap_err(),
        one.all::<Node>().update_status(&b).await.unwrap_err(),
        one.all::<Node>().delete("b", &at_once()).await.unwrap_err(),
        one.blocks()
            .assign(vec![Assignment::default()])
            .await
            .unwrap_err(),
        one.blocks().update(Vec::new()).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.reason, Reason::FenceLost, "{error}");
    }
    // Reading needs no fence.
    one.all::<Node>().get("b").await.unwrap();
    one.blocks().list().await.unwrap();

    assign(&two, &b, "10.0.1.0/24").await.unwrap();
    let of_two = two.namespaced::<Pod>("default");
    of_two.bind(&binding).await.unwrap();
    let records = server.client.blocks().list().await.unwrap().blocks;
    let fences: Vec<_> = records.iter().map(|block| block.fence.as_str()).collect();
    assert_eq!(
        fences,
        [fence(&taken).to_string(), two_fence(&server).await]
    );
    server.stop().await;
}

/// The fence of the present leader.
async fn two_fence(server: &TestServer) -> String {
    let lease = leases(server).get("ipam").await.unwrap();
    fence(&lease).to_string()
}

#[tokio::test]
async fn reacquiring_the_lease_fences_the_previous_term() {
    let server = TestServer::start().await;
    let a = server.nodes().create(&node("a")).await.unwrap();
    let taken = leases(&server).create(&lease("one", FIRST)).await.unwrap();
    let old = server.client.fenced(&fence(&taken));
    let new = server
        .client
        .fenced(&fence(&take(&server, "one", LATER).await));
    let assign = |client: &Client| {
        let (nodes, uid) = (client.all::<Node>(), a.uid().to_owned());
        async move {
            nodes
                .assign_pod_cidrs("a", &uid, "", &["10.0.0.0/24".into()])
                .await
        }
    };
    assert_eq!(assign(&old).await.unwrap_err().reason, Reason::FenceLost);
    assign(&new).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_released_or_deleted_lease_invalidates_its_fence() {
    let server = TestServer::start().await;
    let update = |client: &Client| {
        let blocks = client.blocks();
        async move { blocks.update(Vec::new()).await }
    };
    let taken = leases(&server).create(&lease("one", FIRST)).await.unwrap();
    let client = server.client.fenced(&fence(&taken));
    update(&client).await.unwrap();
    let released = take(&server, "", LATER).await;
    let error = update(&client).await.unwrap_err();
    assert!(error.message.ends_with("the lease was released"), "{error}");
    leases(&server).delete("ipam", &at_once()).await.unwrap();
    let client = server.client.fenced(&fence(&released));
    let error = update(&client).await.unwrap_err();
    assert_eq!(error.reason, Reason::FenceLost);
    assert!(error.message.ends_with("the lease is gone"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn a_fence_holds_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let a = server
        .nodes()
        .create(&with_blocks("a", &["10.0.0.0/24"]))
        .await
        .unwrap();
    let old = leases(&server).create(&lease("one", FIRST)).await.unwrap();
    let new = take(&server, "two", LATER).await;
    server.stop().await;
    let server = TestServer::with(SledStore::open(dir.path()).unwrap()).await;
    let foreign = block_update::Change::State(BlockState::Foreign.into());
    let update = change("10.0.0.0/24", "a", a.uid(), foreign);
    let blocks = server.client.fenced(&fence(&old)).blocks();
    let error = blocks.update(vec![update.clone()]).await.unwrap_err();
    assert_eq!(error.reason, Reason::FenceLost);
    let blocks = server.client.fenced(&fence(&new)).blocks();
    blocks
        .update(vec![update])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    server.stop().await;
}

/// The form in which clients in other languages see it.
#[tokio::test]
async fn validates_fences_and_explains_lost_ones() {
    let server = TestServer::start().await;
    let endpoint: Endpoint = server.address.parse().unwrap();
    let channel = podplane_client::endpoint::channel(&endpoint).unwrap();
    let mut blocks = BlockServiceClient::new(channel.clone());
    let mut ask = async |fence: &'static str| {
        let mut request = Request::new(AssignBlocksRequest::default());
        request
            .metadata_mut()
            .insert("podplane-fence", fence.parse().unwrap());
        blocks.assign_blocks(request).await.unwrap_err()
    };
    let status = ask("kube-system/ipam").await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("NAMESPACE/LEASE/EPOCH"),
        "{status}"
    );
    let status = ask("kube-system/ipam/7").await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    let info = status.get_details_error_info().unwrap();
    assert_eq!(
        (info.reason.as_str(), info.domain.as_str()),
        ("FenceLost", "podplane.dev")
    );

    // The same for the services of objects.
    let mut grpc = tonic::client::Grpc::new(channel);
    let mut ask = async |fence: &'static str| {
        grpc.ready().await.unwrap();
        let mut request = Request::new(AssignPodCidrsRequest {
            pod_cidrs: vec!["10.0.0.0/24".into()],
            ..AssignPodCidrsRequest::default()
        });
        request
            .metadata_mut()
            .insert("podplane-fence", fence.parse().unwrap());
        let path = method_path::<Node>("AssignPodCIDRs").parse().unwrap();
        let codec = podplane_proto::transport::WireCodec::<
            AssignPodCidrsRequest,
            podplane_proto::transport::Encoded,
        >::default();
        grpc.unary(request, path, codec)
            .await
            .map(drop)
            .unwrap_err()
    };
    assert_eq!(ask("a/b/c").await.code(), Code::InvalidArgument);
    server.stop().await;
}
