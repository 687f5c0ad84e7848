//! The three-way merge of `apply`: what the file says now, what it said last time, and what is there.
//!
//! A field that the file had and no longer has is removed; a field that it has is set; what others wrote stays. Lists are
//! replaced, but for those that Kubernetes' API merges by a key or as a set (its `patchMergeKey` and `patchStrategy`).

use serde_json::{Map, Value};

/// Lists of objects that are merged, and the field that tells their items apart.
const MERGE_KEYS: [(&str, &str); 13] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
    ("ownerReferences", "uid"),
];

/// Lists of plain values that are merged.
const SETS: [&str; 2] = ["finalizers", "podCIDRs"];

/// What to write: `live`, without what `last` had and `file` has not, and with all that `file` has.
pub(crate) fn three_way(last: &Value, file: &Value, live: &Value) -> Value {
    merge("", last, file, live)
}

fn merge(field: &str, last: &Value, file: &Value, live: &Value) -> Value {
    match (file, live) {
        (Value::Object(file), Value::Object(live)) => Value::Object(merge_maps(last, file, live)),
        (Value::Array(file), Value::Array(live)) => {
            let last = last.as_array().map_or(&[][..], Vec::as_slice);
            let merged = match MERGE_KEYS.iter().find(|(list, _)| *list == field) {
                Some((_, key)) => merge_lists(last, file, live, |item| item.get(key)),
                None if SETS.contains(&field) => merge_lists(last, file, live, |item| Some(item)),
                None => None,
            };
            Value::Array(merged.unwrap_or_else(|| file.clone()))
        }
        (file, _) => file.clone(),
    }
}

fn merge_maps(
    last: &Value,
    file: &Map<String, Value>,
    live: &Map<String, Value>,
) -> Map<String, Value> {
    let is_dropped = |key: &String| last.get(key).is_some() && !file.contains_key(key);
    let kept = live
        .iter()
        .filter(|(key, _)| !is_dropped(key) && !file.contains_key(*key));
    let set = file.iter().map(|(key, value)| {
        let merged = match live.get(key) {
            Some(live) => merge(key, last.get(key).unwrap_or(&Value::Null), value, live),
            None => value.clone(),
        };
        (key.clone(), merged)
    });
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .chain(set)
        .collect()
}

/// The file's items, each merged with the live one of its key, then the live ones that the file never had. `None` if an item has no key.
fn merge_lists(
    last: &[Value],
    file: &[Value],
    live: &[Value],
    key: impl Fn(&Value) -> Option<&Value>,
) -> Option<Vec<Value>> {
    let find = |items: &[Value], wanted: &Value| {
        items.iter().find(|item| key(item) == Some(wanted)).cloned()
    };
    let mut merged = Vec::with_capacity(file.len());
    for item in file {
        let wanted = key(item)?;
        let last = find(last, wanted).unwrap_or_default();
        merged.push(match find(live, wanted) {
            Some(live) => merge("", &last, item, &live),
            None => item.clone(),
        });
    }
    for item in live {
        let present = key(item)?;
        if find(file, present).is_none() && find(last, present).is_none() {
            merged.push(item.clone());
        }
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_file_dropped_goes_and_what_others_wrote_stays() {
        let last = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}, "spec": {"priority": 1}});
        let file = json!({"metadata": {"labels": {"app": "web2"}}});
        let live = json!({"metadata": {"labels": {"app": "web", "tier": "front", "added": "x"}, "uid": "u"},
            "spec": {"priority": 1, "nodeName": "node-0"}});
        let want = json!({"metadata": {"labels": {"app": "web2", "added": "x"}, "uid": "u"}});
        assert_eq!(three_way(&last, &file, &live), want);
    }

    #[test]
    fn without_a_last_time_nothing_is_dropped() {
        let live = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"nodeName": "node-0"}});
        let file = json!({"metadata": {"labels": {"b": "2"}}, "spec": {}});
        let want =
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "node-0"}});
        assert_eq!(three_way(&Value::Null, &file, &live), want);
    }

    #[test]
    fn containers_are_merged_by_name() {
        let last = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]});
        let file = json!({"containers": [{"name": "a", "image": "2"}, {"name": "c"}]});
        let live = json!({"containers": [{"name": "b"}, {"name": "a", "image": "1", "imagePullPolicy": "Always"}, {"name": "sidecar"}]});
        let want = json!({"containers": [{"name": "a", "image": "2", "imagePullPolicy": "Always"}, {"name": "c"}, {"name": "sidecar"}]});
        assert_eq!(three_way(&last, &file, &live), want);
    }

    #[test]
    fn sets_are_merged_and_other_lists_replaced() {
        let last = json!({"finalizers": ["mine", "old"], "tolerations": [{"key": "a"}]});
        let file = json!({"finalizers": ["mine"], "tolerations": [{"key": "b"}]});
        let live = json!({"finalizers": ["old", "theirs", "mine"], "tolerations": [{"key": "a"}, {"key": "z"}]});
        let want = json!({"finalizers": ["mine", "theirs"], "tolerations": [{"key": "b"}]});
        assert_eq!(three_way(&last, &file, &live), want);
    }
}
