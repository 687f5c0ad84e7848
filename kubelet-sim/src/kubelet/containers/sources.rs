//! The objects from which a pod's containers take settings and files: ConfigMaps, Secrets, and
//! tokens of its ServiceAccount.

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::{
    Object,
    core::{
        ConfigMap, ConfigMapVolumeSource, Container, Pod, ProjectedVolumeSource, Secret,
        SecretVolumeSource, Volume,
    },
};
use podplane_client::{ApiError, Client};

use super::config::ConfigError;

/// The ConfigMaps and Secrets that a pod names, as they were read; missing ones are absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodSources {
    config_maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
}

impl PodSources {
    /// Reads what `container` and the volumes of the pod name.
    ///
    /// # Errors
    ///
    /// Those of the API server, but for missing objects.
    pub(crate) async fn read(
        client: &Client,
        pod: &Pod,
        container: &Container,
    ) -> Result<Self, ApiError> {
        let names = SourceNames::of(pod, container);
        Ok(Self {
            config_maps: read_all(client, pod.namespace(), names.config_maps).await?,
            secrets: read_all(client, pod.namespace(), names.secrets).await?,
        })
    }

    /// The values of a ConfigMap by key; `None` if it is missing and the reference is optional.
    ///
    /// # Errors
    ///
    /// [`ConfigError::MissingConfigMap`].
    pub(crate) fn config_map(
        &self,
        name: &str,
        is_optional: Option<bool>,
    ) -> Result<Option<BTreeMap<String, Vec<u8>>>, ConfigError> {
        let Some(found) = self.config_maps.get(name) else {
            return match is_optional {
                Some(true) => Ok(None),
                _ => Err(ConfigError::MissingConfigMap(name.to_owned())),
            };
        };
        let texts = found.data.iter().flatten();
        let texts = texts.map(|(key, text)| (key.clone(), text.clone().into_bytes()));
        let binary = found.binary_data.iter().flatten();
        let binary = binary.map(|(key, bytes)| (key.clone(), bytes.0.clone()));
        Ok(Some(texts.chain(binary).collect()))
    }

    /// The values of a Secret by key; `None` if it is missing and the reference is optional.
    ///
    /// # Errors
    ///
    /// [`ConfigError::MissingSecret`].
    pub(crate) fn secret(
        &self,
        name: &str,
        is_optional: Option<bool>,
    ) -> Result<Option<BTreeMap<String, Vec<u8>>>, ConfigError> {
        let Some(found) = self.secrets.get(name) else {
            return match is_optional {
                Some(true) => Ok(None),
                _ => Err(ConfigError::MissingSecret(name.to_owned())),
            };
        };
        let values = found.data.iter().flatten();
        Ok(Some(
            values
                .map(|(key, bytes)| (key.clone(), bytes.0.clone()))
                .collect(),
        ))
    }
}

async fn read_all<K: Object>(
    client: &Client,
    namespace: &str,
    names: BTreeSet<String>,
) -> Result<BTreeMap<String, K>, ApiError> {
    let mut read = BTreeMap::new();
    for name in names {
        match client.namespaced::<K>(namespace).get(&name).await {
            Ok(found) => {
                read.insert(name, found);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[derive(Debug, Default)]
struct SourceNames {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

impl SourceNames {
    fn of(pod: &Pod, container: &Container) -> Self {
        let mut names = Self::default();
        for from in container.env_from.iter().flatten() {
            let map = from.config_map_ref.as_ref().map(|map| map.name.clone());
            let secret = from.secret_ref.as_ref().map(|secret| secret.name.clone());
            names.config_maps.extend(map);
            names.secrets.extend(secret);
        }
        for variable in container.env.iter().flatten() {
            let Some(from) = &variable.value_from else {
                continue;
            };
            let map = from.config_map_key_ref.as_ref();
            let secret = from.secret_key_ref.as_ref();
            names.config_maps.extend(map.map(|key| key.name.clone()));
            names.secrets.extend(secret.map(|key| key.name.clone()));
        }
        let spec = pod.spec.as_ref();
        for volume in spec.into_iter().flat_map(|s| s.volumes.iter().flatten()) {
            names.add_volume(volume);
        }
        names
    }

    fn add_volume(&mut self, volume: &Volume) {
        if let Some(ConfigMapVolumeSource { name, .. }) = &volume.config_map {
            self.config_maps.insert(name.clone());
        }
        if let Some(SecretVolumeSource { secret_name, .. }) = &volume.secret {
            self.secrets.extend(secret_name.clone());
        }
        if let Some(ProjectedVolumeSource { sources, .. }) = &volume.projected {
            for source in sources.iter().flatten() {
                let map = source.config_map.as_ref();
                let secret = source.secret.as_ref();
                self.config_maps.extend(map.map(|map| map.name.clone()));
                self.secrets
                    .extend(secret.map(|secret| secret.name.clone()));
            }
        }
    }
}
