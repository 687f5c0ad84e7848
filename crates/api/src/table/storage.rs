//! The cells that tables of volumes and claims share.

use std::collections::BTreeMap;

use crate::{Object, Quantity, meta::ObjectMeta};

/// The annotation with which old clients name the class.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The access modes in the order in which they are shown, and their abbreviations.
const MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

/// The size of a volume.
pub(crate) fn size(capacity: Option<&BTreeMap<String, Quantity>>) -> String {
    let size = capacity.and_then(|capacity| capacity.get("storage"));
    size.map_or_else(|| "0".into(), |size| size.0.clone())
}

/// The abbreviations of access modes.
pub(crate) fn access_modes(modes: Option<&[String]>) -> String {
    let modes = modes.unwrap_or_default();
    let given = MODES
        .iter()
        .filter(|(mode, _)| modes.iter().any(|given| given == mode));
    let short = given.map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

/// The phase, unless deletion has begun.
pub(crate) fn phase<K: Object>(object: &K, phase: &str) -> String {
    match object.is_deleting() {
        true => "Terminating".into(),
        false => phase.to_owned(),
    }
}

/// The name of the class.
pub(crate) fn class(meta: &ObjectMeta, class: Option<&str>) -> String {
    let annotations = meta.annotations.as_ref();
    let annotated = annotations.and_then(|all| all.get(CLASS_ANNOTATION));
    let class = annotated.map(String::as_str).or(class);
    class.unwrap_or_default().to_owned()
}
