//! InterPodAffinity.

use podplane_api::core::Namespace;

use super::*;
use crate::explain::Examination;

const NEAR: &str = "node(s) didn't match pod affinity rules";
const APART: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

fn nodes() -> [NodeBuilder; 3] {
    let node = |name, zone| NodeBuilder::new(name).label("zone", zone);
    [node("a", "x"), node("b", "x"), node("c", "y")]
}

fn app(name: &str, app: &str) -> PodBuilder {
    PodBuilder::new(name).set("/metadata/labels", json!({"app": app}))
}

fn term(app: &str) -> Value {
    json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}})
}

fn with(term: &Value, field: &str, value: Value) -> Value {
    let mut changed = term.clone();
    changed[field] = value;
    changed
}

/// Adds terms under `podAffinity` or `podAntiAffinity`.
fn require(pod: PodBuilder, kind: &str, terms: &[Value]) -> PodBuilder {
    let list = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
    pod.set("/spec/affinity", json!({kind: list}))
}

fn prefer(pod: PodBuilder, kind: &str, weight: i32, term: &Value) -> PodBuilder {
    let term = json!({"weight": weight, "podAffinityTerm": term});
    let list = json!({"preferredDuringSchedulingIgnoredDuringExecution": [term]});
    pod.set("/spec/affinity", json!({kind: list}))
}

fn namespace(name: &str, team: &str) -> Namespace {
    let metadata = json!({"name": name, "labels": {"team": team}});
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

fn examined(pods: &[PodBuilder], pod: &PodBuilder) -> Examination {
    let nodes: Vec<_> = nodes().iter().map(NodeBuilder::node).collect();
    let pods: Vec<_> = pods.iter().map(|pod| (*pod.pod()).clone()).collect();
    let namespaces = [namespace("default", "one"), namespace("other", "two")];
    examine_objects(&nodes, &pods, &namespaces, IpPolicy::Off.into(), &pod.pod())
}

/// The reason of each node, empty for a feasible one.
fn refused(pods: &[PodBuilder], pod: &PodBuilder) -> Vec<String> {
    let verdicts = examined(pods, pod).nodes.into_iter();
    let reason = |refusal: NodeRefusal| refusal.reasons[0].to_string();
    verdicts
        .map(|verdict| verdict.result.map_or_else(reason, |_| String::new()))
        .collect()
}

/// Raw and normalised score of each node.
fn scores(pods: &[PodBuilder], pod: &PodBuilder) -> Vec<(i64, i64)> {
    let examined = examined(pods, pod);
    let plugins = examined.scores().flat_map(|score| score.plugins.clone());
    let affinity = plugins.filter(|one| one.plugin == "InterPodAffinity");
    affinity.map(|one| (one.raw, one.normalised)).collect()
}

#[test]
fn required_affinity_needs_a_selected_pod_in_the_domain() {
    let pod = require(app("p", "web"), "podAffinity", &[term("db")]);
    assert_eq!(refused(&[], &pod), [NEAR; 3]);
    assert_eq!(refused(&[app("q", "db").on("b")], &pod), ["", "", NEAR]);
    assert_eq!(refused(&[app("q", "web").on("b")], &pod), [NEAR; 3]);
    let verdict = examined(&[], &pod);
    let refusal = verdict.refusals().next().unwrap().1;
    assert_eq!(refusal.resolvable, Resolvability::Never);
    // One pod must be selected by all terms.
    let both = require(app("p", "web"), "podAffinity", &[term("db"), term("cache")]);
    let pods = [app("q", "db").on("a"), app("r", "cache").on("a")];
    assert_eq!(refused(&pods, &both), [NEAR; 3]);
}

#[test]
fn first_pod_of_a_group_needs_no_other() {
    let own = require(app("p", "web"), "podAffinity", &[term("web")]);
    assert_eq!(refused(&[], &own), ["", "", ""]);
    assert_eq!(refused(&[app("q", "web").on("c")], &own), [NEAR, NEAR, ""]);
    // It needs the label all the same.
    let racks = with(&term("web"), "topologyKey", json!("rack"));
    let own = require(app("p", "web"), "podAffinity", &[racks]);
    assert_eq!(refused(&[], &own), [NEAR; 3]);
}

#[test]
fn required_anti_affinity_excludes_domains_both_ways() {
    let pod = require(app("p", "web"), "podAntiAffinity", &[term("db")]);
    assert_eq!(refused(&[], &pod), ["", "", ""]);
    assert_eq!(refused(&[app("q", "db").on("a")], &pod), [APART, APART, ""]);
    let existing = require(app("q", "db"), "podAntiAffinity", &[term("web")]).on("c");
    let plain = app("p", "web");
    assert_eq!(
        refused(std::slice::from_ref(&existing), &plain),
        ["", "", EXISTING]
    );
    assert_eq!(refused(&[existing], &app("p", "db")), ["", "", ""]);
    // A node without the label is in no domain.
    let racks = with(&term("db"), "topologyKey", json!("rack"));
    let pod = require(app("p", "web"), "podAntiAffinity", &[racks]);
    assert_eq!(refused(&[app("q", "db").on("a")], &pod), ["", "", ""]);
}

#[test]
fn terms_select_namespaces_by_name_or_labels() {
    let far = |name: &str| app(name, "db").namespace("other").on("a");
    let apart = |term: Value| require(app("p", "web"), "podAntiAffinity", &[term]);
    let db = term("db");
    for (term, excludes) in [
        (db.clone(), false),
        (with(&db, "namespaces", json!(["other"])), true),
        (with(&db, "namespaces", json!(["third"])), false),
        (with(&db, "namespaceSelector", json!({})), true),
        (
            with(
                &db,
                "namespaceSelector",
                json!({"matchLabels": {"team": "two"}}),
            ),
            true,
        ),
        (
            with(
                &db,
                "namespaceSelector",
                json!({"matchLabels": {"team": "one"}}),
            ),
            false,
        ),
    ] {
        let found = refused(&[far("q")], &apart(term.clone()));
        let want = if excludes { APART } else { "" };
        assert_eq!(found, [want, want, ""], "{term}");
        // The same the other way round.
        let pod = app("p", "db").namespace("other");
        let want = if excludes { EXISTING } else { "" };
        let found = refused(&[apart(term.clone()).on("a")], &pod);
        assert_eq!(found, [want, want, ""], "{term}");
    }
}

#[test]
fn label_keys_narrow_the_selector() {
    let labelled = |name: &str, hash: &str| {
        PodBuilder::new(name).set("/metadata/labels", json!({"app": "web", "hash": hash}))
    };
    let keyed = |field: &str| with(&term("web"), field, json!(["hash", "absent"]));
    let apart = |hash, field| require(labelled("p", hash), "podAntiAffinity", &[keyed(field)]);
    let pods = [labelled("q", "1").on("a")];
    assert_eq!(
        refused(&pods, &apart("1", "matchLabelKeys")),
        [APART, APART, ""]
    );
    assert_eq!(refused(&pods, &apart("2", "matchLabelKeys")), ["", "", ""]);
    assert_eq!(
        refused(&pods, &apart("1", "mismatchLabelKeys")),
        ["", "", ""]
    );
    assert_eq!(
        refused(&pods, &apart("2", "mismatchLabelKeys")),
        [APART, APART, ""]
    );
}

#[test]
fn preferences_of_both_sides_add_up() {
    let pods = [
        app("q", "db").on("a"),
        app("r", "db").on("b"),
        app("s", "db").on("c"),
    ];
    let near = prefer(app("p", "web"), "podAffinity", 10, &term("db"));
    assert_eq!(scores(&pods, &near), [(20, 100), (20, 100), (10, 0)]);
    let away = prefer(app("p", "web"), "podAntiAffinity", 10, &term("db"));
    assert_eq!(scores(&pods, &away), [(-20, 0), (-20, 0), (-10, 100)]);
    // Existing pods attract by their required terms with weight 1, and by their preferred ones.
    let required = require(app("q", "db"), "podAffinity", &[term("web")]).on("a");
    let preferred = prefer(app("r", "db"), "podAffinity", 5, &term("web")).on("c");
    let plain = app("p", "web");
    assert_eq!(
        scores(&[required, preferred], &plain),
        [(1, 0), (1, 0), (5, 100)]
    );
    let repelling = prefer(app("r", "db"), "podAntiAffinity", 5, &term("web")).on("c");
    assert_eq!(scores(&[repelling], &plain), [(0, 100), (0, 100), (-5, 0)]);
    assert_eq!(scores(&pods, &plain), []);
}
