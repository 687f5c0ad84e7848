//! The history of a workload's template, in ControllerRevisions.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::join_all;
use podplane_api::{
    Object, RawExtension, apps::ControllerRevision, core::PodTemplateSpec, meta::ObjectMeta,
};
use podplane_client::{ApiError, Client, DeleteParams, Reason, answered};
use serde_json::json;

use crate::{
    adopt::Adoption,
    index::ObjectIndex,
    owner::{controller_reference, is_controlled_by},
    template,
    work::unless_gone,
    workloads::PodOwner,
};

/// The label of pods with the revision of the template that they are made from.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

/// The revisions that are kept if the workload does not say how many.
const KEPT: i32 = 10;

/// A workload with its history.
#[derive(Debug)]
pub(crate) struct History<'a, O> {
    client: &'a Client,
    owner: &'a O,
    /// The label of revisions with their hash.
    label: &'static str,
}

/// The revision of the present template.
#[derive(Debug)]
pub(crate) enum Present {
    /// It is stored.
    Stored(Box<ControllerRevision>),
    /// Another object has its name: the hash is to be computed with a higher count of collisions.
    Collision,
}

/// The write that makes the present template the newest revision.
#[derive(Debug, PartialEq)]
enum RevisionWrite {
    None(ControllerRevision),
    Create(ControllerRevision),
    Renumber(ControllerRevision),
}

impl<'a, O: PodOwner> History<'a, O> {
    pub(crate) fn new(client: &'a Client, owner: &'a O, label: &'static str) -> Self {
        Self {
            client,
            owner,
            label,
        }
    }

    /// The revisions of the workload, by number.
    pub(crate) async fn claim(
        &self,
        index: &ObjectIndex<ControllerRevision>,
    ) -> Result<Vec<Arc<ControllerRevision>>, ApiError> {
        let (namespace, selector) = (self.owner.namespace(), self.owner.selector());
        let mut candidates = index.controlled(namespace, self.owner.uid());
        if !selector.is_empty() {
            candidates.extend(index.controlled(namespace, ""));
        }
        let adoption = Adoption::new(self.client, self.owner);
        let mut claimed = adoption.claim(&selector, candidates).await?;
        claimed.sort_by_key(|revision| (revision.revision, revision.name().to_owned()));
        Ok(claimed)
    }

    /// Makes the present template the newest revision: a former one that is equal gets a new
    /// number.
    pub(crate) async fn present(
        &self,
        template: &PodTemplateSpec,
        collisions: Option<i32>,
        revisions: &[Arc<ControllerRevision>],
    ) -> Result<Present, ApiError> {
        let write = plan(self.owner, self.label, template, collisions, revisions);
        let write = write.map_err(|error| {
            ApiError::new(Reason::InternalError, format!("invalid template: {error}"))
        })?;
        let api = self
            .client
            .namespaced::<ControllerRevision>(self.owner.namespace());
        let new = match write {
            RevisionWrite::None(stored) => return Ok(Present::Stored(Box::new(stored))),
            RevisionWrite::Renumber(revision) => {
                let written = answered(api.update(&revision)).await?;
                return Ok(Present::Stored(Box::new(written)));
            }
            RevisionWrite::Create(new) => new,
        };
        match answered(api.create(&new)).await {
            Ok(created) => Ok(Present::Stored(Box::new(created))),
            Err(error) if error.is_already_exists() => {
                let found = answered(api.get(new.name())).await?;
                let is_same = is_controlled_by(&found.metadata, self.owner)
                    && template_of(&found).is_some_and(|of| template::same(&of, template));
                if is_same {
                    return Ok(Present::Stored(Box::new(found)));
                }
                tracing::info!(owner = %self.owner.key(), kind = O::KIND, revision = new.name(), "hash collision: another ControllerRevision has that name");
                Ok(Present::Collision)
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the oldest revisions that nothing uses, beyond the number that the workload keeps.
    pub(crate) async fn prune(
        &self,
        revisions: &[Arc<ControllerRevision>],
        live: &BTreeSet<String>,
        limit: Option<i32>,
    ) -> Result<(), ApiError> {
        let api = self
            .client
            .namespaced::<ControllerRevision>(self.owner.namespace());
        let deletions = surplus(revisions, live, limit).map(|revision| {
            let api = api.clone();
            async move {
                let params = DeleteParams {
                    uid: revision.metadata.uid.clone(),
                    ..DeleteParams::default()
                };
                unless_gone(answered(api.delete(revision.name(), &params)).await)
            }
        });
        join_all(deletions).await.into_iter().collect()
    }
}

fn plan<O: PodOwner>(
    owner: &O,
    label: &str,
    template: &PodTemplateSpec,
    collisions: Option<i32>,
    revisions: &[Arc<ControllerRevision>],
) -> Result<RevisionWrite, serde_json::Error> {
    let is_same = |revision: &&Arc<ControllerRevision>| {
        template_of(revision).is_some_and(|of| template::same(&of, template))
    };
    let highest = revisions.last().map_or(0, |revision| revision.revision);
    if let Some(same) = revisions.iter().rev().find(is_same) {
        let mut same = ControllerRevision::clone(same);
        if same.revision == highest {
            return Ok(RevisionWrite::None(same));
        }
        same.revision = highest + 1;
        return Ok(RevisionWrite::Renumber(same));
    }
    let hash = template::hash(template, collisions)?;
    let mut labels = template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.clone())
        .unwrap_or_default();
    labels.insert(label.to_owned(), hash.clone());
    Ok(RevisionWrite::Create(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name())),
            namespace: owner.metadata().namespace.clone(),
            labels: Some(labels),
            // They have the cause of the change, which `kubectl rollout history` shows.
            annotations: owner.metadata().annotations.clone(),
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(data(template)?),
        revision: highest + 1,
    }))
}

fn surplus<'a>(
    revisions: &'a [Arc<ControllerRevision>],
    live: &'a BTreeSet<String>,
    limit: Option<i32>,
) -> impl Iterator<Item = &'a Arc<ControllerRevision>> {
    let old = |revision: &&Arc<ControllerRevision>| !live.contains(revision.name());
    let limit = usize::try_from(limit.unwrap_or(KEPT)).unwrap_or_default();
    let count = revisions.iter().filter(old).count().saturating_sub(limit);
    revisions.iter().filter(old).take(count)
}

/// The data of a revision: a patch of the workload that restores the template, as
/// `kubectl rollout undo` applies it.
fn data(template: &PodTemplateSpec) -> Result<RawExtension, serde_json::Error> {
    let mut template = serde_json::to_value(template)?;
    template["$patch"] = "replace".into();
    Ok(RawExtension(json!({"spec": {"template": template}})))
}

/// The template that a revision restores.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// The error of a workload whose template has the hash of another one: it is reconciled again.
pub(crate) fn collision() -> ApiError {
    ApiError::new(Reason::Conflict, "hash collision of a ControllerRevision")
}

/// The hash of a revision, or of what is made from it, from its label.
pub(crate) fn hash<'a, K: Object>(object: &'a K, label: &str) -> &'a str {
    let labels = object.metadata().labels.as_ref();
    let hash = labels.and_then(|labels| labels.get(label));
    hash.map(String::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use podplane_api::apps::DaemonSet;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": image}]},
        }))
        .unwrap()
    }

    fn set() -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u", "annotations": {"kubernetes.io/change-cause": "why"}},
        }))
        .unwrap()
    }

    fn planned(image: &str, revisions: &[Arc<ControllerRevision>]) -> RevisionWrite {
        plan(&set(), HASH_LABEL, &template(image), None, revisions).unwrap()
    }

    #[test]
    fn an_old_template_gets_a_new_number() {
        let RevisionWrite::Create(first) = planned("1", &[]) else {
            panic!("a new revision");
        };
        assert_eq!(first.revision, 1);
        assert_eq!(first.name(), format!("web-{}", hash(&first, HASH_LABEL)));
        let cause = first.metadata.annotations.as_ref().unwrap();
        assert_eq!(cause["kubernetes.io/change-cause"], "why");
        let data = &first.data.as_ref().unwrap().0;
        assert_eq!(data["spec"]["template"]["$patch"], "replace");
        assert_eq!(template_of(&first), Some(template("1")));
        let first = Arc::new(first);
        let RevisionWrite::Create(second) = planned("2", std::slice::from_ref(&first)) else {
            panic!("a new revision");
        };
        assert_eq!(second.revision, 2);
        let both = [first.clone(), Arc::new(second.clone())];
        assert_eq!(planned("2", &both), RevisionWrite::None(second));
        let again = ControllerRevision {
            revision: 3,
            ..ControllerRevision::clone(&first)
        };
        assert_eq!(planned("1", &both), RevisionWrite::Renumber(again));
    }

    #[test]
    fn keeps_what_is_used_and_the_newest() {
        let revision = |number: i64| {
            let mut revision = ControllerRevision::default();
            revision.metadata.name = Some(number.to_string());
            revision.revision = number;
            Arc::new(revision)
        };
        let all: Vec<_> = (1..=6).map(revision).collect();
        let live = BTreeSet::from(["1".to_owned(), "6".to_owned()]);
        let pruned = |limit| -> Vec<i64> {
            let surplus = surplus(&all, &live, limit);
            surplus.map(|revision| revision.revision).collect()
        };
        assert_eq!(pruned(Some(2)), [2, 3]);
        assert_eq!(pruned(Some(0)), [2, 3, 4, 5]);
        assert_eq!(pruned(None), [0; 0]);
    }
}
