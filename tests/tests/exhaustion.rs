//! Story A: more pods than addresses, with each policy, mask and network mode.

use anyhow::Result;
use podplane_api::{Object as _, core::Pod};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    pods::{in_phase, running, unscheduled},
    programs::{finish, podplane},
};

fn demo(network: Network, mask: u8, policy: &str) {
    if network == Network::Kernel && !peers::root() {
        return;
    }
    let (mask, network) = (mask.to_string(), network.as_str());
    let args = [
        "demo",
        "exhaustion",
        "--node-cidr-mask-size",
        &mask,
        "--ip-policy",
        policy,
        "--network",
        network,
    ];
    finish(&mut podplane(args)).ok();
}

macro_rules! demos {
    ($($name:ident: $network:ident, $mask:literal, $policy:literal;)*) => {
        $(#[test] fn $name() { demo(Network::$network, $mask, $policy); })*
    };
}

demos! {
    off_30_kernel: Kernel, 30, "off";
    off_29_kernel: Kernel, 29, "off";
    pod_cidr_30_kernel: Kernel, 30, "pod-cidr";
    pod_cidr_29_kernel: Kernel, 29, "pod-cidr";
    resource_30_kernel: Kernel, 30, "resource";
    resource_29_kernel: Kernel, 29, "resource";
    off_30_ledger: Ledger, 30, "off";
    off_29_ledger: Ledger, 29, "off";
    pod_cidr_30_ledger: Ledger, 30, "pod-cidr";
    pod_cidr_29_ledger: Ledger, 29, "pod-cidr";
    resource_30_ledger: Ledger, 30, "resource";
    resource_29_ledger: Ledger, 29, "resource";
}

/// One node under `pod-cidr`, then ten pods; returns how many run when all others have been refused with `reason`.
async fn under_pod_cidr(network: Network, flags: &str, reason: &str) -> Result<Option<usize>> {
    let up = builder(network)
        .flags("--nodes 1 --ip-policy pod-cidr")
        .flags(flags);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(None);
    };
    cluster.podplane("run web --replicas 9").ok();
    cluster.podplane("run system -n kube-system").ok();
    let settled = |pods: &[Pod]| {
        let refused = in_phase(pods, "Pending")
            .filter(|pod| unscheduled(pod) == reason)
            .count();
        pods.len() == 10 && running(pods) + refused == 10
    };
    let count = running(
        &cluster
            .pods_until("every pod runs or was refused", settled)
            .await,
    );
    cluster.finish().await?;
    Ok(Some(count))
}

const TOO_MANY: &str = "0/1 nodes are available: 1 Too many pods.";

#[tokio::test(flavor = "multi_thread")]
async fn pod_cidr_counts_a_pod_in_kube_system() -> Result<()> {
    for network in [Network::Kernel, Network::Ledger] {
        let flags = "--cluster-cidr 10.255.0.0/19 --service-cluster-ip-range 10.255.31.0/24 --node-cidr-mask-size 29";
        let five = under_pod_cidr(network, flags, TOO_MANY).await?;
        assert!(five.is_none_or(|five| five == 5), "{network:?}: {five:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_cidr_leaves_nothing_at_31_and_32() -> Result<()> {
    for network in [Network::Kernel, Network::Ledger] {
        for mask in [31, 32] {
            let flags = format!("--cluster-cidr 10.255.0.0/19 --node-cidr-mask-size {mask}");
            let none = under_pod_cidr(network, &flags, TOO_MANY).await?;
            assert!(
                none.is_none_or(|none| none == 0),
                "{network:?} /{mask}: {none:?}"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_cidr_does_not_change_ipv6() -> Result<()> {
    for network in [Network::Kernel, Network::Ledger] {
        let flags = "--cluster-cidr fd00:10:244::/56 --service-cluster-ip-range fd00:10:96::/112 --node-cidr-mask-size 64";
        let all = under_pod_cidr(network, flags, TOO_MANY).await?;
        assert!(all.is_none_or(|all| all == 10), "{network:?}: {all:?}");
    }
    Ok(())
}

/// Two nodes want a block of a cluster that has one. The one without is not Ready, so a pod that tolerates that is bound to it:
/// `pod-cidr` leaves a node without a podCIDR as it is. With `resource` it has no addresses to give.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_block_is_unchanged_by_pod_cidr_and_empty_by_resource() -> Result<()> {
    for (policy, bound) in [("pod-cidr", true), ("resource", false)] {
        let up = builder(Network::Ledger).flags("--nodes 1 --cluster-cidr 10.255.0.0/24 --node-cidr-mask-size 24 --service-cluster-ip-range 10.96.0.0/16 --ip-policy").flags(policy);
        let Some(cluster) = Cluster::up(up).await? else {
            return Ok(());
        };
        cluster.podplane("node add blockless").ok();
        let events = || async { cluster.podplane("get events -A").stdout };
        eventually("the range is used up", events, |shown| {
            shown.contains("CIDRNotAvailable")
        })
        .await;
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"nodeSelector":{"kubernetes.io/hostname":"blockless"},
            "tolerations":[{"operator":"Exists"}],"containers":[{"name":"c","image":"pause"}]}}"#;
        let file = cluster.data_dir().join("pod.json");
        std::fs::write(&file, pod)?;
        cluster
            .run(["create", "-f", &file.display().to_string()])
            .ok();
        let decided = |pods: &[Pod]| {
            let pod = &pods[0];
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if bound {
                node == Some("blockless")
            } else {
                unscheduled(pod).contains("Insufficient pod IPs")
            }
        };
        let pods = cluster
            .pods_until("the scheduler has decided", |pods| {
                pods.len() == 1 && decided(pods)
            })
            .await;
        assert_eq!(pods[0].name(), "p");
        cluster.finish().await?;
    }
    Ok(())
}
