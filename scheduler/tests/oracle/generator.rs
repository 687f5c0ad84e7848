//! Random clusters, small and rich in coincidences: few keys, few values and little room.

use serde_json::{Map, Value, json};

/// The values of a key.
type Pool = (&'static str, &'static [&'static str]);

const NODE_LABELS: [Pool; 4] = [
    ("zone", &["a", "b", "c"]),
    ("topology.kubernetes.io/zone", &["a", "b", ""]),
    ("disk", &["ssd", "hdd"]),
    ("generation", &["1", "2", "10", "x"]),
];
const POD_LABELS: [Pool; 3] = [
    ("app", &["a", "b"]),
    ("tier", &["x", "y"]),
    ("version", &["1", "2"]),
];
const NAMESPACE_LABELS: [Pool; 1] = [("team", &["red", "blue"])];
const NAMESPACES: [&str; 3] = ["one", "two", "three"];
/// The namespaces of pods: most are in one, so that constraints select something.
const PLACES: [&str; 5] = ["one", "one", "one", "two", "three"];
const TOPOLOGY_KEYS: [&str; 3] = ["kubernetes.io/hostname", "zone", "disk"];
const TAINT_KEYS: [&str; 3] = ["dedicated", "slow", "node.kubernetes.io/unschedulable"];
const EFFECTS: [&str; 3] = ["NoSchedule", "NoExecute", "PreferNoSchedule"];
const POLICIES: [&str; 5] = ["resource", "resource", "resource", "pod-cidr", "off"];

/// Images by the names that pods give them, with other names of some of them.
const IMAGES: [&[&str]; 6] = [
    &["web"],
    &["web:latest", "web@sha256:00"],
    &["web@sha256:00"],
    &["registry:5000/db"],
    &["registry:5000/db:latest"],
    &["db:2", "registry/db:2"],
];

/// The rules that occur in one cluster. With all of them in each, hardly a node would be feasible.
#[derive(Clone, Copy, Debug)]
struct Features {
    taints: bool,
    node_affinity: bool,
    ports: bool,
    shortage: bool,
    few_addresses: bool,
    spread: bool,
    affinity: bool,
    preferred_affinity: bool,
    workloads: bool,
    images: bool,
}

/// The generator of one cluster.
struct Generator {
    random: fastrand::Rng,
    features: Features,
    nodes: usize,
}

/// The cluster of this seed: `nodes`, `pods`, `namespaces`, `services`, `replicaSets`, the `pod` in
/// question and the `policy`.
pub(crate) fn cluster(seed: u64) -> Value {
    let mut random = fastrand::Rng::with_seed(seed);
    // Half of the clusters have one feature, so that no other hides it.
    let mut others = random.bool().then(|| random.u32(0..10));
    let mut feature = |percent| match &mut others {
        Some(0) => {
            others = Some(u32::MAX);
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => random.u32(0..100) < percent,
    };
    let features = Features {
        taints: feature(40),
        node_affinity: feature(35),
        ports: feature(25),
        shortage: feature(35),
        few_addresses: feature(40),
        spread: feature(40),
        affinity: feature(35),
        preferred_affinity: feature(35),
        workloads: feature(35),
        images: feature(35),
    };
    let nodes = random.usize(1..=8);
    let mut generator = Generator {
        random,
        features,
        nodes,
    };
    generator.cluster()
}

impl Generator {
    /// True in so many of 100 cases.
    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.usize(0..from.len())]
    }

    fn cluster(&mut self) -> Value {
        let nodes: Vec<_> = (0..self.nodes).map(|index| self.node(index)).collect();
        let count = self.random.usize(0..=20);
        let pods: Vec<_> = (0..count).map(|index| self.existing_pod(index)).collect();
        let mut namespaces = Vec::new();
        for name in NAMESPACES {
            if self.chance(85) {
                let labels = self.labels(&NAMESPACE_LABELS, 75);
                namespaces.push(json!({"metadata": {"name": name, "labels": labels}}));
            }
        }
        let mut pod = self.pod("new");
        if self.chance(4) {
            pod["spec"]["nodeName"] = json!(self.node_name());
        }
        let policy = self.choose(&POLICIES);
        json!({
            "nodes": nodes,
            "pods": pods,
            "namespaces": namespaces,
            "services": self.services(),
            "replicaSets": self.replica_sets(),
            "pod": pod,
            "policy": policy,
        })
    }

    fn node_name(&mut self) -> String {
        format!("n{}", self.random.usize(0..self.nodes))
    }

    fn labels(&mut self, pools: &[Pool], percent: u32) -> Value {
        let mut labels = Map::new();
        for (key, values) in pools {
            if self.chance(percent) {
                labels.insert((*key).into(), json!(self.choose(values)));
            }
        }
        Value::Object(labels)
    }

    fn node(&mut self, index: usize) -> Value {
        let name = format!("n{index}");
        let mut labels = self.labels(&NODE_LABELS, 75);
        if self.chance(92) {
            labels["kubernetes.io/hostname"] = json!(name);
        }
        let mut node = json!({
            "metadata": {"name": name, "labels": labels, "annotations": {}},
            "spec": {},
            "status": {"allocatable": self.allocatable(), "capacity": {}, "conditions": []},
        });
        if self.features.taints {
            let taints: Vec<_> = (0..self.random.usize(0..=2))
                .map(|_| self.taint())
                .collect();
            node["spec"]["taints"] = json!(taints);
            if self.chance(15) {
                node["spec"]["unschedulable"] = json!(true);
            }
        }
        if self.features.images {
            let count = self.random.usize(0..=3);
            node["status"]["images"] = (0..count).map(|_| self.image()).collect();
        }
        self.add_addresses(&mut node, index);
        node
    }

    fn image(&mut self) -> Value {
        let mut image = json!({"names": self.choose(&IMAGES)});
        if self.chance(95) {
            let mebibytes = self.choose(&[1_i64, 24, 90, 700, 1500, 4000]);
            image["sizeBytes"] = json!(mebibytes * 1_048_576 + self.random.i64(0..1000));
        }
        image
    }

    fn services(&mut self) -> Value {
        let mut services = Vec::new();
        let most = if self.features.workloads { 3 } else { 0 };
        for index in 0..self.random.usize(0..=most) {
            let mut service = json!({
                "metadata": {"name": format!("s{index}"), "namespace": self.choose(&PLACES)},
                "spec": {},
            });
            if self.chance(90) {
                service["spec"]["selector"] = self.labels(&POD_LABELS[..2], 45);
            }
            services.push(service);
        }
        json!(services)
    }

    fn replica_sets(&mut self) -> Value {
        let mut sets = Vec::new();
        let most = if self.features.workloads { 3 } else { 0 };
        for index in 0..self.random.usize(0..=most) {
            sets.push(json!({
                "metadata": {"name": format!("r{index}"), "namespace": self.choose(&PLACES)},
                "spec": {"selector": self.selector(&POD_LABELS)},
            }));
        }
        json!(sets)
    }

    fn owners(&mut self) -> Value {
        let mut owners = Vec::new();
        for _ in 0..self.random.usize(0..=2) {
            let name = self.choose(&["r0", "r1", "r2"]);
            let (version, kind) = self.choose(&[
                ("apps/v1", "ReplicaSet"),
                ("apps/v1", "ReplicaSet"),
                ("apps/v1", "ReplicaSet"),
                ("example.com/v1", "ReplicaSet"),
                ("batch/v1", "Job"),
            ]);
            let mut owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": name});
            // At most one owner is the controller.
            if owners.is_empty() && self.chance(75) {
                owner["controller"] = json!(true);
            }
            owners.push(owner);
        }
        if self.chance(30) {
            owners.reverse();
        }
        json!(owners)
    }

    fn allocatable(&mut self) -> Value {
        let (cpu, memory): (&[&str], &[&str]) = match self.features.shortage {
            true => (&["500m", "1", "2"], &["256Mi", "500Mi", "1Gi"]),
            false => (&["4", "8", "16"], &["8Gi", "16Gi", "33Gi"]),
        };
        let pods: &[&str] = match self.features.shortage {
            true => &["1", "3", "5", "110"],
            false => &["110", "250"],
        };
        let mut amounts = Map::new();
        let all: [(&str, &[&str], u32); 6] = [
            ("cpu", cpu, 97),
            ("memory", memory, 97),
            ("pods", pods, 98),
            ("ephemeral-storage", &["1Gi", "10Gi"], 80),
            ("example.com/gpu", &["0", "1", "4"], 75),
            ("hugepages-2Mi", &["4Mi", "64Mi"], 50),
        ];
        for (resource, values, percent) in all {
            if self.chance(percent) {
                amounts.insert(resource.into(), json!(self.choose(values)));
            }
        }
        Value::Object(amounts)
    }

    fn taint(&mut self) -> Value {
        let (key, effect) = (self.choose(&TAINT_KEYS), self.choose(&EFFECTS));
        let mut taint = json!({"key": key, "effect": effect});
        if self.chance(60) {
            taint["value"] = json!(self.choose(&["a", "b"]));
        }
        taint
    }

    fn toleration(&mut self) -> Value {
        let mut toleration = json!({});
        match self.random.u32(0..4) {
            0 => toleration["operator"] = json!("Exists"),
            1 => {
                toleration["operator"] = json!("Exists");
                toleration["key"] = json!(self.choose(&TAINT_KEYS));
            }
            _ => {
                toleration["key"] = json!(self.choose(&TAINT_KEYS));
                if self.chance(50) {
                    toleration["operator"] = json!("Equal");
                }
                if self.chance(70) {
                    toleration["value"] = json!(self.choose(&["a", "b"]));
                }
            }
        }
        if self.chance(60) {
            toleration["effect"] = json!(self.choose(&EFFECTS));
        }
        toleration
    }

    /// Adds a block, amounts that the IPAM plugin reports, and addresses in use, or none of these.
    fn add_addresses(&mut self, node: &mut Value, index: usize) {
        let (lengths, amounts): (&[u32], &[&str]) = match self.features.few_addresses {
            true => (&[28, 29, 30, 31], &["0", "1", "2", "4"]),
            false => (&[24, 25, 26], &["30", "60", "250"]),
        };
        let waits = if self.features.few_addresses { 10 } else { 2 };
        if !self.chance(waits + 10) {
            node["spec"]["podCIDR"] = json!(format!("10.0.{index}.0/{}", self.choose(lengths)));
        }
        let mut conditions = Vec::new();
        if !self.chance(waits) {
            conditions.push(json!({"type": "Ready", "status": "True"}));
        }
        if self.chance(waits) {
            conditions.push(json!({"type": "NetworkUnavailable", "status": "True"}));
        }
        node["status"]["conditions"] = json!(conditions);
        if self.chance(40) {
            for list in ["capacity", "allocatable"] {
                if self.chance(90) {
                    node["status"][list]["podplane.io/pod-ips"] = json!(self.choose(amounts));
                }
            }
        }
        for of in ["orphaned", "allocated"] {
            if self.chance(35) {
                let key = format!("podplane.io/pod-ips-{of}");
                node["metadata"]["annotations"][key] = json!(self.choose(&["0", "1", "2", "5"]));
            }
        }
    }

    fn existing_pod(&mut self, index: usize) -> Value {
        let mut pod = self.pod(&format!("p{index}"));
        let node = match self.random.u32(0..100) {
            0..5 => "gone".to_owned(),
            5..10 => return pod,
            _ => self.node_name(),
        };
        pod["spec"]["nodeName"] = json!(node);
        if self.chance(12) {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if self.chance(12) {
            let phase = self.choose(&["Running", "Succeeded", "Failed"]);
            pod["status"] = json!({"phase": phase, "conditions": []});
            if self.chance(60) {
                let status = self.choose(&["True", "False"]);
                let condition = json!({"type": "PodReadyToStartContainers", "status": status});
                pod["status"]["conditions"] = json!([condition]);
            }
        }
        pod
    }

    fn pod(&mut self, name: &str) -> Value {
        let containers = self.containers(1, "c");
        let mut pod = json!({
            "metadata": {
                "name": name,
                "namespace": self.choose(&PLACES),
                "uid": name,
                "labels": self.labels(&POD_LABELS, 80),
            },
            "spec": {"containers": containers, "affinity": {}},
        });
        let spec = &mut pod["spec"];
        if self.chance(15) {
            spec["hostNetwork"] = json!(true);
        }
        if self.chance(25) {
            spec["initContainers"] = json!(self.containers(2, "i"));
        }
        if self.chance(10) {
            spec["overhead"] = self.requests();
        }
        if self.chance(8) {
            spec["resources"] = json!({"requests": {}});
            for (resource, amounts) in [("cpu", ["300m", "2"]), ("memory", ["300Mi", "2Gi"])] {
                if self.chance(60) {
                    spec["resources"]["requests"][resource] = json!(self.choose(&amounts));
                }
            }
        }
        if self.features.taints {
            let count = self.random.usize(0..=2);
            spec["tolerations"] = (0..count).map(|_| self.toleration()).collect();
        }
        if self.features.node_affinity {
            self.add_node_affinity(spec);
        }
        if self.features.spread && !(self.features.workloads && self.chance(60)) {
            spec["topologySpreadConstraints"] = self.spread_constraints();
        }
        self.add_pod_affinity(spec);
        if self.features.workloads {
            pod["metadata"]["ownerReferences"] = self.owners();
        }
        pod
    }

    fn containers(&mut self, most: usize, prefix: &str) -> Value {
        let mut containers = Vec::new();
        for index in 0..self.random.usize(1..=most + 1) {
            let mut container = json!({"name": format!("{prefix}{index}"), "resources": {}});
            if self.chance(75) {
                container["resources"]["requests"] = self.requests();
            }
            if prefix == "i" && self.chance(50) {
                container["restartPolicy"] = json!("Always");
            }
            if self.features.images && self.chance(90) {
                container["image"] = json!(self.choose(&IMAGES)[0]);
            }
            if self.features.ports && self.chance(50) {
                container["ports"] = json!([self.port()]);
            }
            containers.push(container);
        }
        json!(containers)
    }

    fn port(&mut self) -> Value {
        let mut port = json!({"containerPort": 80});
        if self.chance(85) {
            port["hostPort"] = json!(self.choose(&[80, 81]));
        }
        if self.chance(50) {
            port["protocol"] = json!(self.choose(&["TCP", "UDP"]));
        }
        if self.chance(50) {
            port["hostIP"] = json!(self.choose(&["0.0.0.0", "127.0.0.1", "10.0.0.1", "::"]));
        }
        port
    }

    fn requests(&mut self) -> Value {
        let mut requests = Map::new();
        let all: [(&str, &[&str], u32); 6] = [
            ("cpu", &["0", "50m", "100m", "333m", "1"], 50),
            ("memory", &["0", "64Mi", "200Mi", "100000000"], 50),
            ("ephemeral-storage", &["0", "500Mi"], 8),
            ("example.com/gpu", &["0", "1", "2"], 9),
            ("hugepages-2Mi", &["2Mi", "4Mi"], 3),
            ("podplane.io/pod-ips", &["0", "1", "2"], 8),
        ];
        for (resource, amounts, percent) in all {
            if self.chance(percent) {
                requests.insert(resource.into(), json!(self.choose(amounts)));
            }
        }
        Value::Object(requests)
    }

    fn add_node_affinity(&mut self, spec: &mut Value) {
        if self.chance(20) {
            spec["nodeSelector"] = self.labels(&NODE_LABELS, 25);
        }
        if self.chance(40) {
            let terms: Vec<_> = (0..self.random.usize(1..=2)).map(|_| self.term()).collect();
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": terms});
        }
        if self.chance(4) {
            let names = ["n0", "n1"]
                .map(|name| json!({"key": "metadata.name", "operator": "In", "values": [name]}));
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": [{"matchFields": names}]});
        }
        if self.chance(60) {
            let mut terms = Vec::new();
            for _ in 0..self.random.usize(1..=3) {
                let weight = self.choose(&[1, 7, 100]);
                terms.push(json!({"weight": weight, "preference": self.term()}));
            }
            spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
                json!(terms);
        }
    }

    fn term(&mut self) -> Value {
        let mut term = json!({});
        if self.chance(85) {
            let count = self.random.usize(1..=2);
            term["matchExpressions"] = (0..count).map(|_| self.node_requirement()).collect();
        }
        if self.chance(25) {
            let mut fields = Vec::new();
            for _ in 0..self.random.usize(1..=2) {
                let operator = self.choose(&["In", "In", "NotIn"]);
                let names = [self.node_name()];
                fields.push(json!({"key": "metadata.name", "operator": operator, "values": names}));
            }
            term["matchFields"] = json!(fields);
        }
        term
    }

    fn node_requirement(&mut self) -> Value {
        if self.chance(25) {
            let operator = self.choose(&["Gt", "Lt"]);
            let bound = self.choose(&["1", "2", "5"]);
            return json!({"key": "generation", "operator": operator, "values": [bound]});
        }
        self.requirement(&NODE_LABELS)
    }

    fn requirement(&mut self, pools: &[Pool]) -> Value {
        let (key, values) = self.choose(pools);
        match self.random.u32(0..6) {
            0 => json!({"key": key, "operator": "Exists"}),
            1 => json!({"key": key, "operator": "DoesNotExist"}),
            chosen => {
                let operator = if chosen == 2 { "NotIn" } else { "In" };
                let mut listed = vec![self.choose(values)];
                if self.chance(40) {
                    listed.push(self.choose(values));
                }
                json!({"key": key, "operator": operator, "values": listed})
            }
        }
    }

    fn selector(&mut self, pools: &[Pool]) -> Value {
        let mut selector = json!({});
        if self.chance(50) {
            selector["matchLabels"] = self.labels(pools, 50);
        }
        if self.chance(40) {
            selector["matchExpressions"] = json!([self.requirement(pools)]);
        }
        selector
    }

    fn spread_constraints(&mut self) -> Value {
        let mut constraints = Vec::<Value>::new();
        for _ in 0..self.random.usize(1..=3) {
            let action = self.choose(&["DoNotSchedule", "ScheduleAnyway"]);
            let mut constraint = json!({
                "maxSkew": self.choose(&[1, 1, 1, 2]),
                "topologyKey": self.choose(&TOPOLOGY_KEYS),
                "whenUnsatisfiable": action,
            });
            // A pair of key and action occurs once.
            if constraints.iter().any(|known| {
                known["topologyKey"] == constraint["topologyKey"]
                    && known["whenUnsatisfiable"] == constraint["whenUnsatisfiable"]
            }) {
                continue;
            }
            self.add_selector(&mut constraint, &["matchLabelKeys"]);
            if action == "DoNotSchedule" && self.chance(60) {
                constraint["minDomains"] = json!(self.random.u32(1..=4));
            }
            for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
                if self.chance(40) {
                    constraint[policy] = json!(self.choose(&["Honor", "Ignore"]));
                }
            }
            constraints.push(constraint);
        }
        json!(constraints)
    }

    /// Adds a selector in most cases, and to it keys that the selector does not have.
    fn add_selector(&mut self, to: &mut Value, keys: &[&str]) {
        if self.chance(4) {
            return;
        }
        to["labelSelector"] = self.selector(&POD_LABELS[..2]);
        for key in keys {
            if self.chance(25) {
                to[*key] = json!(["version"]);
                return;
            }
        }
    }

    fn affinity_term(&mut self) -> Value {
        let mut term = json!({"topologyKey": self.choose(&TOPOLOGY_KEYS)});
        self.add_selector(&mut term, &["matchLabelKeys", "mismatchLabelKeys"]);
        if self.chance(25) {
            term["namespaces"] = json!([self.choose(&NAMESPACES)]);
        }
        if self.chance(35) {
            term["namespaceSelector"] = self.selector(&NAMESPACE_LABELS);
        }
        term
    }

    fn add_pod_affinity(&mut self, spec: &mut Value) {
        for (kind, percent) in [("podAffinity", 30), ("podAntiAffinity", 15)] {
            if self.features.affinity && self.chance(percent) {
                let count = self.random.usize(1..=2);
                spec["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    (0..count).map(|_| self.affinity_term()).collect();
            }
            if self.features.preferred_affinity && self.chance(40) {
                let mut terms = Vec::new();
                for _ in 0..self.random.usize(1..=2) {
                    let weight = self.choose(&[1, 5, 100]);
                    terms.push(json!({"weight": weight, "podAffinityTerm": self.affinity_term()}));
                }
                spec["affinity"][kind]["preferredDuringSchedulingIgnoredDuringExecution"] =
                    json!(terms);
            }
        }
    }
}
