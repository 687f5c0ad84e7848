//! The admission of PriorityClasses, and of new pods by them (source: Kubernetes' admission plugin
//! `Priority`).

use futures::{FutureExt as _, future::BoxFuture, future::ready};
use podplane_api::{
    Object as _, ObjectKey,
    core::Pod,
    kinds::{
        pod::set_priority,
        priority_class::{class_name, default_priority_class, missing_class},
    },
    scheduling::PriorityClass,
};
use podplane_proto::error::ApiError;
use podplane_store::{Item, ListQuery};
use serde::Deserialize;

use super::{Admission, CommitAdditions, MutatingAdmission, ProposedChange};
use crate::{engine::Engine, error, storage};

/// Sets the priority of new pods. Pods keep theirs when classes change.
#[derive(Debug)]
pub(crate) struct PodPriority(Engine);

impl PodPriority {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }

    /// The class that the pod names, or the global default if there is one.
    async fn class(&self, pod: &Pod) -> Result<Option<PriorityClass>, ApiError> {
        let Some(name) = class_name(pod) else {
            return global_default(&self.0).await;
        };
        let missing = || error::forbidden::<Pod>(pod.name(), &missing_class(name));
        // A slash would make the key of another object.
        if name.contains('/') {
            return Err(missing());
        }
        let key = storage::key::<PriorityClass>(&ObjectKey::new("", name));
        let key = key.map_err(|_too_long| missing())?;
        let found = storage::get::<PriorityClass>(&self.0, &key).await?;
        let (class, _revision) = found.ok_or_else(missing)?;
        Ok(Some(class))
    }
}

impl MutatingAdmission<Pod> for PodPriority {
    fn complete<'a>(&'a self, pod: &'a mut Pod) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let class = self.class(pod).await?;
            set_priority(pod, class.as_ref())
                .map_err(|why| error::forbidden::<Pod>(pod.name(), &why))
        }
        .boxed()
    }
}

/// Refuses a second global default. Two that are created at the same moment are both stored, as in
/// Kubernetes; [`default_priority_class`] chooses.
#[derive(Debug)]
pub(crate) struct SingleDefaultClass(Engine);

impl SingleDefaultClass {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }
}

impl Admission<PriorityClass> for SingleDefaultClass {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, PriorityClass>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        async move {
            let additions = CommitAdditions::default();
            let Some(class) = change
                .new
                .filter(|class| class.global_default == Some(true))
            else {
                return Ok(additions);
            };
            match global_default(&self.0).await? {
                Some(other) if change.old.is_none() || other.name() != class.name() => {
                    let why = format!(
                        "PriorityClass {} is already marked as default. Only one default can exist",
                        other.name()
                    );
                    Err(error::forbidden::<PriorityClass>(class.name(), &why))
                }
                _ => Ok(additions),
            }
        }
        .boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, PriorityClass>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // There are no guards.
        ready(Ok(())).boxed()
    }
}

async fn global_default(engine: &Engine) -> Result<Option<PriorityClass>, ApiError> {
    let query = ListQuery {
        prefix: storage::prefix::<PriorityClass>(),
        ..ListQuery::default()
    };
    let found = engine.list(query).await.map_err(error::store)?;
    // Asked for each new pod, and most classes are none.
    let defaults = found.items.iter().filter(|item| is_default(item));
    let classes: Result<_, _> = defaults.map(|item| storage::decode(item)).collect();
    let classes: Vec<PriorityClass> = classes.map_err(|error| error::internal(&error))?;
    Ok(default_priority_class(classes))
}

/// True if a stored class is a global default, or cannot be read.
fn is_default(class: &Item) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Class {
        #[serde(default)]
        global_default: bool,
    }

    let class = serde_json::from_slice(&class.value());
    class.map_or(true, |Class { global_default }| global_default)
}
