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
    if !ranges.pods.is_empty() {
        cluster.set_cluster_cidrs(&ranges.pods);
    }
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

    #[test]
    fn a_recording_has_the_addresses_of_services() {
        let range = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"]}});
        let entry = |at: f64, change: &str, object: &Value| {
            json!({"at": at, "step": 1, "kind": "object", "change": change, "object": object})
                .to_string()
                + "\n"
        };
        let lines = [
            entry(0.5, "added", &range),
            entry(1.0, "added", &service),
            entry(2.0, "deleted", &service),
        ];
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("recording.jsonl"), lines.concat()).unwrap();
        let holders = |seconds: f64| {
            let parts = at(dir.path(), Some(seconds), &StatedRanges::default()).unwrap();
            let space = AddressSpace::new(parts);
            let range = "10.96.0.0/16".parse().unwrap();
            let records = space.records(&range);
            let claims = records.flat_map(|record| record.claims);
            let holders = claims.map(|claim| claim.holder().to_string());
            holders.collect::<Vec<_>>()
        };
        assert_eq!(holders(0.5), [""; 0]);
        assert_eq!(holders(1.0), ["service shop/web"]);
        assert_eq!(holders(2.0), [""; 0]);
    }

    #[test]
    fn a_recording_has_the_ranges_of_its_cluster() {
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}});
        let services = json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}});
        let log = |at: f64, range: &str| json!({"at": at, "step": 1, "kind": "log", "message": "m", "clusterCIDRs": [range]});
        let object = |at: f64, object: &Value| json!({"at": at, "step": 1, "kind": "object", "change": "added", "object": object});
        let lines = [
            log(0.1, "10.244.0.0/16"),
            object(0.2, &services),
            object(0.5, &node),
            log(1.0, "10.240.0.0/12"),
        ];
        let dir = tempfile::tempdir().unwrap();
        let lines = lines.map(|line| format!("{line}\n")).concat();
        fs::write(dir.path().join("recording.jsonl"), lines).unwrap();
        let networks = |seconds: f64, ranges: &StatedRanges| {
            let parts = at(dir.path(), Some(seconds), ranges).unwrap();
            let cidrs = parts.networks.iter().map(|one| one.cidr().to_string());
            cidrs.collect::<Vec<_>>()
        };
        let own = StatedRanges::default();
        assert_eq!(networks(0.6, &own), ["10.244.0.0/16", "10.96.0.0/12"]);
        assert_eq!(networks(1.0, &own), ["10.240.0.0/12", "10.96.0.0/12"]);
        let stated = StatedRanges {
            pods: vec!["10.0.0.0/8".parse().unwrap()],
            ..StatedRanges::default()
        };
        assert_eq!(networks(1.0, &stated), ["10.0.0.0/8", "10.96.0.0/12"]);
    }
}
