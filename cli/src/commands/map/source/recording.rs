//! The facts of a moment of a recording.

use std::path::Path;

use podplane_map::SpaceParts;
use podplane_progress::PlainLines;

use super::StatedRanges;
use crate::{
    commands::replay::{self, timeline::Timeline},
    report::UsageError,
};

/// Reads the objects of a recording as they were at a time, in seconds since its beginning; by
/// default at its end.
///
/// # Errors
///
/// If it cannot be read, has no objects, or ended before that time.
pub(super) fn at(
    path: &Path,
    at: Option<f64>,
    ranges: &StatedRanges,
) -> anyhow::Result<SpaceParts> {
    let recording = replay::read(path, PlainLines::IfSlow)?;
    for damage in &recording.damage {
        anstream::eprintln!("warning: {}: {damage}", path.display());
    }
    let timeline = Timeline::new(path.display().to_string(), recording);
    let end = timeline.duration();
    if let Some(at) = at.filter(|at| *at > end) {
        return Err(UsageError(format!(
            "invalid --at `{at}`: the recording ends after {end:.3} s"
        ))
        .into());
    }
    let mut cluster = timeline.cluster(at.unwrap_or(end));
    cluster.set_cluster_cidrs(&ranges.pods);
    let mut parts = cluster.space_parts();
    ranges.add_to(&mut parts)?;
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podplane_map::{AddressSpace, AddressState, NetworkRole};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn shows_the_objects_of_a_moment() {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}});
        let pod = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}]}});
        let entry = |at: f64, change: &str, object: &Value| {
            json!({"at": at, "step": 1, "kind": "object", "change": change, "object": object})
                .to_string()
        };
        let lines = [
            entry(0.5, "added", &node),
            entry(1.0, "added", &pod),
            entry(2.0, "deleted", &pod),
        ];
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("recording.jsonl");
        fs::write(&file, lines.join("\n") + "\n").unwrap();
        let state = |seconds: Option<f64>| {
            let parts = at(dir.path(), seconds, &StatedRanges::default()).unwrap();
            let ip = "10.244.1.2".parse().unwrap();
            AddressSpace::new(parts).state(NetworkRole::Pods, ip)
        };
        assert_eq!(state(Some(0.4)), AddressState::Unassigned);
        assert_eq!(state(Some(0.9)), AddressState::Free);
        assert_eq!(state(Some(1.0)), AddressState::Pod);
        assert_eq!(state(None), AddressState::Free);
        let error = at(&file, Some(2.5), &StatedRanges::default()).unwrap_err();
        assert!(error.to_string().contains("ends after 2.000 s"), "{error}");
    }
}
