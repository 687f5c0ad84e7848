use super::*;

const PATIENCE: Patience = Patience {
    record: Duration::from_secs(3),
    lease: Duration::from_secs(20),
};

fn sandbox(node: &str, id: &str) -> Sandbox {
    Sandbox {
        node: node.into(),
        id: id.into(),
    }
}

fn ips(ips: &[&str]) -> BTreeSet<IpAddr> {
    ips.iter().map(|ip| ip.parse().unwrap()).collect()
}

/// Adds a ready sandbox with its lease.
fn runs(snapshot: &mut NodesSnapshot, node: &str, id: &str, ip: &str) {
    snapshot.sandboxes.push(ObservedSandbox {
        sandbox: sandbox(node, id),
        pod: format!("default/{id}"),
        is_ready: true,
        ips: ips(&[ip]),
    });
    snapshot.leases.push(Allocation {
        node: node.into(),
        ip: ip.parse().unwrap(),
        owner: id.into(),
    });
}

fn namespace(snapshot: &mut NodesSnapshot, node: &str, id: &str, ip: &str) {
    snapshot.namespaces.push(ObservedNamespace {
        sandbox: sandbox(node, id),
        ips: ips(&[ip]),
    });
}

fn two() -> NodesSnapshot {
    let mut snapshot = NodesSnapshot {
        blocks: vec![
            ("n".into(), "10.0.0.0/29".parse().unwrap()),
            ("m".into(), "10.0.0.8/29".parse().unwrap()),
        ],
        ..NodesSnapshot::default()
    };
    runs(&mut snapshot, "n", "a", "10.0.0.2");
    runs(&mut snapshot, "m", "b", "10.0.0.10");
    snapshot
}

/// Returns the reports, with the second of each, of snapshots that are taken a second apart.
fn said(snapshots: impl IntoIterator<Item = NodesSnapshot>) -> Vec<(usize, String)> {
    let mut checker = SnapshotChecker::new(PATIENCE);
    let mut said = Vec::new();
    for (second, snapshot) in snapshots.into_iter().enumerate() {
        let now = Duration::from_secs(u64::try_from(second).unwrap());
        let violations = checker.check(now, &snapshot);
        said.extend(
            violations
                .into_iter()
                .map(|violation| (second, violation.to_string())),
        );
    }
    said
}

#[test]
fn reports_nothing_for_healthy_nodes() {
    assert_eq!(said(vec![two(); 30]), []);
    assert_eq!(said([NodesSnapshot::default()]), []);
}

#[test]
fn reports_an_address_in_two_namespaces_at_once() {
    let mut snapshot = two();
    namespace(&mut snapshot, "n", "a", "10.0.0.2");
    assert_eq!(said([snapshot.clone()]), []);
    namespace(&mut snapshot, "n", "c", "10.0.0.2");
    assert_eq!(
        said([snapshot.clone()]),
        [],
        "what is being made may be undone"
    );
    runs(&mut snapshot, "n", "c", "10.0.0.2");
    let text = "10.0.0.2 is in the network namespaces of sandboxes a of n, c of n";
    let twice = vec![snapshot; 3];
    assert_eq!(said(twice), [(0, text.into())], "and is said once");
}

#[test]
fn a_late_record_is_not_reported_as_a_duplicate() {
    let mut late = two();
    runs(&mut late, "n", "c", "10.0.0.2");
    let mut snapshots = vec![late; 3];
    snapshots.push(two());
    assert_eq!(said(snapshots.clone()), []);
    snapshots.pop();
    snapshots.push(snapshots[0].clone());
    let text = "10.0.0.2 is the address of ready sandboxes a of n, c of n";
    assert_eq!(said(snapshots), [(3, text.into())]);
}

#[test]
fn a_sandbox_in_removal_is_not_reported_as_a_duplicate() {
    let mut snapshot = two();
    runs(&mut snapshot, "n", "c", "10.0.0.2");
    snapshot.sandboxes[0].is_ready = false;
    assert_eq!(said(vec![snapshot; 30]), []);
}

#[test]
fn a_damaged_lease_is_restored_before_another_address_is_given() {
    let mut damaged = two();
    damaged.leases[0].owner = "\0\0".into();
    assert_eq!(
        said(vec![damaged.clone(); 40]),
        [],
        "nobody can be given it"
    );
    let mut given = damaged.clone();
    runs(&mut given, "n", "c", "10.0.0.3");
    let mut snapshots = vec![damaged; 25];
    snapshots.push(given);
    let text = "sandbox a of n has 10.0.0.2 without a lease";
    assert_eq!(said(snapshots.clone()), [(25, text.into())]);
    snapshots[24] = two();
    assert_eq!(said(snapshots), [], "it was restored");
}

#[test]
fn reports_a_live_sandbox_in_a_block_of_another_node() {
    let mut snapshot = two();
    snapshot.blocks[0].0 = "taker".into();
    let text = "sandbox a of n has 10.0.0.2, which is in block 10.0.0.0/29 of node taker";
    assert_eq!(said(vec![snapshot.clone(); 5]), [(3, text.into())]);
    namespace(&mut snapshot, "n", "a", "10.0.0.2");
    assert_eq!(
        said(vec![snapshot; 5]),
        [(0, text.into())],
        "a namespace is certain"
    );
}
