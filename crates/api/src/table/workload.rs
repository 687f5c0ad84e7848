//! The cells that tables of workloads share.

use std::collections::BTreeMap;

use super::NONE;
use crate::{
    core::{Container, PodTemplateSpec},
    meta,
    selector::LabelSelector,
};

/// A number that is 0 if absent.
pub(crate) fn count(number: Option<i32>) -> i32 {
    number.unwrap_or_default()
}

/// The names and the images of a template's containers.
pub(crate) fn containers(template: Option<&PodTemplateSpec>) -> [String; 2] {
    let spec = template.and_then(|template| template.spec.as_ref());
    let all = spec.map_or(&[][..], |spec| &spec.containers);
    let join = |part: fn(&Container) -> &str| all.iter().map(part).collect::<Vec<_>>().join(",");
    [
        join(|container| &container.name),
        join(|container| container.image.as_deref().unwrap_or_default()),
    ]
}

/// A selector as text.
pub(crate) fn selector(selector: &meta::LabelSelector) -> String {
    let selector = LabelSelector::from(selector);
    if selector.is_empty() {
        return NONE.into();
    }
    selector.to_string()
}

/// Labels, or a selector that is a map of labels, as text.
pub(crate) fn labels(labels: Option<&BTreeMap<String, String>>) -> String {
    let each = labels.into_iter().flatten();
    let each: Vec<_> = each.map(|(key, value)| format!("{key}={value}")).collect();
    match each.is_empty() {
        true => NONE.into(),
        false => each.join(","),
    }
}

/// The controlling owner, such as `deployment.apps/web`.
pub(crate) fn controller(meta: &meta::ObjectMeta) -> Option<String> {
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
