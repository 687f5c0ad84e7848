//! The arithmetic of rollouts: the sizes that ReplicaSets may have, and the distribution of a
//! change.

use podplane_api::{
    IntOrString,
    apps::{Deployment, DeploymentSpec, ReplicaSet},
};

use super::revision;
use crate::percent::{Rounding, percent_of};

/// The value of a number that the API server did not default.
const ONE: i32 = 1;

/// The number of replicas that may be added and may be missing during a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most replicas above the wanted number.
    pub(crate) surge: i32,
    /// The most replicas that may be unavailable.
    pub(crate) unavailable: i32,
}

/// `spec.replicas`.
pub(crate) fn wanted(deployment: &Deployment) -> i32 {
    spec(deployment)
        .and_then(|spec| spec.replicas)
        .unwrap_or(ONE)
}

/// `spec.replicas` of a ReplicaSet.
pub(crate) fn size(set: &ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(ONE)
}

/// The available replicas of the ReplicaSet, at most its size. Its status may be older than its
/// size; pods that it is about to delete do not count, else a second reconciliation before it has
/// acted would scale down too far.
pub(crate) fn available(set: &ReplicaSet) -> i32 {
    let status = set.status.as_ref();
    let available = status
        .and_then(|status| status.available_replicas)
        .unwrap_or_default();
    available.min(size(set))
}

pub(crate) fn total<'a>(
    sets: impl IntoIterator<Item = &'a ReplicaSet>,
    of: fn(&ReplicaSet) -> i32,
) -> i32 {
    sets.into_iter().map(of).fold(0, i32::saturating_add)
}

pub(crate) fn spec(deployment: &Deployment) -> Option<&DeploymentSpec> {
    deployment.spec.as_ref()
}

/// Returns whether pods are replaced gradually, which is the default.
pub(crate) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = spec(deployment).and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

/// Computes as Kubernetes' `ResolveFenceposts`, `MaxSurge` and `MaxUnavailable`: surge is rounded
/// up, unavailable down, and they are never both 0.
pub(crate) fn bounds(deployment: &Deployment) -> Bounds {
    let replicas = wanted(deployment);
    if !is_rolling(deployment) {
        return Bounds {
            surge: 0,
            unavailable: 0,
        };
    }
    let rolling = spec(deployment)
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let surge = resolve(surge, replicas, Rounding::Up);
    let unavailable = match resolve(unavailable, replicas, Rounding::Down) {
        0 if surge == 0 => 1,
        other => other,
    };
    Bounds {
        surge,
        unavailable: unavailable.min(replicas),
    }
}

/// A number, or per cent of `of`. An invalid value, which validation refuses, is 0; an absent one
/// is the 25% that the API server defaults to.
fn resolve(value: Option<&IntOrString>, of: i32, rounding: Rounding) -> i32 {
    let text = match value {
        Some(IntOrString::Int(number)) => return (*number).max(0),
        Some(IntOrString::String(text)) => text.as_str(),
        None => "25%",
    };
    percent_of(text, of, rounding).unwrap_or_default()
}

/// The size that the new ReplicaSet may have now, given the sizes of all ReplicaSets, itself
/// included. As Kubernetes' `NewRSNewReplicas`.
pub(crate) fn new_size(deployment: &Deployment, all: i32, new: i32) -> i32 {
    let replicas = wanted(deployment);
    if !is_rolling(deployment) {
        return replicas;
    }
    let room = replicas
        .saturating_add(bounds(deployment).surge)
        .saturating_sub(all);
    new.saturating_add(room.min(replicas.saturating_sub(new)).max(0))
}

/// The number of replicas that `set` gains, or loses if negative, of the `open` ones that are still
/// to be distributed. As Kubernetes' `GetReplicaSetProportion`.
pub(crate) fn share(deployment: &Deployment, set: &ReplicaSet, open: i32) -> i32 {
    let size = size(set);
    if size == 0 || open == 0 {
        return 0;
    }
    let fraction = fraction(deployment, set, size);
    if open > 0 {
        fraction.min(open)
    } else {
        fraction.max(open)
    }
}

/// The proportional growth of the ReplicaSet, from the limit that it was last scaled under to the
/// present one.
fn fraction(deployment: &Deployment, set: &ReplicaSet, size: i32) -> i32 {
    let replicas = wanted(deployment);
    if replicas == 0 {
        return -size;
    }
    let now = i64::from(replicas) + i64::from(bounds(deployment).surge);
    let before = match revision::number(&set.metadata, revision::MAX_REPLICAS) {
        Some(before) if before != 0 => before,
        _ => deployment
            .status
            .as_ref()
            .and_then(|status| status.replicas)
            .unwrap_or_default()
            .into(),
    };
    if before <= 0 {
        return 0;
    }
    // Rounds half up; all numbers are positive.
    let size = i64::from(size);
    let grown = (size * now * 2 + before) / (before * 2);
    i32::try_from(grown - size).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use podplane_api::apps::{DeploymentStrategy, RollingUpdateDeployment};

    use super::*;

    fn text(value: &str) -> IntOrString {
        value
            .parse()
            .map_or_else(|_| IntOrString::String(value.into()), IntOrString::Int)
    }

    fn rolling(replicas: i32, surge: &str, unavailable: &str) -> Deployment {
        let strategy = DeploymentStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(text(surge)),
                max_unavailable: Some(text(unavailable)),
            }),
        };
        Deployment {
            spec: Some(DeploymentSpec {
                replicas: Some(replicas),
                strategy: Some(strategy),
                ..DeploymentSpec::default()
            }),
            ..Deployment::default()
        }
    }

    #[test]
    fn rounds_surge_up_and_unavailable_down() {
        for (replicas, surge, unavailable, want) in [
            (10, "25%", "25%", (3, 2)),
            (4, "25%", "25%", (1, 1)),
            (3, "25%", "25%", (1, 0)),
            (1, "25%", "25%", (1, 0)),
            (5, "0", "0", (0, 1)),
            (5, "0%", "10%", (0, 1)),
            (3, "2", "0", (2, 0)),
            (2, "1", "5", (1, 2)),
            (0, "25%", "25%", (0, 0)),
            (0, "1", "1", (1, 0)),
            (10, "100%", "100%", (10, 10)),
            (1_000_000_000, "400%", "1", (i32::MAX, 1)),
        ] {
            let Bounds {
                surge: s,
                unavailable: u,
            } = bounds(&rolling(replicas, surge, unavailable));
            assert_eq!((s, u), want, "{replicas} {surge} {unavailable}");
        }
    }

    #[test]
    fn new_replica_set_grows_within_the_surge() {
        // Kubernetes' TestNewRSNewReplicas.
        for (replicas, surge, all, new, want) in [
            (1, "1", 5, 5, 5),
            (6, "20%", 5, 2, 5),
            (10, "0", 8, 0, 2),
            (10, "2", 10, 0, 2),
            (10, "3", 25, 0, 0),
            (10, "2", 10, 2, 4),
            (10, "2", 8, 8, 10),
        ] {
            let deployment = rolling(replicas, surge, "0");
            assert_eq!(
                new_size(&deployment, all, new),
                want,
                "{replicas}+{surge}, {all}, {new}"
            );
        }
    }

    #[test]
    fn ignores_a_status_from_before_a_scale_down() {
        let mut set = ReplicaSet::default();
        set.spec.get_or_insert_default().replicas = Some(2);
        set.status.get_or_insert_default().available_replicas = Some(3);
        assert_eq!(available(&set), 2);
    }
}
