//! Sandboxes in network namespaces, and the bridge of their node.

use podplane_netlink::sysctl;

use super::*;

#[tokio::test]
async fn a_pod_has_a_namespace_behind_its_nodes_bridge() {
    if !root() {
        return;
    }
    let mut kernel = Kernel::prepare();
    let mut client = kernel.0.launch().await;
    configure(&mut client, "10.9.0.0/24").await.unwrap();
    let id = run_pod(&mut client, "a").await.unwrap();
    let pod = kernel.pod_netns(&id);
    assert_eq!(kernel.addresses(&pod, "eth0").unwrap(), ["10.9.0.2/24"]);
    assert_eq!(kernel.addresses(&pod, "lo").unwrap(), ["127.0.0.1/8"]);
    assert_eq!(
        kernel.addresses(kernel.node_netns(), "cni0").unwrap(),
        ["10.9.0.1/24"]
    );
    let network = status(&mut client, &id).await.unwrap().network.unwrap();
    assert_eq!(network.ip, "10.9.0.2");

    // Another block while the pod lives: the pod goes on, and others wait until it is off the
    // bridge.
    configure(&mut client, "10.9.1.0/24").await.unwrap();
    let refused = run_pod(&mut client, "b").await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("already has an IP address different from"),
        "{refused}"
    );
    assert_eq!(kernel.addresses(&pod, "eth0").unwrap(), ["10.9.0.2/24"]);
    remove(&mut client, &id).await;
    assert!(!pod.exists());
    assert!(kernel.0.leased().is_empty());
    let id = run_pod(&mut client, "b").await.unwrap();
    let pod = kernel.pod_netns(&id);
    let addresses = kernel.addresses(&pod, "eth0").unwrap();
    assert!(addresses[0].starts_with("10.9.1."), "{addresses:?}");
    remove(&mut client, &id).await;

    // An idle bridge with the right address stays; one with the address of an earlier block goes
    // with that block.
    let bridge = |kernel: &Kernel| kernel.addresses(kernel.node_netns(), "cni0");
    assert_eq!(bridge(&kernel).unwrap(), ["10.9.1.1/24"]);
    configure(&mut client, "10.9.2.0/24").await.unwrap();
    assert!(bridge(&kernel).is_none());
    run_pod(&mut client, "c").await.unwrap();
    assert_eq!(bridge(&kernel).unwrap(), ["10.9.2.1/24"]);
    kernel.0.end().await;
}

#[tokio::test]
async fn sets_sysctls_only_in_the_namespace_of_the_sandbox() {
    if !root() {
        return;
    }
    let mut kernel = Kernel::prepare();
    let mut client = kernel.0.launch().await;
    configure(&mut client, "10.9.0.0/24").await.unwrap();
    let before = sysctl::read_in(kernel.node_netns(), "net/core/somaxconn").unwrap();
    let wanted = with_sysctl(NamespaceMode::Pod, SOMAXCONN);
    let id = client.run_pod_sandbox(wanted).await.unwrap().into_inner();
    let pod = kernel.pod_netns(&id.pod_sandbox_id);
    assert_eq!(sysctl::read_in(&pod, "net/core/somaxconn").unwrap(), "1234");
    let after = sysctl::read_in(kernel.node_netns(), "net/core/somaxconn");
    assert_eq!(after.unwrap(), before);

    // A setting that the kernel does not have: the pod gets no sandbox then, and no address.
    let mut missing = with_sysctl(NamespaceMode::Pod, "net.core.no_such_key");
    let config = missing.config.as_mut().unwrap();
    config.metadata.as_mut().unwrap().uid = "b".into();
    let refused = client.run_pod_sandbox(missing).await.unwrap_err();
    assert!(
        refused.message().contains("net/core/no_such_key"),
        "{refused}"
    );
    assert_eq!(kernel.0.leased(), ["10.9.0.2"]);
    kernel.0.end().await;
}

/// Runs a server whose plugins work in the namespace of the server itself, which is one of its own.
fn in_own_namespace(work: impl AsyncFn(&mut CriFixture) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let netns = dir.path().join("machine");
    netns::create(&netns).unwrap();
    netns::in_netns(&netns, move || {
        // One thread, by which plugins are started.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut server = CriFixture::prepare(&own_plugins());
            server.config.nodes.truncate(1);
            server.config.network = PodNetworkMode::Kernel;
            work(&mut server).await;
            for path in netns::list(&server.config.netns_dir).unwrap() {
                netns::remove(&path).unwrap();
            }
        });
    })
    .unwrap();
    netns::remove(&netns).unwrap();
}

#[test]
fn removes_an_idle_bridge_of_an_old_block_without_a_node_namespace() {
    if !root() {
        return;
    }
    in_own_namespace(async |server| {
        let bridge = || {
            let mut netlink = Netlink::open().unwrap();
            let link = netlink.link("cni0").unwrap()?;
            let addresses = netlink.addresses(link.index).unwrap();
            let mut v4 = addresses.iter().filter(|a| a.net.addr().is_ipv4());
            v4.next().map(|address| address.net.to_string())
        };
        let mut client = server.launch().await;
        configure(&mut client, "10.9.0.0/24").await.unwrap();
        let id = run_pod(&mut client, "a").await.unwrap();
        assert_eq!(bridge().as_deref(), Some("10.9.0.1/24"));
        configure(&mut client, "10.9.1.0/24").await.unwrap();
        assert_eq!(bridge().as_deref(), Some("10.9.0.1/24"), "it has a pod");
        remove(&mut client, &id).await;
        assert_eq!(bridge(), None, "the last pod took it along");
        let id = run_pod(&mut client, "b").await.unwrap();
        remove(&mut client, &id).await;
        assert_eq!(bridge().as_deref(), Some("10.9.1.1/24"));
        configure(&mut client, "10.9.2.0/24").await.unwrap();
        assert_eq!(bridge(), None);

        // A bridge of that name that others made stays, whatever its address.
        let mut netlink = Netlink::open().unwrap();
        let foreign = podplane_netlink::Bridge {
            name: "cni0",
            ..Default::default()
        };
        let create = podplane_netlink::Request::create_bridge(&foreign);
        netlink.execute([create]).unwrap();
        let index = netlink.link("cni0").unwrap().unwrap().index;
        let address = "10.88.0.1/16".parse().unwrap();
        let address = podplane_netlink::Request::add_address(index, address);
        netlink.execute([address]).unwrap();
        configure(&mut client, "10.9.3.0/24").await.unwrap();
        assert_eq!(bridge().as_deref(), Some("10.88.0.1/16"));
        server.end().await;
    });
}

#[tokio::test]
async fn a_sandbox_whose_namespace_is_gone_is_not_ready_and_holds_no_address() {
    if !root() {
        return;
    }
    let mut kernel = Kernel::prepare();
    let mut client = kernel.0.launch().await;
    configure(&mut client, "10.9.0.0/24").await.unwrap();
    let id = run_pod(&mut client, "a").await.unwrap();
    let orphan = kernel.pod_netns(&"0".repeat(SandboxId::LEN));
    let foreign = kernel.0.config.netns_dir.join("somebody");
    netns::create(&orphan).unwrap();
    netns::create(&foreign).unwrap();
    kernel.0.end().await;
    netns::remove(&kernel.pod_netns(&id)).unwrap();

    let mut client = kernel.0.launch().await;
    let stopped = status(&mut client, &id).await.unwrap();
    assert_eq!(stopped.state(), wire::PodSandboxState::SandboxNotready);
    assert!(kernel.0.leased().is_empty());
    assert!(!orphan.exists());
    assert!(foreign.exists(), "what is not ours stays");
    kernel.0.end().await;
}

#[tokio::test]
async fn restores_damaged_leases_of_sandboxes_with_namespaces() {
    if !root() {
        return;
    }
    for bin_dir in [Some(own_plugins()), peer_plugins()].into_iter().flatten() {
        let mut kernel = Kernel::prepare_with(&bin_dir);
        let mut client = kernel.0.launch().await;
        gives_no_address_of_a_live_sandbox(&kernel.0, &mut client).await;
        kernel.0.end().await;
    }
}
