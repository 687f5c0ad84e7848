//! Amounts of resources: the capacity of nodes and the requests of pods.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Quantity,
    core::{Container, PodSpec},
    quantity,
};

/// A count of pods or addresses, wide enough that no sum of them overflows.
pub type Amount = i128;

/// The largest amount of one resource that is told apart: 2^52, which is 4 PiB of memory. A larger
/// request counts as this, and no capacity counts as so much, so such a request fits nowhere. The
/// limit leaves room for the sum of 2^11 such pods in 64 bits.
pub const MAX_AMOUNT: i64 = 1 << 52;

/// The request for cpu that scores assume for a container without one: 100 millicores.
const SCORING_CPU_MILLIS: i64 = 100;
/// The request for memory that scores assume for a container without one: 200 MiB.
const SCORING_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// A vector of amounts, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// In millicores.
    pub cpu: i64,
    /// In bytes.
    pub memory: i64,
    /// In bytes.
    pub ephemeral_storage: i64,
    /// Every other resource by its name, without those that are 0; sorted. There are few, so that
    /// a search from the start is the fastest.
    extended: Vec<(Arc<str>, i64)>,
}

/// The value of a request that a container does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRequest {
    /// Zero, as in the check whether the pod fits.
    Zero,
    /// A small amount, as in scores, so that pods without requests spread too.
    ScoringDefault,
    /// That amount for a pod on a node, where the reference differs: if the pod has requests of its
    /// own, only a resource that it requests nowhere has the default.
    PlacedScoringDefault,
}

/// The requests of a container that states none.
#[derive(Clone, Copy, Debug)]
struct UnstatedRequests {
    cpu: i64,
    memory: i64,
}

impl UnstatedRequests {
    fn of(pod: &PodSpec, missing: MissingRequest) -> Self {
        let is_filled = |name| match missing {
            MissingRequest::Zero => false,
            MissingRequest::ScoringDefault => true,
            MissingRequest::PlacedScoringDefault => {
                !has_own_requests(pod) || !is_requested(pod, name)
            }
        };
        let amount = |name, default| if is_filled(name) { default } else { 0 };
        Self {
            cpu: amount(CPU, SCORING_CPU_MILLIS),
            memory: amount(MEMORY, SCORING_MEMORY_BYTES),
        }
    }
}

/// Returns whether the pod has a request of its own for a resource that may have one.
fn has_own_requests(pod: &PodSpec) -> bool {
    let own = pod.resources.as_ref().and_then(|r| r.requests.as_ref());
    own.is_some_and(|own| {
        let mut names = own.keys();
        names.any(|name| name == CPU || name == MEMORY || name.starts_with("hugepages-"))
    })
}

/// Returns whether the pod, a container of it or its overhead states a request, which may be 0.
fn is_requested(pod: &PodSpec, name: &str) -> bool {
    let init = pod.init_containers.iter().flatten();
    let containers = pod.containers.iter().chain(init);
    let of_containers = containers.filter_map(|container| container.resources.as_ref());
    let mut requests = of_containers
        .chain(&pod.resources)
        .filter_map(|resources| resources.requests.as_ref())
        .chain(&pod.overhead);
    requests.any(|list| list.contains_key(name))
}

impl Resources {
    /// The capacity of a node. An unreadable amount is 0, so that nothing is placed on it.
    pub fn offered(list: &BTreeMap<String, Quantity>) -> Self {
        Self::of_list(list, 0, MAX_AMOUNT - 1)
    }

    /// The requests of a container. An unreadable amount fits nowhere; the API server rejects all
    /// of them.
    fn requested(list: &BTreeMap<String, Quantity>) -> Self {
        Self::of_list(list, MAX_AMOUNT, MAX_AMOUNT)
    }

    /// The requests of `pod` while it runs: its containers and sidecars together, or the largest
    /// step of its initialisation if that is more; instead of that the pod's own requests, where it
    /// has them; plus its overhead.
    pub fn of_pod(pod: &PodSpec, missing: MissingRequest) -> Self {
        let unstated = UnstatedRequests::of(pod, missing);
        let mut running = Self::default();
        for container in &pod.containers {
            running.add(&of_container(container, unstated));
        }
        let mut sidecars = Self::default();
        let mut starting = Self::default();
        for container in pod.init_containers.iter().flatten() {
            let requests = of_container(container, unstated);
            if container.restart_policy.as_deref() == Some("Always") {
                running.add(&requests);
                sidecars.add(&requests);
                starting.raise(&sidecars);
            } else {
                let mut step = sidecars.clone();
                step.add(&requests);
                starting.raise(&step);
            }
        }
        running.raise(&starting);
        let whole = pod.resources.as_ref().and_then(|r| r.requests.as_ref());
        if let Some(whole) = whole {
            let amounts = Self::requested(whole);
            for name in whole.keys() {
                running.set(name, amounts.get(name));
            }
        }
        if let Some(overhead) = &pod.overhead {
            running.add(&Self::requested(overhead));
        }
        running.limit();
        running
    }

    /// The amount of the resource `name`, 0 if absent.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            CPU => self.cpu,
            MEMORY => self.memory,
            EPHEMERAL_STORAGE => self.ephemeral_storage,
            other => self.extended_amount(other),
        }
    }

    /// The amount of an extended resource, 0 if absent.
    pub fn extended_amount(&self, name: &str) -> i64 {
        let mut known = self.extended.iter();
        known
            .find(|(known, _)| **known == *name)
            .map_or(0, |(_, amount)| *amount)
    }

    /// The resources other than cpu, memory and ephemeral storage, by name.
    pub fn extended(&self) -> impl Iterator<Item = (&str, i64)> {
        self.extended.iter().map(|(name, n)| (&**name, *n))
    }

    /// Adds `other`. [`Self::subtract`] always restores the former sum exactly.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::wrapping_add);
    }

    /// Subtracts `other`, which was added before.
    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::wrapping_sub);
    }

    fn of_list(list: &BTreeMap<String, Quantity>, unreadable: i64, limit: i64) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list {
            let amount = match name.as_str() {
                CPU => quantity::millis(quantity),
                _ => quantity::units(quantity),
            };
            resources.set(name, amount.unwrap_or(unreadable).clamp(0, limit));
        }
        resources
    }

    fn set(&mut self, name: &str, amount: i64) {
        match name {
            CPU => self.cpu = amount,
            MEMORY => self.memory = amount,
            EPHEMERAL_STORAGE => self.ephemeral_storage = amount,
            other => self.set_extended(other, amount),
        }
    }

    fn set_extended(&mut self, name: &str, amount: i64) {
        match self
            .extended
            .binary_search_by(|(known, _)| (**known).cmp(name))
        {
            Ok(at) if amount == 0 => {
                self.extended.remove(at);
            }
            Ok(at) => {
                if let Some((_, known)) = self.extended.get_mut(at) {
                    *known = amount;
                }
            }
            Err(_) if amount == 0 => {}
            Err(at) => self.extended.insert(at, (name.into(), amount)),
        }
    }

    fn raise(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    /// Reduces each amount to [`MAX_AMOUNT`].
    fn limit(&mut self) {
        let extended = self.extended.iter_mut().map(|(_, amount)| amount);
        let native = [&mut self.cpu, &mut self.memory, &mut self.ephemeral_storage];
        for amount in native.into_iter().chain(extended) {
            *amount = (*amount).clamp(0, MAX_AMOUNT);
        }
    }

    fn combine(&mut self, other: &Self, combine: impl Fn(i64, i64) -> i64) {
        self.cpu = combine(self.cpu, other.cpu);
        self.memory = combine(self.memory, other.memory);
        self.ephemeral_storage = combine(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.extended {
            self.set_extended(name, combine(self.extended_amount(name), *amount));
        }
    }
}

/// An amount of a resource as a quantity: `3500m`, `2Gi`, `7`.
pub fn amount_text(resource: &str, amount: i64) -> String {
    let binary = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let is_bytes = matches!(resource, MEMORY | EPHEMERAL_STORAGE);
    let bytes = binary.iter().filter(|_| is_bytes && amount != 0);
    let mut whole = bytes.filter(|(bits, _)| amount % (1_i64 << bits) == 0);
    match whole.next() {
        Some((bits, suffix)) => format!("{}{suffix}", amount >> bits),
        None if resource == CPU && amount % 1000 == 0 => (amount / 1000).to_string(),
        None if resource == CPU => format!("{amount}m"),
        None => amount.to_string(),
    }
}

fn of_container(container: &Container, unstated: UnstatedRequests) -> Resources {
    let requests = container
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref());
    let mut resources = requests.map_or_else(Resources::default, Resources::requested);
    // A request of 0 is a request: only absent ones are filled in.
    let absent = |name| requests.is_none_or(|list| !list.contains_key(name));
    if absent(CPU) {
        resources.cpu = unstated.cpu;
    }
    if absent(MEMORY) {
        resources.memory = unstated.memory;
    }
    resources
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn cpu(request: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": request}}})
    }

    #[test]
    fn counts_the_largest_init_step_with_the_sidecars_before_it() {
        let mut sidecar = cpu("200m");
        sidecar["restartPolicy"] = json!("Always");
        let init = json!([cpu("900m"), sidecar, cpu("800m")]);
        let pod = spec(json!({"containers": [cpu("300m"), cpu("400m")], "initContainers": init}));
        assert_eq!(Resources::of_pod(&pod, MissingRequest::Zero).cpu, 1000); // 800 + 200, over 300 + 400 + 200
    }

    #[test]
    fn pod_requests_replace_those_of_containers_and_overhead_is_added() {
        let pod = spec(
            json!({"containers": [cpu("300m")], "overhead": {"cpu": "10m", "memory": "1Ki"},
                        "resources": {"requests": {"cpu": "2"}}}),
        );
        let requests = Resources::of_pod(&pod, MissingRequest::Zero);
        assert_eq!((requests.cpu, requests.memory), (2010, 1024));
    }

    #[test]
    fn absent_requests_have_a_scoring_default_but_zero_requests_do_not() {
        let table = |requests| {
            let pod =
                spec(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}));
            let scoring = Resources::of_pod(&pod, MissingRequest::ScoringDefault);
            (scoring.cpu, scoring.memory)
        };
        assert_eq!(table(json!({})), (100, 209_715_200));
        assert_eq!(table(json!({"cpu": "0", "memory": "0"})), (0, 0));
        assert_eq!(table(json!({"cpu": "3"})), (3000, 209_715_200));
    }

    #[test]
    fn placed_pod_with_own_requests_has_defaults_only_for_what_it_requests_nowhere() {
        let memory = |own: serde_json::Value, missing| {
            let stated = json!({"name": "a", "resources": {"requests": {"memory": "0"}}});
            let pod = spec(json!({
                "containers": [stated, {"name": "b"}],
                "resources": {"requests": own},
            }));
            Resources::of_pod(&pod, missing).memory
        };
        let (new, placed) = (
            MissingRequest::ScoringDefault,
            MissingRequest::PlacedScoringDefault,
        );
        assert_eq!(memory(json!({"cpu": "1"}), new), SCORING_MEMORY_BYTES);
        assert_eq!(memory(json!({"cpu": "1"}), placed), 0);
        assert_eq!(memory(json!({}), placed), SCORING_MEMORY_BYTES);
    }

    #[test]
    fn unreadable_amounts_fit_nowhere_and_offer_nothing() {
        let list = BTreeMap::from([("cpu".to_owned(), Quantity("much".to_owned()))]);
        assert_eq!(Resources::offered(&list).cpu, 0);
        let mut sum = Resources::requested(&list);
        sum.add(&Resources::requested(&list));
        sum.subtract(&Resources::requested(&list));
        assert_eq!(sum, Resources::requested(&list));
    }

    #[test]
    fn amounts_are_written_as_quantities() {
        for (resource, amount, want) in [
            ("cpu", 3500, "3500m"),
            ("cpu", 9000, "9"),
            ("memory", 3 << 29, "1536Mi"),
            ("memory", 0, "0"),
            ("memory", 1001, "1001"),
            ("podplane.io/pod-ips", 1024, "1024"),
        ] {
            assert_eq!(amount_text(resource, amount), want);
        }
    }

    #[test]
    fn amounts_beyond_the_limit_fit_nowhere() {
        let list = |amount: &str| {
            BTreeMap::from([("example.com/x".to_owned(), Quantity(amount.to_owned()))])
        };
        let huge = "9223372036854775807";
        let wanted = Resources::requested(&list(huge)).get("example.com/x");
        assert!(wanted > Resources::offered(&list(huge)).get("example.com/x"));
        assert_eq!(Resources::requested(&list("-1")), Resources::default());
    }
}
