//! Deployments, ReplicaSets and ControllerRevisions as rows.

use jiff::Timestamp;

use super::{Column, NONE, Row, always, created, integer, wide};
use crate::{
    Object as _,
    apps::{ControllerRevision, Deployment, DeploymentStatus, ReplicaSet},
    core::{Container, PodTemplateSpec},
    meta,
    selector::LabelSelector,
};

impl Row for Deployment {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("READY"),
        always("UP-TO-DATE"),
        always("AVAILABLE"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let none = DeploymentStatus::default();
        let status = self.status.as_ref().unwrap_or(&none);
        let spec = self.spec.clone().unwrap_or_default();
        let [containers, images] = containers(Some(&spec.template));
        vec![
            self.name().into(),
            format!("{}/{}", count(status.ready_replicas), count(spec.replicas)),
            count(status.updated_replicas).to_string(),
            count(status.available_replicas).to_string(),
            created(self, now),
            containers,
            images,
            selector(&spec.selector),
        ]
    }
}

impl Row for ReplicaSet {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("DESIRED"),
        integer("CURRENT"),
        integer("READY"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.as_ref();
        let spec = self.spec.clone().unwrap_or_default();
        let [containers, images] = containers(spec.template.as_ref());
        vec![
            self.name().into(),
            count(spec.replicas).to_string(),
            status.map_or(0, |status| status.replicas).to_string(),
            count(status.and_then(|status| status.ready_replicas)).to_string(),
            created(self, now),
            containers,
            images,
            selector(&spec.selector),
        ]
    }
}

impl Row for ControllerRevision {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CONTROLLER"),
        always("REVISION"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            controller(&self.metadata).unwrap_or_else(|| NONE.into()),
            self.revision.to_string(),
            created(self, now),
        ]
    }
}

fn count(number: Option<i32>) -> i32 {
    number.unwrap_or_default()
}

/// The names and the images of a template's containers.
fn containers(template: Option<&PodTemplateSpec>) -> [String; 2] {
    let spec = template.and_then(|template| template.spec.as_ref());
    let all = spec.map_or(&[][..], |spec| &spec.containers);
    let join = |part: fn(&Container) -> &str| all.iter().map(part).collect::<Vec<_>>().join(",");
    [
        join(|container| &container.name),
        join(|container| container.image.as_deref().unwrap_or_default()),
    ]
}

fn selector(selector: &meta::LabelSelector) -> String {
    let selector = LabelSelector::from(selector);
    if selector.is_empty() {
        return NONE.into();
    }
    selector.to_string()
}

/// `deployment.apps/web`
fn controller(meta: &meta::ObjectMeta) -> Option<String> {
    let mut owners = meta.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let group = match owner.api_version.split_once('/') {
        Some((group, _)) => format!(".{group}"),
        None => String::new(),
    };
    Some(format!(
        "{}{group}/{}",
        owner.kind.to_lowercase(),
        owner.name
    ))
}
