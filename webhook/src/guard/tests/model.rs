//! A model: an API server that carries out every binding of a pod that has no node, after any time
//! within the limit; a watch that lags behind it; reads. The guard alone keeps the nodes within
//! their capacity.

use std::collections::VecDeque;

use super::*;

const NODES: [&str; 2] = ["n", "m"];
const CAPACITY: u64 = 3;
const STEPS: usize = 400;

/// A pod in the API server.
#[derive(Clone, Debug)]
struct ModelPod {
    name: String,
    uid: String,
    node: Option<&'static str>,
}

impl ModelPod {
    fn shown(&self) -> PodAddresses {
        let pod = match self.node {
            Some(node) => bound(&self.name, node),
            None => waiting(&self.name),
        };
        PodAddresses {
            uid: self.uid.as_str().into(),
            ..pod
        }
    }
}

#[derive(Clone, Debug)]
enum ModelEvent {
    Applied(PodAddresses),
    Deleted(PodAddresses),
}

/// A binding that was allowed and that the API server has not carried out.
#[derive(Clone, Debug)]
struct UnderWay {
    name: String,
    uid: String,
    node: &'static str,
    allowed: Instant,
}

struct Model {
    rng: fastrand::Rng,
    fixture: GuardFixture,
    pods: BTreeMap<String, ModelPod>,
    /// What the watch has not delivered yet.
    lag: VecDeque<ModelEvent>,
    under_way: Vec<UnderWay>,
    /// Pods as read, for reservations that were due, before the answers arrive.
    reads: Vec<(DueReservation, PodRead)>,
    created: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            fixture: GuardFixture::new(),
            pods: BTreeMap::new(),
            lag: VecDeque::new(),
            under_way: Vec::new(),
            reads: Vec::new(),
            created: 0,
        }
    }

    fn any_pod(&mut self) -> Option<ModelPod> {
        let place = self.rng.usize(..self.pods.len().max(1));
        self.pods.values().nth(place).cloned()
    }

    fn read(&self, name: &str) -> PodRead {
        let pod = self.pods.get(name);
        pod.map_or(PodRead::Gone, |pod| PodRead::Found(pod.shown()))
    }

    fn step(&mut self) {
        match self.rng.u8(..100) {
            0..15 => self.create(),
            15..22 => self.delete(),
            22..50 => self.ask(),
            50..65 => self.carry_out(),
            65..68 => self.drop_binding(),
            68..88 => self.deliver(),
            88..92 => self.pass(),
            92..96 => self.begin_reads(),
            _ => self.end_read(),
        }
    }

    /// Few names, so that pods replace others.
    fn create(&mut self) {
        let name = format!("p{}", self.rng.u8(..8));
        if self.pods.contains_key(&name) {
            return;
        }
        self.created += 1;
        let pod = ModelPod {
            uid: self.created.to_string(),
            name: name.clone(),
            node: None,
        };
        self.lag.push_back(ModelEvent::Applied(pod.shown()));
        self.pods.insert(name, pod);
    }

    fn delete(&mut self) {
        if let Some(pod) = self.any_pod() {
            self.pods.remove(&pod.name);
            self.lag.push_back(ModelEvent::Deleted(pod.shown()));
        }
    }

    /// A scheduler binds a pod: any one that was ever there.
    fn ask(&mut self) {
        let Some(pod) = self.any_pod() else { return };
        let node = NODES[self.rng.usize(..NODES.len())];
        let request = BindRequest {
            uid: Some(pod.uid.as_str().into()),
            ..request(&pod.name, node)
        };
        let report = report(CAPACITY);
        let now = self.fixture.now;
        let guard = &mut self.fixture.guard;
        let mut decision = guard.decide(&request, Some(&report), None, now);
        if decision == BindDecision::UnknownPod {
            let read = self.read(&pod.name);
            let guard = &mut self.fixture.guard;
            decision = guard.decide(&request, Some(&report), Some(&read), now);
        }
        assert_ne!(decision, BindDecision::UnknownPod);
        if matches!(decision, BindDecision::Allowed(_)) {
            self.under_way.push(UnderWay {
                name: pod.name,
                uid: pod.uid,
                node,
                allowed: now,
            });
        }
    }

    fn carry_out(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let place = self.rng.usize(..self.under_way.len());
        let binding = self.under_way.swap_remove(place);
        let pod = self.pods.get_mut(&binding.name);
        let pod = pod.filter(|pod| pod.uid == binding.uid && pod.node.is_none());
        if let Some(pod) = pod {
            pod.node = Some(binding.node);
            self.lag.push_back(ModelEvent::Applied(pod.shown()));
        }
    }

    fn drop_binding(&mut self) {
        if !self.under_way.is_empty() {
            let place = self.rng.usize(..self.under_way.len());
            self.under_way.swap_remove(place);
        }
    }

    fn deliver(&mut self) {
        match self.lag.pop_front() {
            Some(ModelEvent::Applied(pod)) => self.fixture.shows(pod),
            Some(ModelEvent::Deleted(pod)) => self.fixture.guard.forget(&pod),
            None => {}
        }
    }

    /// Time passes, and the API server drops what it has not carried out within the limit.
    fn pass(&mut self) {
        self.fixture.pass(Duration::from_secs(self.rng.u64(1..90)));
        let now = self.fixture.now;
        self.under_way
            .retain(|binding| now.duration_since(binding.allowed) < LIMIT);
    }

    fn begin_reads(&mut self) {
        for due in self.fixture.guard.due(self.fixture.now, 2) {
            let read = self.read(&due.pod.name);
            self.reads.push((due, read));
        }
    }

    fn end_read(&mut self) {
        if !self.reads.is_empty() {
            let place = self.rng.usize(..self.reads.len());
            let (due, read) = self.reads.swap_remove(place);
            self.fixture.guard.settle(&due, &read);
        }
    }

    fn bound_to(&self, node: &str) -> u64 {
        let here = self.pods.values().filter(|pod| pod.node == Some(node));
        u64::try_from(here.count()).unwrap()
    }

    /// Delivers and settles everything that is under way.
    fn settle(&mut self) {
        self.under_way.clear();
        while !self.lag.is_empty() {
            self.deliver();
        }
        while !self.reads.is_empty() {
            self.end_read();
        }
        self.fixture.pass(LIMIT);
        for due in self.fixture.guard.due(self.fixture.now, usize::MAX) {
            let read = self.read(&due.pod.name);
            self.fixture.guard.settle(&due, &read);
        }
    }
}

#[test]
fn no_node_gets_more_pods_than_it_has_addresses_and_none_is_lost() {
    let mut full = 0;
    for seed in 0..2000 {
        let mut model = Model::new(seed);
        for step in 0..STEPS {
            model.step();
            for node in NODES {
                let bound = model.bound_to(node);
                assert!(
                    bound <= CAPACITY,
                    "seed {seed}, step {step}: {bound} on {node}"
                );
                full += usize::from(bound == CAPACITY);
            }
        }
        model.settle();
        assert_eq!(model.fixture.guard.reservations(), 0, "seed {seed}");
        for node in NODES {
            let bound = model.bound_to(node);
            let has_room = model.fixture.has_room(node, CAPACITY);
            assert_eq!(has_room, bound < CAPACITY, "seed {seed}");
        }
    }
    assert!(full > 50_000, "nodes are full often enough: {full}");
}
