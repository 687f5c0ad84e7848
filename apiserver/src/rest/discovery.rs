//! Discovery: groups, versions and resources, in the legacy form, or aggregated if a client asks
//! for it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderMap;
use podplane_api::{Scope, strategy::Subresource};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    answer::{self, RestAnswer},
    resource::{KindNames, Resource},
};

/// A version of the aggregated form. Older clients know only the beta, and cannot read the other.
#[derive(Clone, Copy)]
struct AggregatedForm {
    parameter: &'static str,
    api_version: &'static str,
    content_type: &'static str,
}

const AGGREGATED: [AggregatedForm; 2] = [
    AggregatedForm {
        parameter: "v=v2",
        api_version: "apidiscovery.k8s.io/v2",
        content_type: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    },
    AggregatedForm {
        parameter: "v=v2beta1",
        api_version: "apidiscovery.k8s.io/v2beta1",
        content_type: "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    },
];

/// The groups that Kubernetes puts first; others follow by name.
const FIRST: [&str; 4] = [
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
];

/// A version of a group, and its kinds.
pub(super) type Versions<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a KindNames>>;

pub(super) fn versions(kinds: &[Arc<dyn Resource>]) -> Versions<'_> {
    let mut versions = Versions::new();
    for names in kinds.iter().map(|kind| kind.names()) {
        let kinds = versions
            .entry((&*names.group, &*names.version))
            .or_default();
        kinds.push(names);
    }
    versions
        .values_mut()
        .for_each(|kinds| kinds.sort_by(|one, other| one.plural.cmp(&other.plural)));
    versions
}

/// The client's preferred form, if it is an aggregated one.
fn wants_aggregated(headers: &HeaderMap) -> Option<AggregatedForm> {
    answer::accepted(headers).split(',').find_map(|range| {
        let parameters: Vec<_> = range.split(';').map(str::trim).collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        match has("g=apidiscovery.k8s.io") && has("as=APIGroupDiscoveryList") {
            true => AGGREGATED
                .iter()
                .find(|form| has(form.parameter))
                .map(|form| Some(*form)),
            // Later ranges are preferred less.
            false => ["application/json", "*/*"]
                .contains(&parameters[0])
                .then_some(None),
        }
    })?
}

fn json(headers: &HeaderMap, document: &Value) -> RestAnswer {
    answer::unchanged(
        headers,
        "application/json",
        document.to_string().into(),
        None,
    )
}

/// `/`: the served paths.
pub(super) fn root(kinds: &[Arc<dyn Resource>], headers: &HeaderMap) -> RestAnswer {
    let mut paths: BTreeSet<_> = [
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/livez/ping",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/readyz/ping",
        "/readyz/shutdown",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for (group, version) in versions(kinds).keys() {
        if group.is_empty() {
            paths.insert(format!("/api/{version}"));
        } else {
            paths.insert(format!("/apis/{group}"));
            paths.insert(format!("/apis/{group}/{version}"));
        }
    }
    json(headers, &json!({"paths": paths}))
}

/// `/api`: the versions of the group without a name.
pub(super) fn core(kinds: &[Arc<dyn Resource>], headers: &HeaderMap) -> RestAnswer {
    let all = versions(kinds);
    if let Some(form) = wants_aggregated(headers) {
        return aggregated(headers, form, &all, |group| group.is_empty());
    }
    let versions: Vec<_> = all
        .keys()
        .filter(|(group, _)| group.is_empty())
        .map(|(_, version)| *version)
        .collect();
    let document =
        json!({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []});
    json(headers, &document)
}

/// `/apis`: the groups that have a name.
pub(super) fn groups(kinds: &[Arc<dyn Resource>], headers: &HeaderMap) -> RestAnswer {
    let all = versions(kinds);
    if let Some(form) = wants_aggregated(headers) {
        return aggregated(headers, form, &all, |group| !group.is_empty());
    }
    let groups: Vec<_> = by_group(&all)
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| self::group_of(group, &versions))
        .collect();
    json(
        headers,
        &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
    )
}

/// `/apis/GROUP`
pub(super) fn group(kinds: &[Arc<dyn Resource>], name: &str, headers: &HeaderMap) -> RestAnswer {
    let all = versions(kinds);
    match by_group(&all).into_iter().find(|(group, _)| *group == name) {
        Some((group, versions)) if !group.is_empty() => {
            let mut document = group_of(group, &versions);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            json(headers, &document)
        }
        _ => answer::no_such_path(),
    }
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub(super) fn resources(
    kinds: &[Arc<dyn Resource>],
    group: &str,
    version: &str,
    headers: &HeaderMap,
) -> RestAnswer {
    let all = versions(kinds);
    let Some(names) = all.get(&(group, version)) else {
        return answer::no_such_path();
    };
    let group_version = names.first().map(|names| names.api_version());
    let resources: Vec<_> = names.iter().flat_map(|names| legacy(names)).collect();
    let document = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources});
    json(headers, &document)
}

/// Groups and their versions, in the order in which clients look for a kind.
fn by_group<'a>(versions: &Versions<'a>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for (group, version) in versions.keys() {
        let first = FIRST.iter().position(|first| first == group);
        let order = (first.unwrap_or(FIRST.len()), *group);
        groups.entry(order).or_default().push(*version);
    }
    groups
        .into_iter()
        .map(|((_, group), mut versions)| {
            versions.sort_by(|one, other| version_order(one).cmp(&version_order(other)));
            (group, versions)
        })
        .collect()
}

/// The order of versions in which later ones are preferred, as in Kubernetes
/// (`apimachinery/pkg/version.CompareKubeAwareVersionStrings`): names that are not versions,
/// alphas, betas, and the others, each by their numbers.
fn version_order(version: &str) -> (u8, u32, u32, Reverse<&str>) {
    let digits = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len())
    };
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let (major, rest) = rest.split_at(digits(rest));
        let major = major.parse::<u32>().ok()?;
        let (stability, minor) = match rest {
            "" => return Some((3, major, 0)),
            rest if rest.starts_with("beta") => (2, &rest[4..]),
            rest => (1, rest.strip_prefix("alpha")?),
        };
        Some((stability, major, minor.parse::<u32>().ok()?))
    };
    match parse() {
        Some((stability, major, minor)) => (stability, major, minor, Reverse("")),
        None => (0, 0, 0, Reverse(version)),
    }
}

fn group_of(group: &str, versions: &[&str]) -> Value {
    let each =
        |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let versions: Vec<_> = versions.iter().map(each).collect();
    json!({"name": group, "versions": versions, "preferredVersion": versions.last()})
}

fn legacy(names: &KindNames) -> Vec<Value> {
    let mut whole = json!({
        "name": names.plural,
        "singularName": names.singular,
        "namespaced": names.scope == Scope::Namespaced,
        "kind": names.kind,
        "verbs": names.verbs,
    });
    if names.verbs.contains(&"list") {
        whole["storageVersionHash"] = storage_version_hash(names).into();
    }
    if !names.short.is_empty() {
        whole["shortNames"] = json!(names.short);
    }
    if !names.categories.is_empty() {
        whole["categories"] = json!(names.categories);
    }
    let mut all = vec![whole];
    for subresource in &*names.subresources {
        let response = about(names, *subresource);
        let mut part = json!({
            "name": format!("{}/{}", names.plural, subresource.name()),
            "singularName": "",
            "namespaced": names.scope == Scope::Namespaced,
            "kind": response.kind,
            "verbs": response.verbs,
        });
        if response.group != names.group {
            part["group"] = response.group.into();
            part["version"] = response.version.into();
        }
        all.push(part);
    }
    all
}

/// A hash that changes when a kind is stored in another version.
fn storage_version_hash(names: &KindNames) -> String {
    let kind = format!("{}/{}/{}", names.group, names.version, names.kind);
    BASE64_STANDARD.encode(&Sha256::digest(kind)[..8])
}

/// The kind that a sub-resource accepts and returns, and its verbs.
pub(super) struct SubresourceKind<'a> {
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    pub(super) verbs: &'static [&'static str],
}

pub(super) fn about(names: &KindNames, subresource: Subresource) -> SubresourceKind<'_> {
    let own = |kind, verbs| SubresourceKind {
        group: &names.group,
        version: &names.version,
        kind,
        verbs,
    };
    match subresource {
        Subresource::Status => own(&names.kind, &["get", "patch", "update"]),
        Subresource::Scale => SubresourceKind {
            group: "autoscaling",
            version: "v1",
            kind: "Scale",
            verbs: &["get", "patch", "update"],
        },
        Subresource::Binding => own("Binding", &["create"]),
        Subresource::Log => own(&names.kind, &["get"]),
        Subresource::Attach => own("PodAttachOptions", &["create", "get"]),
        Subresource::Exec => own("PodExecOptions", &["create", "get"]),
        Subresource::PortForward => own("PodPortForwardOptions", &["create", "get"]),
        Subresource::Approval => own(&names.kind, &["get", "patch", "update"]),
        Subresource::Token => SubresourceKind {
            group: "authentication.k8s.io",
            version: "v1",
            kind: "TokenRequest",
            verbs: &["create"],
        },
        Subresource::Eviction => SubresourceKind {
            group: "policy",
            version: "v1",
            kind: "Eviction",
            verbs: &["create"],
        },
    }
}

/// `APIGroupDiscoveryList`: all groups in one answer.
fn aggregated(
    headers: &HeaderMap,
    form: AggregatedForm,
    all: &Versions<'_>,
    wanted: impl Fn(&str) -> bool,
) -> RestAnswer {
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
    let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": form.api_version, "metadata": {}, "items": groups});
    answer::unchanged(
        headers,
        form.content_type,
        document.to_string().into(),
        None,
    )
}

fn discovered(names: &KindNames) -> Value {
    let kind = |kind: &SubresourceKind<'_>| json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let scope = match names.scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let subresources: Vec<_> = names.subresources.iter().map(|subresource| {
        let part = about(names, *subresource);
        json!({"subresource": subresource.name(), "responseKind": kind(&part), "verbs": part.verbs})
    }).collect();
    let mut document = json!({
        "resource": names.plural,
        "responseKind": {"group": names.group, "version": names.version, "kind": names.kind},
        "scope": scope,
        "singularResource": names.singular,
        "verbs": names.verbs,
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
