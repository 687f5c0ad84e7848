//! The manifest of a Node that replaces the deleted one.

use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// Metadata that the server writes, or that would tie the new node to the old one.
const OF_THE_SERVER: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

pub(super) fn file(node: &str) -> String {
    format!("{node}.yaml")
}

/// The object with other blocks, and cordoned, so that no pod comes before the node's network
/// works.
pub(super) fn text(mut object: Map<String, Value>, node: &str, blocks: &[IpNet]) -> String {
    object.remove("status");
    // Items of a NodeList have neither field.
    object.insert("apiVersion".into(), json!("v1"));
    object.insert("kind".into(), json!("Node"));
    let metadata = member(&mut object, "metadata");
    for field in OF_THE_SERVER {
        metadata.remove(field);
    }
    metadata.insert("name".into(), json!(node));
    let spec = member(&mut object, "spec");
    let blocks: Vec<String> = blocks.iter().map(ToString::to_string).collect();
    spec.insert("podCIDR".into(), json!(blocks.first()));
    spec.insert("podCIDRs".into(), json!(blocks));
    spec.insert("unschedulable".into(), json!(true));
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&object, options)
        .expect("strings as keys, and values that came from YAML or JSON, can be written as YAML")
}

/// The field as an object; any other value is replaced by an empty object.
fn member<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = object.entry(name).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was made one")
}
