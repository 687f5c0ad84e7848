//! The quality-of-service class of a pod (source: `component-helpers` `qos`).

use crate::{
    core::{Container, PodSpec},
    quantity,
};

/// `Guaranteed`, `Burstable` or `BestEffort`, from the cpu and memory of its containers.
pub(super) fn class(spec: &PodSpec) -> &'static str {
    let containers = || {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    };
    if containers().all(|container| !asks(container)) {
        "BestEffort"
    } else if containers().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

const RESOURCES: [&str; 2] = ["cpu", "memory"];

fn asks(container: &Container) -> bool {
    RESOURCES
        .iter()
        .any(|name| request(container, name) > 0 || limit(container, name) > 0)
}

fn guaranteed(container: &Container) -> bool {
    RESOURCES.iter().all(|name| {
        limit(container, name) > 0 && request(container, name) == limit(container, name)
    })
}

fn request(container: &Container, name: &str) -> i64 {
    amount(
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.requests.as_ref()?.get(name)),
    )
}

fn limit(container: &Container, name: &str) -> i64 {
    amount(
        container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref()?.get(name)),
    )
}

/// Amounts are only compared with zero and with each other, so units do for those that are too
/// large in thousandths.
fn amount(quantity: Option<&crate::Quantity>) -> i64 {
    quantity
        .and_then(|quantity| {
            quantity::millis(quantity)
                .or_else(|_| quantity::units(quantity))
                .ok()
        })
        .unwrap_or_default()
}
