//! A process that lacks rights ends, and names them.

use anyhow::Result;
use podplane_tests::{
    peers,
    programs::{finish, podplane},
};

use super::other::{OtherCluster, SYSTEM};

/// The process, the flags that it needs, and rules that it must name.
const CASES: [(&str, &[&str], &[&str]); 4] = [
    (
        "scheduler",
        &["--leader-elect-resource-namespace=podplane-system"],
        &[
            "get, list, watch pods",
            "create pods/binding",
            "list, watch poddisruptionbudgets of policy",
            "get, update leases of coordination.k8s.io \"podplane-scheduler\" in podplane-system",
            "create leases of coordination.k8s.io in podplane-system",
        ],
    ),
    (
        "ipam-controller",
        &[
            "--allocate-node-cidrs",
            "--cidr-allocator-type=MultiCIDRRangeAllocator",
        ],
        &[
            "get, list, watch, patch nodes",
            "get, list, create, patch, delete nodeblocks of podplane.io",
            "get, list, watch, create, update clustercidrs of networking.x-k8s.io",
            "get, update leases of coordination.k8s.io \"podplane-ipam-controller\" in kube-system",
        ],
    ),
    (
        "controller-manager",
        &["--leader-elect=false"],
        &[
            "get, list, watch, update, delete deployments of apps",
            "create replicasets of apps",
            "update replicasets/status of apps",
            "create, update events",
        ],
    ),
    (
        "webhook",
        &[
            "--leader-elect-resource-name=mine",
            "--policy-params=shop/params",
        ],
        &[
            "get, list, watch pods",
            "get, update configmaps \"params\" in shop",
            "get, update leases of coordination.k8s.io \"mine\" in kube-system",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_process_names_the_rules_that_it_lacks() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let Some(other) = OtherCluster::start(0).await? else {
        return Ok(());
    };
    other
        .kubectl(&format!("create serviceaccount nobody -n {SYSTEM}"))
        .ok();
    let nobody = other.kubeconfig(SYSTEM, "nobody");
    for (name, flags, rules) in CASES {
        let mut process = podplane([name, "--kubeconfig", &nobody]);
        let process = process.args(["--listen=127.0.0.1:0", "--authentication=none"]);
        let ended = finish(process.args(flags));
        assert!(ended.code != Some(0), "{name}: {ended:?}");
        for rule in rules {
            assert!(
                ended.stderr.contains(rule),
                "{name}: {rule}: {}",
                ended.stderr
            );
        }
    }
    other.cluster.finish().await
}
