use serde_json::json;

use super::*;

/// A block of 4 addresses. An entry of `owners` is a pod's name, a tunnel (""), or nobody.
fn block(cidr: &str, affinity: &str, node: &str, owners: [Option<&str>; 4]) -> CalicoBlock {
    let attribute = |owner: &Option<&str>| match owner {
        Some("") => Some(json!({"handle_id": "vxlan-tunnel-addr-a", "primary": null,
            "secondary": {"node": node, "type": "vxlanTunnelAddress"}})),
        Some(pod) => Some(json!({"handle_id": format!("k8s-pod-network.{pod}"),
            "secondary": {"namespace": "ns", "node": node, "pod": pod, "timestamp": "2026"}})),
        None => None,
    };
    let attributes: Vec<_> = owners.iter().filter_map(attribute).collect();
    let mut next = 0;
    let allocations: Vec<_> = owners
        .iter()
        .map(|owner| {
            next += usize::from(owner.is_some());
            owner.map(|_| next - 1)
        })
        .collect();
    let object = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
        "spec": {"cidr": cidr, "affinity": format!("host:{affinity}"), "allocations": allocations,
            "attributes": attributes, "deleted": false, "strictAffinity": false}});
    CalicoBlock::parse("b", &object, "a").unwrap().unwrap()
}

fn pool(spec: Value) -> Result<Option<CalicoPool>, SourceError> {
    CalicoPool::parse("p", &json!({"spec": spec}))
}

fn config(spec: Value) -> CalicoConfig {
    CalicoConfig::parse("default", &json!({"spec": spec})).unwrap()
}

const IPV4: CalicoFamilies = CalicoFamilies {
    ipv4: true,
    ipv6: false,
};

/// A pool of four blocks of four, of which node a has one and node b another one.
fn state() -> CalicoState {
    CalicoState {
        blocks: vec![
            block("10.0.0.0/30", "a", "a", [Some("p1"), Some(""), None, None]),
            block("10.0.0.4/30", "b", "b", [Some("q1"), None, None, None]),
        ],
        pools: vec![
            pool(json!({"cidr": "10.0.0.0/28", "blockSize": 30, "nodeSelector": "all()"}))
                .unwrap()
                .unwrap(),
        ],
        config: CalicoConfig::default(),
    }
}

fn pods(state: &CalicoState) -> u64 {
    state.addresses(IPV4).unwrap().capacity.pods()
}

#[test]
fn a_node_has_what_its_pods_use_and_what_it_can_still_get() {
    let mut state = state();
    // 1 used, 2 free in its block, 8 in unclaimed blocks, 3 to borrow.
    assert_eq!(pods(&state), 14);
    state.config = config(json!({"strictAffinity": true, "autoAllocateBlocks": true}));
    assert_eq!(pods(&state), 11);
    // A node at the limit of its blocks neither claims nor borrows.
    state.config = config(json!({"strictAffinity": false, "maxBlocksPerHost": 1}));
    assert_eq!(pods(&state), 3);
    state.config = config(json!({"maxBlocksPerHost": 2}));
    assert_eq!(pods(&state), 7);
    state.config = config(json!({"autoAllocateBlocks": false, "strictAffinity": true}));
    assert_eq!(pods(&state), 3);
    assert_eq!(
        config(json!({"maxBlocksPerHost": 0})),
        CalicoConfig::default()
    );
}

#[test]
fn borrowed_addresses_are_the_borrowers() {
    let mut state = state();
    let borrowed = block("10.0.0.8/30", "b", "a", [Some("p2"), None, None, None]);
    state.blocks.push(borrowed);
    let ipam = state.addresses(IPV4).unwrap();
    // 2 used, 2 free, 4 unclaimed, 3 + 3 to borrow.
    assert_eq!(ipam.capacity.pods(), 14);
    let allocated = ipam.allocated.unwrap();
    let addresses: Vec<_> = allocated.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.0", "10.0.0.8"]);
    let pod = allocated[1].pod.as_ref().unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("ns", "p2"));
    assert_eq!(allocated[1].allocation, "k8s-pod-network.p2");
}

#[test]
fn pools_that_pods_cannot_use_do_not_count() {
    for spec in [
        json!({"cidr": "10.0.0.0/16", "disabled": true}),
        json!({"cidr": "10.0.0.0/16", "allowedUses": ["Tunnel"]}),
        json!({"cidr": "10.0.0.0/16", "nodeSelector": " !all()"}),
    ] {
        assert_eq!(pool(spec.clone()), Ok(None), "{spec}");
    }
    let selected = pool(json!({"cidr": "10.0.0.0/16", "nodeSelector": "rack == '1'"}));
    assert!(selected.unwrap().unwrap().is_selector_ignored);
    let whole = pool(json!({"cidr": "10.0.0.0/16", "allowedUses": ["Workload", "Tunnel"]}));
    let whole = whole.unwrap().unwrap();
    assert_eq!((whole.blocks(), whole.block_size()), (1024, 64));
    let invalid = pool(json!({"cidr": "10.0.0.0/26", "blockSize": 24})).unwrap_err();
    assert_eq!(
        invalid.to_string(),
        "invalid IPPool \"p\": spec.blockSize: 24 is not a prefix length within 10.0.0.0/26"
    );
    let none = CalicoState::default().addresses(IPV4).unwrap_err();
    assert_eq!(none.to_string(), "no IPPool gives pods IPv4 addresses");
}

#[test]
fn the_plugin_assigns_the_families() {
    let of = |ipam: Value| {
        let plugin = json!({"type": "calico", "ipam": ipam});
        let CalicoFamilies { ipv4, ipv6 } = CalicoFamilies::of(plugin.as_object());
        (ipv4, ipv6)
    };
    assert_eq!(of(json!({"type": "calico-ipam"})), (true, false));
    let both = json!({"assign_ipv4": "true", "assign_ipv6": "true"});
    assert_eq!(of(both), (true, true));
    assert_eq!(
        of(json!({"assign_ipv4": "false", "assign_ipv6": true})),
        (false, true)
    );
    let mut dual = state();
    let v6 = json!({"cidr": "fd00::/48", "blockSize": 122});
    dual.pools.push(pool(v6).unwrap().unwrap());
    let both = CalicoFamilies {
        ipv4: true,
        ipv6: true,
    };
    let capacity = dual.addresses(both).unwrap().capacity;
    assert_eq!((capacity.ipv4, capacity.ipv6), (Some(14), Some(20 * 64)));
}
