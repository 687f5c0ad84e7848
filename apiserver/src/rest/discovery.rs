//! What there is: groups, versions, resources; in the legacy form, or aggregated where a client asks for that.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, StatusCode};
use podplane_api::Scope;
use serde_json::{Value, json};

use super::{
    answer::{self, Answer},
    resource::{Names, Resource, Subresource},
};

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A version of a group, and its kinds.
pub(super) type Versions<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Names>>;

pub(super) fn versions(kinds: &[Arc<dyn Resource>]) -> Versions<'_> {
    let mut versions = Versions::new();
    for names in kinds.iter().map(|kind| kind.names()) {
        let kinds = versions.entry((names.group, names.version)).or_default();
        kinds.push(names);
    }
    versions
        .values_mut()
        .for_each(|kinds| kinds.sort_by_key(|names| names.plural));
    versions
}

/// Whether the client takes the aggregated form. Older ones ask for its beta version only, and get the legacy form.
fn wants_aggregated(headers: &HeaderMap) -> bool {
    let mut ranges = answer::accepted(headers).split(',');
    ranges.any(|range| {
        range.contains("g=apidiscovery.k8s.io")
            && range.split(';').any(|parameter| parameter.trim() == "v=v2")
    })
}

/// `/api`: the versions of the group without a name.
pub(super) fn core(kinds: &[Arc<dyn Resource>], headers: &HeaderMap) -> Answer {
    let all = versions(kinds);
    if wants_aggregated(headers) {
        return aggregated(&all, |group| group.is_empty());
    }
    let versions: Vec<_> = all
        .keys()
        .filter(|(group, _)| group.is_empty())
        .map(|(_, version)| *version)
        .collect();
    let document =
        json!({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []});
    answer::document(StatusCode::OK, &document)
}

/// `/apis`: the groups that have a name.
pub(super) fn groups(kinds: &[Arc<dyn Resource>], headers: &HeaderMap) -> Answer {
    let all = versions(kinds);
    if wants_aggregated(headers) {
        return aggregated(&all, |group| !group.is_empty());
    }
    let groups: Vec<_> = by_group(&all)
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| self::group_of(group, &versions))
        .collect();
    answer::document(
        StatusCode::OK,
        &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
    )
}

/// `/apis/GROUP`
pub(super) fn group(kinds: &[Arc<dyn Resource>], name: &str) -> Answer {
    let all = versions(kinds);
    match by_group(&all).remove_entry(name) {
        Some((group, versions)) if !group.is_empty() => {
            let mut document = group_of(group, &versions);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            answer::document(StatusCode::OK, &document)
        }
        _ => answer::no_such_path(),
    }
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub(super) fn resources(kinds: &[Arc<dyn Resource>], group: &str, version: &str) -> Answer {
    let all = versions(kinds);
    let Some(names) = all.get(&(group, version)) else {
        return answer::no_such_path();
    };
    let group_version = names.first().map(|names| names.api_version());
    let resources: Vec<_> = names.iter().flat_map(|names| legacy(names)).collect();
    let document = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources});
    answer::document(StatusCode::OK, &document)
}

fn by_group<'a>(versions: &Versions<'a>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for (group, version) in versions.keys() {
        groups.entry(*group).or_default().push(*version);
    }
    groups
}

fn group_of(group: &str, versions: &[&str]) -> Value {
    let each =
        |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let versions: Vec<_> = versions.iter().map(each).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.last()})
}

fn legacy(names: &Names) -> Vec<Value> {
    let mut whole = json!({
        "name": names.plural,
        "singularName": names.singular,
        "namespaced": names.scope == Scope::Namespaced,
        "kind": names.kind,
        "verbs": VERBS,
    });
    if !names.short.is_empty() {
        whole["shortNames"] = json!(names.short);
    }
    if !names.categories.is_empty() {
        whole["categories"] = json!(names.categories);
    }
    let mut all = vec![whole];
    for subresource in names.subresources {
        let (response, verbs) = about(names, *subresource);
        let mut part = json!({
            "name": format!("{}/{}", names.plural, subresource.name()),
            "singularName": "",
            "namespaced": names.scope == Scope::Namespaced,
            "kind": response.kind,
            "verbs": verbs,
        });
        if response.group != names.group {
            part["group"] = response.group.into();
            part["version"] = response.version.into();
        }
        all.push(part);
    }
    all
}

struct ResponseKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

fn about(names: &Names, subresource: Subresource) -> (ResponseKind, &'static [&'static str]) {
    let own = |kind| ResponseKind {
        group: names.group,
        version: names.version,
        kind,
    };
    match subresource {
        Subresource::Status => (own(names.kind), &["get", "patch", "update"]),
        Subresource::Binding => (own("Binding"), &["create"]),
        Subresource::Eviction => (
            ResponseKind {
                group: "policy",
                version: "v1",
                kind: "Eviction",
            },
            &["create"],
        ),
    }
}

/// `APIGroupDiscoveryList`: all in one answer.
fn aggregated(all: &Versions<'_>, wanted: impl Fn(&str) -> bool) -> Answer {
    let groups: Vec<_> = by_group(all)
        .into_iter()
        .filter(|(group, _)| wanted(group))
        .map(|(group, versions)| {
            let versions: Vec<_> = versions
                .iter()
                .rev()
                .map(|version| {
                    let names = all.get(&(group, *version)).into_iter().flatten();
                    let resources: Vec<_> = names.map(|names| discovered(names)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = group.into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": groups});
    answer::typed(StatusCode::OK, AGGREGATED, &document)
}

fn discovered(names: &Names) -> Value {
    let kind = |kind: ResponseKind| json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let scope = match names.scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let subresources: Vec<_> = names.subresources.iter().map(|subresource| {
        let (response, verbs) = about(names, *subresource);
        json!({"subresource": subresource.name(), "responseKind": kind(response), "verbs": verbs})
    }).collect();
    let mut document = json!({
        "resource": names.plural,
        "responseKind": {"group": names.group, "version": names.version, "kind": names.kind},
        "scope": scope,
        "singularResource": names.singular,
        "verbs": VERBS,
    });
    if !names.short.is_empty() {
        document["shortNames"] = json!(names.short);
    }
    if !names.categories.is_empty() {
        document["categories"] = json!(names.categories);
    }
    if !subresources.is_empty() {
        document["subresources"] = subresources.into();
    }
    document
}
