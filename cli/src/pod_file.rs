//! A file with one pod: a Pod, or a workload with a pod template.

use std::path::Path;

use anyhow::Context as _;
use podplane_api::{
    Object as _,
    apps::{Deployment, ReplicaSet},
    core::{Pod, PodTemplateSpec},
    meta::OwnerReference,
};

use crate::{
    kind::ResourceKind,
    manifest::{self, Manifest},
    report::UnusableInput,
};

/// Reads the only pod of the file, without defaults. The pod of a Deployment or a ReplicaSet is
/// that of its template, with the workload's name and namespace; a ReplicaSet controls it. A pod
/// without a namespace gets this one.
pub(crate) fn read(file: &Path, namespace: &str) -> anyhow::Result<Pod> {
    only_pod(file, namespace).map_err(|error| UnusableInput(error).into())
}

fn only_pod(file: &Path, namespace: &str) -> anyhow::Result<Pod> {
    let objects = manifest::read(&[file.to_owned()])?;
    let [object] = objects.as_slice() else {
        let found: Vec<_> = objects.iter().map(Manifest::display).collect();
        anyhow::bail!(
            "{} has {} objects ({}): want one Pod, Deployment or ReplicaSet",
            file.display(),
            found.len(),
            found.join(", ")
        );
    };
    let mut pod = match object.kind {
        ResourceKind::Pod => object.decode::<Pod>()?,
        ResourceKind::Deployment => {
            let workload = object.decode::<Deployment>()?;
            let template = workload.spec.map(|spec| spec.template);
            of_template(object, template)?
        }
        ResourceKind::ReplicaSet => {
            let workload = object.decode::<ReplicaSet>()?;
            let template = workload.spec.and_then(|spec| spec.template);
            let uid = workload.metadata.uid.filter(|uid| !uid.is_empty());
            let mut pod = of_template(object, template)?;
            // With the selector of the ReplicaSet of this name, if it exists, the pod is spread.
            pod.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "apps/v1".to_owned(),
                kind: "ReplicaSet".to_owned(),
                name: object.name().to_owned(),
                uid: uid.unwrap_or_else(|| object.name().to_owned()),
                controller: Some(true),
                block_owner_deletion: None,
            }]);
            pod
        }
        _ => anyhow::bail!(
            "{}: {} has no pod: want a Pod, Deployment or ReplicaSet",
            object.place,
            object.display()
        ),
    };
    if pod.namespace().is_empty() {
        pod.metadata.namespace = Some(object.namespace(namespace).to_owned());
    }
    Ok(pod)
}

fn of_template(object: &Manifest, template: Option<PodTemplateSpec>) -> anyhow::Result<Pod> {
    let template =
        template.with_context(|| format!("{}: spec.template: Required value", object.place))?;
    let mut metadata = template.metadata.unwrap_or_default();
    metadata.name = Some(object.name().to_owned());
    Ok(Pod {
        metadata,
        spec: template.spec,
        ..Pod::default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn read_text(text: &str) -> anyhow::Result<Pod> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.yaml");
        fs::write(&file, text).unwrap();
        read(&file, "work")
    }

    #[test]
    fn takes_a_pod_or_the_template_of_a_workload() {
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
        let pod = read_text(&pod.to_string()).unwrap();
        assert_eq!((pod.namespace(), pod.name()), ("work", "a"));
        for kind in ["Deployment", "ReplicaSet"] {
            let labels = json!({"app": "web"});
            let template = json!({"metadata": {"labels": labels}, "spec": spec});
            let workload = json!({"apiVersion": "apps/v1", "kind": kind,
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"selector": {"matchLabels": labels}, "template": template}});
            let pod = read_text(&workload.to_string()).unwrap();
            assert_eq!((pod.namespace(), pod.name()), ("shop", "web"));
            assert_eq!(pod.metadata.labels.unwrap()["app"], "web");
            let owners = pod.metadata.owner_references.unwrap_or_default();
            let owners = owners.iter().map(|owner| (&*owner.kind, &*owner.name));
            let controlled = (kind == "ReplicaSet").then_some((kind, "web"));
            assert_eq!(owners.collect::<Vec<_>>(), Vec::from_iter(controlled));
            assert_eq!(pod.spec.unwrap().containers.len(), 1);
        }
    }

    #[test]
    fn refuses_files_without_exactly_one_pod() {
        let error = |text: &str| read_text(text).unwrap_err().to_string();
        let node = "apiVersion: v1\nkind: Node\nmetadata: {name: one}\n";
        assert!(error(node).ends_with("/one has no pod: want a Pod, Deployment or ReplicaSet"));
        let pod = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: []}}\n"
            )
        };
        let two = error(&format!("{}---\n{}", pod("a"), pod("b")));
        assert!(
            two.contains("has 2 objects (pod/a, pod/b): want one Pod"),
            "{two}"
        );
    }
}
