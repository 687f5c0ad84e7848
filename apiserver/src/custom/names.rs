//! The names of custom kinds: which of them a definition may have, since those of a group are
//! accepted once (source: `pkg/controller/status/naming_controller.go` of apiextensions-apiserver).

use std::collections::BTreeSet;

use podplane_api::apiextensions::{CustomResourceDefinition, CustomResourceDefinitionNames};

/// The names that a definition has, and the reason why it does not have all that it asks for.
#[derive(Debug, PartialEq)]
pub(super) struct AcceptedNames {
    pub(super) names: CustomResourceDefinitionNames,
    /// The reason and the message of the condition, if a name is taken.
    pub(super) conflict: Option<(&'static str, String)>,
}

/// Decides which names a definition has among all definitions.
pub(super) fn accept<'a>(
    definition: &CustomResourceDefinition,
    all: impl IntoIterator<Item = &'a CustomResourceDefinition>,
) -> AcceptedNames {
    let group = &definition.spec.group;
    let accepted = all
        .into_iter()
        .filter(|other| other.spec.group == *group)
        .filter_map(|other| other.status.as_ref()?.accepted_names.as_ref());
    let mut resources = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for names in accepted {
        resources.insert(names.plural.as_str());
        resources.extend(names.singular.as_deref());
        resources.extend(names.short_names.iter().flatten().map(String::as_str));
        kinds.insert(names.kind.as_str());
        kinds.extend(names.list_kind.as_deref());
    }
    // An absent name is not taken.
    resources.remove("");
    kinds.remove("");
    let wanted = &definition.spec.names;
    let status = definition.status.as_ref();
    let own = status.and_then(|status| status.accepted_names.clone());
    let own = own.unwrap_or_default();
    let mut names = own.clone();
    let mut conflict = None;
    let mut judge = |reason, wanted: &str, own: &str, taken: &BTreeSet<&str>| {
        let is_free = wanted == own || !taken.contains(wanted);
        if !is_free {
            conflict = Some((reason, format!("{wanted:?} is already in use")));
        }
        is_free
    };
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    if judge("PluralConflict", &wanted.plural, &own.plural, &resources) {
        names.plural.clone_from(&wanted.plural);
    }
    let (singular, own_singular) = (text(&wanted.singular), text(&own.singular));
    if judge("SingularConflict", &singular, &own_singular, &resources) {
        names.singular.clone_from(&wanted.singular);
    }
    let own_short = own.short_names.clone().unwrap_or_default();
    let short = wanted.short_names.iter().flatten();
    let new = short.filter(|name| !own_short.contains(name));
    let free: Vec<_> = new
        .map(|name| judge("ShortNamesConflict", name, "", &resources))
        .collect();
    if free.into_iter().all(|is_free| is_free) {
        names.short_names.clone_from(&wanted.short_names);
    }
    if judge("KindConflict", &wanted.kind, &own.kind, &kinds) {
        names.kind.clone_from(&wanted.kind);
    }
    let (list, own_list) = (text(&wanted.list_kind), text(&own.list_kind));
    if judge("ListKindConflict", &list, &own_list, &kinds) {
        names.list_kind.clone_from(&wanted.list_kind);
    }
    names.categories.clone_from(&wanted.categories);
    AcceptedNames { names, conflict }
}
