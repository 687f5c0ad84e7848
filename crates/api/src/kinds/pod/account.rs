//! The ServiceAccount of a pod (source: Kubernetes' admission plugin `ServiceAccount`).

use crate::{
    core::{
        ConfigMapProjection, Container, DownwardAPIProjection, DownwardAPIVolumeFile, KeyToPath,
        ObjectFieldSelector, Pod, PodSpec, ProjectedVolumeSource, ServiceAccount,
        ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    },
    kinds::service_account::DEFAULT_ACCOUNT,
    object::Object as _,
};

/// The ConfigMap in each namespace by which pods trust the API server.
pub const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";

/// The beginning of the names of volumes with a token for the API server.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// The directory of a container in which clients of the API server look for their token.
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The life of such a token: an hour, and a few seconds by which it is told apart (source:
/// `WarnOnlyBoundTokenExpirationSeconds`).
const TOKEN_SECONDS: i64 = 3607;

/// The mode of the files of a projected volume.
const FILE_MODE: i32 = 0o644;

/// The name of the account that a new pod is to have.
pub fn account_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.service_account_name.as_deref());
    name.filter(|name| !name.is_empty())
        .unwrap_or(DEFAULT_ACCOUNT)
}

/// Gives a new pod its account, in both fields that name it, and the account's pull secrets if the
/// pod has none of its own.
pub fn set_account(pod: &mut Pod, account: &ServiceAccount) {
    let Some(spec) = &mut pod.spec else {
        return;
    };
    spec.service_account_name = Some(account.name().to_owned());
    spec.service_account = Some(account.name().to_owned());
    let own = spec.image_pull_secrets.as_deref().unwrap_or_default();
    let of_account = account.image_pull_secrets.as_deref().unwrap_or_default();
    if own.is_empty() && !of_account.is_empty() {
        spec.image_pull_secrets = Some(of_account.to_vec());
    }
}

/// Gives the containers of a new pod a token of its account, unless the pod or the account does not
/// want that. `suffix` makes the name of the volume.
pub fn mount_token(pod: &mut Pod, account: &ServiceAccount, suffix: impl FnOnce() -> String) {
    let Some(spec) = &mut pod.spec else {
        return;
    };
    let wish = spec.automount_service_account_token;
    if wish.or(account.automount_service_account_token) == Some(false) {
        return;
    }
    let existing = token_volume(spec);
    let has_volume = existing.is_some();
    let name = existing.unwrap_or_else(|| format!("{TOKEN_VOLUME}{}", suffix()));
    let init = spec.init_containers.iter_mut().flatten();
    let mut is_mounted = false;
    for container in init.chain(&mut spec.containers) {
        is_mounted |= mount(container, &name);
    }
    if is_mounted && !has_volume {
        spec.volumes.get_or_insert_default().push(volume(name));
    }
}

fn token_volume(spec: &PodSpec) -> Option<String> {
    let mut volumes = spec.volumes.iter().flatten();
    let found = volumes.find(|volume| volume.name.starts_with(TOKEN_VOLUME));
    found.map(|volume| volume.name.clone())
}

/// Mounts the volume, unless the container has something else there.
fn mount(container: &mut Container, volume: &str) -> bool {
    let mounts = container.volume_mounts.get_or_insert_default();
    let is_free = mounts.iter().all(|mount| mount.mount_path != TOKEN_DIR);
    if is_free {
        mounts.push(VolumeMount {
            name: volume.to_owned(),
            mount_path: TOKEN_DIR.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
    is_free
}

fn volume(name: String) -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".to_owned(),
            ..ServiceAccountTokenProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: ROOT_CA_CONFIG_MAP.to_owned(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".to_owned(),
                path: "ca.crt".to_owned(),
                ..KeyToPath::default()
            }]),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".to_owned(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.namespace".to_owned(),
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name,
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(FILE_MODE),
            sources: Some(vec![token, authority, namespace]),
        }),
        ..Volume::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mounted(spec: &Value, account: &Value) -> Value {
        let pod = json!({"metadata": {"name": "p", "namespace": "default"}, "spec": spec});
        let mut pod = Pod::from_json(pod).unwrap();
        let mut document = json!({"metadata": {"name": "a", "namespace": "default"}});
        for (key, value) in account.as_object().unwrap() {
            document[key] = value.clone();
        }
        let account = ServiceAccount::from_json(document).unwrap();
        mount_token(&mut pod, &account, || "x1y2z".to_owned());
        json!(pod.spec)
    }

    #[test]
    fn a_token_is_mounted_as_in_the_reference() {
        let spec = json!({
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "v", "mountPath": TOKEN_DIR}]}],
            "initContainers": [{"name": "c"}],
        });
        let found = mounted(&spec, &json!({}));
        let mount =
            json!([{"name": "kube-api-access-x1y2z", "mountPath": TOKEN_DIR, "readOnly": true}]);
        assert_eq!(found["containers"][0]["volumeMounts"], mount);
        assert_eq!(found["containers"][1]["volumeMounts"][0]["name"], "v");
        assert_eq!(
            found["containers"][1]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        assert_eq!(found["initContainers"][0]["volumeMounts"], mount);
        let items = json!([{"key": "ca.crt", "path": "ca.crt"}]);
        let field = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
        let projected = json!({"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": items}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
        ]});
        let volume = json!([{"name": "kube-api-access-x1y2z", "projected": projected}]);
        assert_eq!(found["volumes"], volume);
    }

    #[test]
    fn the_pod_decides_before_its_account() {
        let containers = json!([{"name": "a"}]);
        for (pod, account, want) in [
            (None, None, true),
            (None, Some(false), false),
            (Some(true), Some(false), true),
            (Some(false), Some(true), false),
            (Some(false), None, false),
        ] {
            let spec = json!({"containers": containers, "automountServiceAccountToken": pod});
            let account = json!({"automountServiceAccountToken": account});
            let found = mounted(&spec, &account);
            assert_eq!(found["volumes"].is_array(), want, "{spec} {account}");
        }
    }

    #[test]
    fn a_volume_of_the_pod_itself_is_used() {
        let volume = json!({"name": "kube-api-access-mine", "emptyDir": {}});
        let spec = json!({"containers": [{"name": "a"}], "volumes": [volume]});
        let found = mounted(&spec, &json!({}));
        assert_eq!(found["volumes"].as_array().unwrap().len(), 1);
        let mount = &found["containers"][0]["volumeMounts"][0];
        assert_eq!(mount["name"], "kube-api-access-mine");
        // No container needs it: no volume.
        let taken = json!([{"name": "v", "mountPath": TOKEN_DIR}]);
        let spec = json!({"containers": [{"name": "a", "volumeMounts": taken}], "volumes": []});
        assert_eq!(mounted(&spec, &json!({}))["volumes"], json!([]));
    }
}
