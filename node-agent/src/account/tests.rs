use std::net::Ipv4Addr;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sources::FamilyCounts;

const GRACE: Duration = Duration::from_secs(10);

fn allocated(address: &str, allocation: &str) -> AllocatedAddress {
    AllocatedAddress {
        address: address.parse().unwrap(),
        pod: None,
        allocation: allocation.into(),
    }
}

fn ipam(ipv4: u64, allocated: Vec<AllocatedAddress>) -> NodeIpam {
    NodeIpam {
        capacity: FamilyCounts {
            ipv4: Some(ipv4),
            ipv6: None,
        },
        ranges: vec!["10.0.0.0/24".parse().unwrap()],
        allocated: Some(allocated),
    }
}

/// A pod with its phase, its address and its request.
fn pod(name: &str, phase: &str, ip: Option<&str>, request: Option<&str>) -> PodUse {
    let requests = request.map(|amount| json!({"requests": {"podplane.io/pod-ips": amount}}));
    let object = json!({
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": requests}]},
        "status": {"phase": phase, "podIP": ip, "podIPs": ip.map(|ip| [json!({"ip": ip})])}});
    of(object).unwrap()
}

fn of(object: Value) -> Option<PodUse> {
    let pod: Pod = serde_json::from_value(object).unwrap();
    PodUse::of(&pod, &PodIpResource::default())
}

fn account(ipam: &NodeIpam, pods: &[PodUse]) -> NodeAccount {
    let mut unowned = UnownedAddresses::new(GRACE);
    NodeAccount::of(ipam, pods, &mut unowned, Instant::now())
}

#[test]
fn pods_without_a_request_are_subtracted() {
    let five = ipam(5, Vec::new());
    for (pods, published) in [
        (vec![], 5),
        (vec![pod("a", "Running", None, Some("1"))], 5),
        (vec![pod("mirror", "Running", None, None)], 4),
        (vec![pod("zero", "Running", None, Some("0"))], 4),
        (vec![pod("two", "Running", None, Some("2"))], 5),
        // It has ended, and nothing is allocated to it.
        (
            vec![pod("job", "Succeeded", Some("10.0.0.2"), Some("1"))],
            5,
        ),
    ] {
        assert_eq!(account(&five, &pods).published(), published, "{pods:?}");
    }
    let on_host = json!({"spec": {"nodeName": "n", "hostNetwork": true, "containers": []}});
    assert_eq!(of(on_host), None);
}

#[test]
fn an_ended_pod_holds_its_address_while_it_is_allocated() {
    let ended = [pod("job", "Succeeded", Some("10.0.0.2"), Some("1"))];
    let left = ipam(5, vec![allocated("10.0.0.2", "job")]);
    let account_of = account(&left, &ended);
    // The scheduler does not count the pod any more.
    assert_eq!((account_of.held, account_of.published()), (1, 4));
    // Its address is another pod's by now.
    let again = [
        ended[0].clone(),
        pod("b", "Running", Some("10.0.0.2"), Some("1")),
    ];
    let account_of = account(&left, &again);
    assert_eq!((account_of.held, account_of.published()), (1, 5));
    // Without knowledge of addresses it holds it until its kubelet reports that the sandbox is gone.
    let unknown = NodeIpam {
        allocated: None,
        ..left
    };
    assert_eq!(account(&unknown, &ended).published(), 4);
}

#[test]
fn an_address_is_orphaned_after_the_grace_time() {
    let mut unowned = UnownedAddresses::new(GRACE);
    let start = Instant::now();
    let mut look = |addresses: Vec<AllocatedAddress>, pods: &[PodUse], after: u64| {
        let now = start + Duration::from_secs(after);
        let account = NodeAccount::of(&ipam(5, addresses), pods, &mut unowned, now);
        let next = unowned.next(now).map(|next| next.as_secs());
        (
            account.orphaned,
            account.published(),
            account.published_total(),
            next,
        )
    };
    let leaked = || vec![allocated("10.0.0.2", "x")];
    assert_eq!(look(leaked(), &[], 0), (0, 4, 4, Some(10)));
    assert_eq!(look(leaked(), &[], 9), (0, 4, 4, Some(1)));
    assert_eq!(look(leaked(), &[], 10), (1, 4, 5, None));
    // A pod that is being created explains one address, but not one that is orphaned.
    let waiting = [pod("a", "Pending", None, Some("1"))];
    let both = || vec![allocated("10.0.0.2", "x"), allocated("10.0.0.3", "a")];
    assert_eq!(look(both(), &waiting, 11), (1, 4, 5, Some(10)));
    let running = [pod("a", "Running", Some("10.0.0.3"), Some("1"))];
    assert_eq!(look(both(), &running, 12), (1, 4, 5, None));
    // Another sandbox has the address now: its time begins.
    let other = vec![allocated("10.0.0.2", "y"), allocated("10.0.0.3", "a")];
    assert_eq!(look(other, &running, 13), (0, 4, 4, Some(10)));
    // One of an earlier block takes none of this block.
    assert_eq!(
        look(vec![allocated("10.9.0.2", "z")], &[], 14),
        (0, 5, 5, None)
    );
}

#[test]
fn the_fuller_family_counts() {
    let dual = NodeIpam {
        capacity: FamilyCounts {
            ipv4: Some(5),
            ipv6: Some(9),
        },
        ranges: Vec::new(),
        allocated: Some(vec![
            allocated("10.0.0.2", "a"),
            allocated("fd00::2", "a"),
            allocated("fd00::3", "x"),
        ]),
    };
    let account = account(&dual, &[pod("a", "Running", Some("10.0.0.2"), Some("1"))]);
    assert_eq!(
        (account.total, account.ending, account.published()),
        (5, 2, 3)
    );
}

#[test]
fn a_named_owner_owns_its_address_before_its_status_has_it() {
    let mut address = allocated("10.0.0.2", "handle");
    address.pod = Some(ObjectKey {
        namespace: "ns".into(),
        name: "a".into(),
    });
    let known = ipam(5, vec![address]);
    let pods = [pod("a", "Pending", None, Some("1"))];
    assert_eq!(account(&known, &pods).published(), 5);
    assert_eq!(account(&known, &[]).published(), 4);
}

#[test]
fn running_pods_are_never_over_the_published_amount() {
    let pods = ["a", "b", "c"].map(|name| pod(name, "Running", None, Some("1")));
    assert_eq!(account(&ipam(2, Vec::new()), &pods).published(), 3);
}

/// A step of the life of a node.
#[derive(Clone, Copy, Debug)]
enum NodeStep {
    /// The scheduler binds a pod by the amount that is published, if it may.
    Schedule,
    /// A pod without a request arrives: a static pod, or one of before the webhook.
    Impose,
    /// The kubelet makes a pod's sandbox, if an address is free.
    CreateSandbox(usize),
    /// The kubelet writes the address to the pod's status.
    Report(usize),
    /// A pod ends, and keeps its sandbox.
    End(usize),
    /// The kubelet removes a sandbox of a pod that has ended.
    RemoveSandbox(usize),
    /// A pod is deleted with its sandbox left.
    ForceDelete(usize),
    /// A sandbox without a pod is removed.
    CleanUp(usize),
    /// Time passes.
    Wait(u64),
}

fn step() -> impl Strategy<Value = NodeStep> {
    let index = 0..8_usize;
    prop_oneof![
        3 => Just(NodeStep::Schedule),
        1 => Just(NodeStep::Impose),
        4 => index.clone().prop_map(NodeStep::CreateSandbox),
        3 => index.clone().prop_map(NodeStep::Report),
        1 => index.clone().prop_map(NodeStep::End),
        2 => index.clone().prop_map(NodeStep::RemoveSandbox),
        1 => index.clone().prop_map(NodeStep::ForceDelete),
        1 => index.prop_map(NodeStep::CleanUp),
        1 => (1..6_u64).prop_map(NodeStep::Wait),
    ]
}

/// A pod of the model.
#[derive(Clone, Debug)]
struct ModelPod {
    requested: u64,
    has_ended: bool,
    sandbox: Option<Ipv4Addr>,
    is_reported: bool,
}

/// The truth about a node, of which the agent sees only files and objects.
#[derive(Clone, Debug, Default)]
struct ModelNode {
    pods: BTreeMap<usize, ModelPod>,
    /// The sandboxes without a pod, with the time at which the pod went.
    orphans: BTreeMap<Ipv4Addr, (usize, u64)>,
    next: usize,
    now: u64,
}

const ADDRESSES: u8 = 4;

impl ModelNode {
    fn add(&mut self, requested: u64) {
        let pod = ModelPod {
            requested,
            has_ended: false,
            sandbox: None,
            is_reported: false,
        };
        self.pods.insert(self.next, pod);
        self.next += 1;
    }

    fn requested(&self) -> u64 {
        let live = self.pods.values().filter(|pod| !pod.has_ended);
        live.map(|pod| pod.requested).sum()
    }

    fn free_address(&self) -> Option<Ipv4Addr> {
        let used = |ip: &Ipv4Addr| {
            self.orphans.contains_key(ip) || self.pods.values().any(|pod| pod.sandbox == Some(*ip))
        };
        let all = (0..ADDRESSES).map(|n| Ipv4Addr::new(10, 0, 0, 2 + n));
        all.into_iter().find(|ip| !used(ip))
    }

    /// The addresses that are free once every pod has one; negative if some find none.
    fn free(&self) -> i64 {
        let sandboxes = self.pods.values().filter(|pod| pod.sandbox.is_some());
        let used = sandboxes.count() + self.orphans.len() + self.pending();
        i64::from(ADDRESSES) - i64::try_from(used).unwrap()
    }

    fn pending(&self) -> usize {
        let live = self.pods.values().filter(|pod| !pod.has_ended);
        live.filter(|pod| pod.sandbox.is_none()).count()
    }

    fn nth(&mut self, index: usize, accepts: fn(&ModelPod) -> bool) -> Option<usize> {
        let accepted = self.pods.iter().filter(|(_, pod)| accepts(pod));
        let ids: Vec<_> = accepted.map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[index % ids.len()])
    }

    fn apply(&mut self, step: NodeStep, published: u64) {
        let has_no_sandbox = |pod: &ModelPod| !pod.has_ended && pod.sandbox.is_none();
        match step {
            NodeStep::Schedule if self.requested() < published => self.add(1),
            NodeStep::Schedule => {}
            NodeStep::Impose => self.add(0),
            NodeStep::CreateSandbox(index) => {
                if let Some(id) = self.nth(index, has_no_sandbox) {
                    let address = self.free_address();
                    self.pods.entry(id).and_modify(|pod| pod.sandbox = address);
                }
            }
            NodeStep::Report(index) => {
                if let Some(id) = self.nth(index, |pod| pod.sandbox.is_some()) {
                    self.pods.entry(id).and_modify(|pod| pod.is_reported = true);
                }
            }
            NodeStep::End(index) => {
                if let Some(id) = self.nth(index, |pod| pod.is_reported && !pod.has_ended) {
                    self.pods.entry(id).and_modify(|pod| pod.has_ended = true);
                }
            }
            NodeStep::RemoveSandbox(index) => {
                if let Some(id) = self.nth(index, |pod| pod.has_ended && pod.sandbox.is_some()) {
                    self.pods.entry(id).and_modify(|pod| pod.sandbox = None);
                }
            }
            NodeStep::ForceDelete(index) => {
                let id = self.nth(index, |_| true);
                if let Some((id, pod)) = id.and_then(|id| self.pods.remove_entry(&id)) {
                    let left = pod.sandbox.map(|ip| (ip, (id, self.now)));
                    self.orphans.extend(left);
                }
            }
            NodeStep::CleanUp(index) => {
                let ips: Vec<_> = self.orphans.keys().copied().collect();
                if let Some(ip) = ips.get(index % ips.len().max(1)) {
                    self.orphans.remove(ip);
                }
            }
            NodeStep::Wait(seconds) => {
                // A kubelet writes an address to the status sooner than the grace time ends.
                for pod in self.pods.values_mut() {
                    pod.is_reported |= pod.sandbox.is_some();
                }
                self.now += seconds;
            }
        }
    }

    /// What the agent sees.
    fn seen(&self) -> (NodeIpam, Vec<PodUse>) {
        let of_pods = self.pods.iter();
        let of_pods = of_pods.filter_map(|(id, pod)| Some((pod.sandbox?, *id)));
        let of_orphans = self.orphans.iter().map(|(ip, (id, _))| (*ip, *id));
        let files = of_pods.chain(of_orphans);
        let files = files.map(|(ip, id)| allocated(&ip.to_string(), &format!("sandbox-{id}")));
        let pods = self.pods.iter().map(|(id, seen)| PodUse {
            key: ObjectKey {
                namespace: "ns".into(),
                name: format!("pod-{id}"),
            },
            ips: seen
                .sandbox
                .filter(|_| seen.is_reported)
                .map(IpAddr::V4)
                .into_iter()
                .collect(),
            is_live: !seen.has_ended,
            may_hold: !seen.has_ended || seen.sandbox.is_some(),
            needed: 1,
            requested: seen.requested,
        });
        (ipam(ADDRESSES.into(), files.collect()), pods.collect())
    }
}

proptest! {
    /// What a scheduler that only adds up requests can still place is what is free. The exception:
    /// while an address is without its pod for a shorter time than the grace, a pod that waits for
    /// its address may seem to be its owner.
    #[test]
    fn allocatable_less_requests_is_what_is_free(steps in prop::collection::vec(step(), 1..80)) {
        let (mut node, start) = (ModelNode::default(), Instant::now());
        let mut unowned = UnownedAddresses::new(GRACE);
        let mut published = u64::from(ADDRESSES);
        for step in steps {
            node.apply(step, published);
            let (ipam, pods) = node.seen();
            let now = start + Duration::from_secs(node.now);
            let account = NodeAccount::of(&ipam, &pods, &mut unowned, now);
            published = account.published();
            let is_young = |since: u64| node.now - since < GRACE.as_secs();
            let young = node.orphans.values().filter(|(_, since)| is_young(*since)).count();
            let hidden = i64::try_from(young.min(node.pending())).unwrap();
            let left = i64::try_from(published - node.requested()).unwrap();
            prop_assert_eq!(left, (node.free() + hidden).max(0), "{:?}: {:?}", step, &node);
            prop_assert_eq!(account.orphaned, (node.orphans.len() - young) as u64);
            // Schedulers that know of orphaned addresses come to the same.
            let informed = account.published_total().saturating_sub(account.held + account.orphaned);
            prop_assert_eq!(i64::try_from(informed).unwrap(), (node.free() + hidden).max(0));
        }
    }
}
