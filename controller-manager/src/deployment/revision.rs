//! The annotations of revisions and sizes, which `kubectl rollout` uses.

use std::collections::BTreeMap;

use podplane_api::{apps::ReplicaSet, meta::ObjectMeta};

/// The revision of a ReplicaSet's template, and a Deployment's present revision.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Former revisions of the same template.
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas when the ReplicaSet was last scaled.
pub(crate) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The same plus maxSurge.
pub(crate) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations that a ReplicaSet does not copy from its Deployment.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

/// The most characters of a history, as in Kubernetes.
const HISTORY_MAX: usize = 2000;

/// The annotation as a number, if it is one.
pub(crate) fn number(meta: &ObjectMeta, key: &str) -> Option<i64> {
    meta.annotations.as_ref()?.get(key)?.parse().ok()
}

/// The highest revision of the ReplicaSets; 0 if they have none.
pub(crate) fn highest<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i64 {
    let revisions = sets
        .into_iter()
        .filter_map(|set| number(&set.metadata, REVISION));
    revisions.max().unwrap_or_default().max(0)
}

/// Copies the Deployment's annotations to the new ReplicaSet, and sets the revision unless it has a
/// higher one; its former revision is appended to its history. As Kubernetes'
/// `SetNewReplicaSetAnnotations`.
pub(crate) fn annotate_new(deployment: &ObjectMeta, set: &mut ObjectMeta, revision: i64) {
    let taken = deployment.annotations.iter().flatten();
    let taken = taken.filter(|(key, _)| !OWN.contains(&key.as_str()));
    let annotations = set.annotations.get_or_insert_default();
    annotations.extend(taken.map(|(key, value)| (key.clone(), value.clone())));
    let old = annotations.get(REVISION).cloned();
    let old_number = match old.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            Err(_) => return, // Somebody's own; Kubernetes leaves it alone too.
        },
    };
    if old_number >= revision {
        return;
    }
    annotations.insert(REVISION.to_owned(), revision.to_string());
    if let Some(old) = old {
        remember(annotations, &old);
    }
}

/// Appends to the history, and removes the oldest revisions if it is too long.
fn remember(annotations: &mut BTreeMap<String, String>, revision: &str) {
    let history = annotations.entry(HISTORY.to_owned()).or_default();
    let all = if history.is_empty() {
        revision.to_owned()
    } else {
        format!("{history},{revision}")
    };
    let mut kept = all.as_str();
    while kept.len() > HISTORY_MAX {
        match kept.split_once(',') {
            Some((_, rest)) => kept = rest,
            None => return,
        }
    }
    *history = kept.to_owned();
}

/// Annotates the size that the ReplicaSet is scaled for.
pub(crate) fn annotate_size(set: &mut ObjectMeta, desired: i32, max: i32) {
    let annotations = set.annotations.get_or_insert_default();
    annotations.insert(DESIRED_REPLICAS.to_owned(), desired.to_string());
    annotations.insert(MAX_REPLICAS.to_owned(), max.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(annotations: &[(&str, &str)]) -> ObjectMeta {
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ObjectMeta {
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        }
    }

    fn get<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
        meta.annotations.as_ref()?.get(key).map(String::as_str)
    }

    #[test]
    fn restored_template_keeps_its_revision_history() {
        let deployment = meta(&[("team", "a"), (REVISION, "3"), (OWN[0], "{}")]);
        let mut set = meta(&[(REVISION, "1")]);
        annotate_new(&deployment, &mut set, 4);
        assert_eq!(get(&set, REVISION), Some("4"));
        assert_eq!(get(&set, HISTORY), Some("1"));
        assert_eq!(get(&set, "team"), Some("a"));
        assert_eq!(get(&set, OWN[0]), None);
        annotate_new(&deployment, &mut set, 7);
        assert_eq!(get(&set, HISTORY), Some("1,4"));
        annotate_new(&deployment, &mut set, 6);
        assert_eq!(get(&set, REVISION), Some("7"));
        assert_eq!(get(&set, HISTORY), Some("1,4"));
    }

    #[test]
    fn first_revision_has_no_history() {
        let mut set = ObjectMeta::default();
        annotate_new(&ObjectMeta::default(), &mut set, 1);
        assert_eq!(get(&set, REVISION), Some("1"));
        assert_eq!(get(&set, HISTORY), None);
    }

    #[test]
    fn truncates_the_oldest_history() {
        let long = (100..700)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",");
        let mut set = meta(&[(REVISION, "700"), (HISTORY, &long)]);
        annotate_new(&ObjectMeta::default(), &mut set, 701);
        let history = get(&set, HISTORY).unwrap();
        assert!(
            history.len() <= HISTORY_MAX && history.ends_with(",699,700"),
            "{history}"
        );
        assert!(history.starts_with("201,"), "{history}");
    }

    #[test]
    fn ignores_annotations_that_are_not_numbers() {
        assert_eq!(number(&meta(&[(REVISION, "x")]), REVISION), None);
        let sets = ["2", "x", "10"].map(|revision| ReplicaSet {
            metadata: meta(&[(REVISION, revision)]),
            ..ReplicaSet::default()
        });
        assert_eq!(highest(&sets), 10);
    }
}
