//! The plan of a Deployment: from the Deployment, its ReplicaSets and the time to the writes.
//!
//! Pure and total. It takes one step of a rollout, as Kubernetes' deployment controller does; the
//! next step starts from the changes that this one causes.

use std::{cmp::Reverse, collections::BTreeSet};

use podplane_api::{
    Object as _,
    apps::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
    core::PodTemplateSpec,
    jiff::{SignedDuration, Timestamp},
    meta::{LabelSelector, ObjectMeta},
    names::DNS1123_SUBDOMAIN_MAX,
};

use super::{
    conditions, is_paused,
    replicas::{available, bounds, is_rolling, new_size, share, size, spec, total, wanted},
    revision,
};
use crate::{
    owner,
    template::{self, HASH_LABEL},
};

/// The input of a decision.
#[derive(Clone, Debug)]
pub(crate) struct PlanInput<'a> {
    pub(crate) deployment: &'a Deployment,
    /// The ReplicaSets that it controls.
    pub(crate) sets: Vec<ReplicaSet>,
    /// UIDs of ReplicaSets with pods that have not ended.
    pub(crate) with_pods: BTreeSet<String>,
    pub(crate) now: Timestamp,
}

/// The writes, in this order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeploymentPlan {
    /// The new ReplicaSet, if it does not exist yet.
    pub(crate) create: Option<ReplicaSet>,
    /// ReplicaSets that change.
    pub(crate) update: Vec<SetUpdate>,
    /// ReplicaSets beyond the history limit.
    pub(crate) delete: Vec<ReplicaSet>,
    /// The Deployment's revision, if it changes.
    pub(crate) revision: Option<String>,
    /// The Deployment's status.
    pub(crate) status: DeploymentStatus,
    /// The delay until the next reconciliation, if one is due without a change.
    pub(crate) wake: Option<SignedDuration>,
}

/// An update of a ReplicaSet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SetUpdate {
    pub(crate) set: ReplicaSet,
    /// Its former size, if that changes.
    pub(crate) from: Option<i32>,
}

/// Plans one step.
///
/// # Errors
///
/// serde's, for a template that JSON cannot hold.
pub(crate) fn plan(observed: PlanInput<'_>) -> Result<DeploymentPlan, serde_json::Error> {
    let deployment = observed.deployment;
    let mut work = Rollout::new(observed);
    if deployment.is_deleting() {
        work.count();
        return Ok(work.finish());
    }
    conditions::pause(deployment, &mut work.status, work.now);
    if is_paused(deployment) || work.is_rescaled() {
        work.sync_revision();
        work.rescale();
        if is_paused(deployment) {
            work.clean_up();
        }
        work.count();
    } else if is_rolling(deployment) {
        work.create_new()?;
        work.sync_revision();
        if !work.grow_new() && !work.shrink_old() {
            work.clean_up_if_complete();
        }
        work.report();
    } else {
        work.sync_revision();
        if !work.stop_old() && !work.has_old_pods() {
            work.create_new()?;
            work.sync_revision();
            work.size_new();
            work.clean_up_if_complete();
        }
        work.report();
    }
    Ok(work.finish())
}

/// A ReplicaSet and its stored state; `None` for one that is to be created.
struct SetSlot {
    set: ReplicaSet,
    was: Option<ReplicaSet>,
}

struct Rollout<'a> {
    deployment: &'a Deployment,
    /// From the oldest to the newest.
    slots: Vec<SetSlot>,
    /// The index of the ReplicaSet with the Deployment's template.
    new: Option<usize>,
    with_pods: BTreeSet<String>,
    delete: Vec<ReplicaSet>,
    revision: Option<String>,
    status: DeploymentStatus,
    now: Timestamp,
}

impl<'a> Rollout<'a> {
    fn new(observed: PlanInput<'a>) -> Self {
        let PlanInput {
            deployment,
            mut sets,
            with_pods,
            now,
        } = observed;
        sets.sort_by(|one, other| age(one).cmp(&age(other)));
        let template = spec(deployment).map(|spec| &spec.template);
        let new =
            template.and_then(|template| sets.iter().position(|set| has_template(set, template)));
        let slots = sets.into_iter().map(|set| SetSlot {
            was: Some(set.clone()),
            set,
        });
        Self {
            deployment,
            slots: slots.collect(),
            new,
            with_pods,
            delete: Vec::new(),
            revision: None,
            status: deployment.status.clone().unwrap_or_default(),
            now,
        }
    }

    fn sets(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.slots.iter().map(|slot| &slot.set)
    }

    fn new_set(&self) -> Option<&ReplicaSet> {
        self.new.map(|new| &self.slots[new].set)
    }

    /// The indices of all ReplicaSets but the new one, from the oldest.
    fn old(&self) -> impl Iterator<Item = usize> + use<> {
        let new = self.new;
        (0..self.slots.len()).filter(move |place| Some(*place) != new)
    }

    fn old_sets(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old().map(|place| &self.slots[place].set)
    }

    fn size(&self, place: usize) -> i32 {
        size(&self.slots[place].set)
    }

    /// Scales a ReplicaSet and annotates its size. Returns whether the size changes.
    fn scale(&mut self, place: usize, to: i32) -> bool {
        let desired = wanted(self.deployment);
        let max = desired.saturating_add(bounds(self.deployment).surge);
        let set = &mut self.slots[place].set;
        let changes = size(set) != to;
        set.spec.get_or_insert_default().replicas = Some(to);
        revision::annotate_size(&mut set.metadata, desired, max);
        changes
    }

    /// Sets the revision of the new ReplicaSet, and of the Deployment, to the one after all others.
    /// As Kubernetes' `getNewReplicaSet`.
    fn sync_revision(&mut self) {
        let Some(new) = self.new else {
            return;
        };
        let next = revision::highest(self.old_sets()).saturating_add(1);
        let min_ready = spec(self.deployment).and_then(|spec| spec.min_ready_seconds);
        let SetSlot { set, was } = &mut self.slots[new];
        revision::annotate_new(&self.deployment.metadata, &mut set.metadata, next);
        if let Some(spec) = &mut set.spec
            && spec.min_ready_seconds.unwrap_or_default() != min_ready.unwrap_or_default()
        {
            spec.min_ready_seconds = min_ready;
        }
        let annotation =
            |meta: &ObjectMeta| meta.annotations.as_ref()?.get(revision::REVISION).cloned();
        let revision = annotation(&set.metadata);
        if revision != annotation(&self.deployment.metadata) {
            self.revision = revision;
        }
        if conditions::deadline(self.deployment).is_some() {
            let found = format!("Found new replica set {:?}", set.name());
            let created = format!("Created new replica set {:?}", set.name());
            let (reason, message) = match was {
                Some(_) if conditions::get(&self.status, conditions::PROGRESSING).is_some() => {
                    return;
                }
                Some(_) => (conditions::FOUND_REPLICA_SET, found),
                None => (conditions::NEW_REPLICA_SET, created),
            };
            let condition =
                conditions::condition(conditions::PROGRESSING, "True", reason, message, self.now);
            conditions::set(&mut self.status, condition);
        }
    }

    /// Creates the ReplicaSet of the Deployment's template, if there is none.
    fn create_new(&mut self) -> Result<(), serde_json::Error> {
        let Some(spec) = spec(self.deployment).filter(|_| self.new.is_none()) else {
            return Ok(());
        };
        let hash = template::hash(&spec.template, self.status.collision_count)?;
        let mut template = spec.template.clone();
        let labels = template
            .metadata
            .get_or_insert_default()
            .labels
            .get_or_insert_default();
        labels.insert(HASH_LABEL.to_owned(), hash.clone());
        let metadata = ObjectMeta {
            name: Some(set_name(self.deployment.name(), &hash)),
            namespace: self.deployment.metadata.namespace.clone(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner::controller_reference(self.deployment)]),
            ..ObjectMeta::default()
        };
        let mut match_labels = spec.selector.match_labels.clone().unwrap_or_default();
        match_labels.insert(HASH_LABEL.to_owned(), hash);
        let selector = LabelSelector {
            match_labels: Some(match_labels),
            match_expressions: spec.selector.match_expressions.clone(),
        };
        let set = ReplicaSet {
            metadata,
            spec: Some(ReplicaSetSpec {
                min_ready_seconds: spec.min_ready_seconds,
                replicas: Some(0),
                selector,
                template: Some(template),
            }),
            status: None,
        };
        let new = self.slots.len();
        self.slots.push(SetSlot { set, was: None });
        self.new = Some(new);
        let first = new_size(self.deployment, total(self.sets(), size), 0);
        self.scale(new, first);
        Ok(())
    }

    /// As Kubernetes' `reconcileNewReplicaSet`.
    fn grow_new(&mut self) -> bool {
        let Some(new) = self.new.filter(|new| self.slots[*new].was.is_some()) else {
            return true; // It is just being created, with what there is room for.
        };
        let (now, wanted) = (self.size(new), wanted(self.deployment));
        let to = if now > wanted {
            wanted
        } else {
            new_size(self.deployment, total(self.sets(), size), now)
        };
        to != now && self.scale(new, to)
    }

    /// Scales old ReplicaSets down while enough pods stay available: unhealthy pods first, then the
    /// oldest ReplicaSets. As Kubernetes' `reconcileOldReplicaSets`.
    fn shrink_old(&mut self) -> bool {
        let enough = wanted(self.deployment) - bounds(self.deployment).unavailable;
        let missing = self.new_set().map_or(0, |new| size(new) - available(new));
        let mut may_go = total(self.sets(), size) - enough - missing;
        let mut any = false;
        for place in self.old() {
            let set = &self.slots[place].set;
            let unhealthy = (size(set) - available(set)).min(may_go);
            if unhealthy > 0 {
                may_go -= unhealthy;
                any |= self.scale(place, self.size(place) - unhealthy);
            }
        }
        let mut may_go = total(self.sets(), available) - enough;
        for place in self.old() {
            let healthy = self.size(place).min(may_go);
            if healthy > 0 {
                may_go -= healthy;
                any |= self.scale(place, self.size(place) - healthy);
            }
        }
        any
    }

    /// Scales all old ReplicaSets to 0.
    fn stop_old(&mut self) -> bool {
        let mut any = false;
        for place in self.old() {
            any |= self.size(place) != 0 && self.scale(place, 0);
        }
        any
    }

    fn has_old_pods(&self) -> bool {
        let new = self.new_set().map(|new| new.uid().to_owned());
        let of_others = |uid: &String| Some(uid) != new.as_ref();
        let actual = self.old_sets().filter_map(|set| set.status.as_ref());
        actual.into_iter().any(|status| status.replicas > 0) || self.with_pods.iter().any(of_others)
    }

    fn size_new(&mut self) {
        let wanted = wanted(self.deployment);
        if let Some(new) = self.new.filter(|new| self.size(*new) != wanted) {
            self.scale(new, wanted);
        }
    }

    /// Returns whether the Deployment was scaled since its ReplicaSets were.
    fn is_rescaled(&self) -> bool {
        let wanted = i64::from(wanted(self.deployment));
        let active: Vec<_> = self.sets().filter(|set| size(set) > 0).collect();
        if active.len() > 1 && !is_rolling(self.deployment) {
            return false; // There is nothing to be spread: all but one are to go.
        }
        let desired =
            |set: &ReplicaSet| revision::number(&set.metadata, revision::DESIRED_REPLICAS);
        active
            .into_iter()
            .filter_map(desired)
            .any(|desired| desired != wanted)
    }

    /// Applies the Deployment's size to its ReplicaSets: to the only one with replicas, else in
    /// proportion. As Kubernetes' `scale`.
    fn rescale(&mut self) {
        let wanted = wanted(self.deployment);
        let mut active: Vec<usize> = (0..self.slots.len())
            .filter(|place| self.size(*place) > 0)
            .collect();
        if let [] | [_] = active[..] {
            let latest = self.new.or_else(|| self.old().last());
            if let Some(place) = active.first().copied().or(latest) {
                self.scale(place, wanted);
            }
            return;
        }
        if self.is_saturated() {
            self.stop_old();
            return;
        }
        if !is_rolling(self.deployment) {
            return;
        }
        let allowed = match wanted {
            0 => 0,
            _ => wanted.saturating_add(bounds(self.deployment).surge),
        };
        let change = allowed.saturating_sub(total(self.sets(), size));
        // The largest first; among equals the newest if replicas are added, the oldest if they are
        // removed. The indices are in the order of age.
        active.sort_by_key(|place| {
            (
                Reverse(self.size(*place)),
                if change > 0 {
                    Reverse(*place)
                } else {
                    Reverse(usize::MAX - *place)
                },
            )
        });
        let mut open = change;
        let mut sizes = Vec::with_capacity(active.len());
        for place in &active {
            let share = share(self.deployment, &self.slots[*place].set, open);
            open -= share;
            sizes.push(self.size(*place).saturating_add(share));
        }
        // The remainder of the rounding.
        if let Some(largest) = sizes.first_mut() {
            *largest = largest.saturating_add(open).max(0);
        }
        for (place, size) in active.into_iter().zip(sizes) {
            self.scale(place, size);
        }
    }

    /// Returns whether the new ReplicaSet has all replicas, so that the others need none.
    fn is_saturated(&self) -> bool {
        let wanted = wanted(self.deployment);
        self.new_set().is_some_and(|new| {
            let desired = revision::number(&new.metadata, revision::DESIRED_REPLICAS);
            size(new) == wanted && desired == Some(wanted.into()) && available(new) == wanted
        })
    }

    fn clean_up_if_complete(&mut self) {
        let is_complete = |status| conditions::is_complete(self.deployment, status);
        if self.deployment.status.as_ref().is_some_and(is_complete) {
            self.clean_up();
        }
    }

    /// Deletes the oldest revisions beyond the limit, if they have no replicas left.
    fn clean_up(&mut self) {
        const NO_LIMIT: i32 = i32::MAX;
        let limit = spec(self.deployment).and_then(|spec| spec.revision_history_limit);
        let Some(limit) = limit.filter(|limit| *limit != NO_LIMIT) else {
            return;
        };
        let mut old: Vec<&ReplicaSet> = self.old_sets().filter(|set| !set.is_deleting()).collect();
        let surplus = old
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        old.sort_by_key(|set| revision::number(&set.metadata, revision::REVISION));
        let is_empty = |set: &&ReplicaSet| {
            let status = set.status.clone().unwrap_or_default();
            size(set) == 0
                && status.replicas == 0
                && set.metadata.generation <= status.observed_generation
        };
        self.delete = old
            .into_iter()
            .take(surplus)
            .filter(is_empty)
            .cloned()
            .collect();
    }

    fn count(&mut self) {
        let mut status = std::mem::take(&mut self.status);
        let all: Vec<_> = self.sets().collect();
        conditions::count(self.deployment, &all, self.new_set(), &mut status, self.now);
        self.status = status;
    }

    fn report(&mut self) {
        self.count();
        let mut status = std::mem::take(&mut self.status);
        let all: Vec<_> = self.sets().collect();
        conditions::progress(self.deployment, &all, self.new_set(), &mut status, self.now);
        self.status = status;
    }

    fn finish(self) -> DeploymentPlan {
        let deadline = conditions::deadline(self.deployment);
        let due = deadline.and_then(|deadline| conditions::due(&self.status, deadline));
        let (mut create, mut update) = (None, Vec::new());
        for SetSlot { set, was } in self.slots {
            match was {
                None => create = Some(set),
                Some(was) if was == set => {}
                Some(was) => update.push(SetUpdate {
                    from: Some(size(&was)).filter(|from| *from != size(&set)),
                    set,
                }),
            }
        }
        DeploymentPlan {
            create,
            update,
            delete: self.delete,
            revision: self.revision,
            status: self.status,
            // A second more, so that the deadline has passed by then.
            wake: due.map(|due| {
                due.duration_since(self.now).max(SignedDuration::ZERO)
                    + SignedDuration::from_secs(1)
            }),
        }
    }
}

/// The sort key of age: the creation time, then the name.
fn age(set: &ReplicaSet) -> (Option<Timestamp>, &str) {
    let created = set.metadata.creation_timestamp.as_ref();
    (created.map(|time| time.0), set.name())
}

fn has_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let of_set = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    of_set.is_some_and(|of_set| template::same(of_set, template))
}

fn set_name(deployment: &str, hash: &str) -> String {
    let base = deployment
        .get(..DNS1123_SUBDOMAIN_MAX - hash.len() - 1)
        .unwrap_or(deployment);
    format!("{base}-{hash}")
}
