//! The volumes of a pod: directories below the node's, filled from the pod's sources, and the
//! mounts of its containers.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

use podplane_api::{
    Object as _,
    core::{
        Container, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod,
        ProjectedVolumeSource, Volume, VolumeMount,
    },
    pod_ips::is_host_network,
};
use podplane_host::fs::{self, Permissions};
use podplane_proto::cri::{self, MountPropagation};

use super::{
    app_containers,
    config::ConfigError,
    env::{PodFacts, field_value, resource_value},
    init_containers,
    sources::PodSources,
};

const HOSTS: &str = "/etc/hosts";
/// The mode of files without one of their own.
const FILE_MODE: i32 = 0o644;
/// Anybody may write into an emptyDir, as with Kubernetes' kubelet.
const EMPTY_DIR_MODE: u32 = 0o777;
const FILES_DIR_MODE: u32 = 0o755;

/// The tokens of projected volumes, by volume and path.
pub(crate) type ProjectedTokens = BTreeMap<(String, String), String>;

/// A volume, before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeContent {
    /// A directory that the pod's containers share.
    Empty,
    /// A directory with these files.
    Files(Vec<VolumeFile>),
    /// A path of the host, and the type that it must have.
    Host(PathBuf, String),
}

/// A file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeFile {
    /// Its path in the volume.
    path: PathBuf,
    content: Vec<u8>,
    mode: u32,
}

/// The contents of the volumes that a container mounts, by name.
///
/// # Errors
///
/// [`ConfigError`]: a kind of volume that is not known here, or a source that is missing.
pub(crate) fn contents(
    container: &Container,
    facts: PodFacts<'_>,
    sources: &PodSources,
    tokens: &ProjectedTokens,
) -> Result<BTreeMap<String, VolumeContent>, ConfigError> {
    let mut contents = BTreeMap::new();
    for volume in mounted(facts.pod, container) {
        let reader = VolumeReader {
            name: &volume.name,
            facts,
            sources,
            tokens,
        };
        contents.insert(volume.name.clone(), reader.content(volume)?);
    }
    Ok(contents)
}

/// The volumes of the pod that the container mounts.
pub(crate) fn mounted<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = &'a Volume> {
    let spec = pod.spec.as_ref();
    let volumes = spec.into_iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter(|volume| {
        let mut mounts = container.volume_mounts.iter().flatten();
        mounts.any(|mount| mount.name == volume.name)
    })
}

struct VolumeReader<'a> {
    name: &'a str,
    facts: PodFacts<'a>,
    sources: &'a PodSources,
    tokens: &'a ProjectedTokens,
}

impl VolumeReader<'_> {
    fn content(&self, volume: &Volume) -> Result<VolumeContent, ConfigError> {
        if let Some(empty) = &volume.empty_dir {
            return match empty.medium.as_deref() {
                None | Some("") => Ok(VolumeContent::Empty),
                Some(medium) => Err(self.unknown_kind(&format!("emptyDir (medium {medium})"))),
            };
        }
        if let Some(HostPathVolumeSource { path, type_ }) = &volume.host_path {
            let kind = type_.clone().unwrap_or_default();
            return Ok(VolumeContent::Host(PathBuf::from(path), kind));
        }
        let files = if let Some(map) = &volume.config_map {
            let values = self.sources.config_map(&map.name, map.optional)?;
            let values = values.unwrap_or_default();
            self.keys(
                "ConfigMap",
                values,
                map.items.as_deref(),
                map.default_mode,
                map.optional,
            )?
        } else if let Some(secret) = &volume.secret {
            let name = secret.secret_name.as_deref().unwrap_or_default();
            let values = self.sources.secret(name, secret.optional)?;
            let values = values.unwrap_or_default();
            let (items, mode) = (secret.items.as_deref(), secret.default_mode);
            self.keys("Secret", values, items, mode, secret.optional)?
        } else if let Some(downward) = &volume.downward_api {
            self.fields(downward.items.as_deref(), downward.default_mode)?
        } else if let Some(projected) = &volume.projected {
            self.projected(projected)?
        } else {
            return Err(self.unknown_kind(&kind_of(volume)));
        };
        Ok(VolumeContent::Files(files))
    }

    fn unknown_kind(&self, kind: &str) -> ConfigError {
        ConfigError::VolumeKind {
            volume: self.name.to_owned(),
            kind: kind.to_owned(),
        }
    }

    fn projected(&self, projected: &ProjectedVolumeSource) -> Result<Vec<VolumeFile>, ConfigError> {
        let mode = projected.default_mode;
        let mut files = Vec::new();
        for source in projected.sources.iter().flatten() {
            if let Some(map) = &source.config_map {
                let values = self.sources.config_map(&map.name, map.optional)?;
                let values = values.unwrap_or_default();
                let items = map.items.as_deref();
                files.extend(self.keys("ConfigMap", values, items, mode, map.optional)?);
            } else if let Some(secret) = &source.secret {
                let values = self.sources.secret(&secret.name, secret.optional)?;
                let values = values.unwrap_or_default();
                let items = secret.items.as_deref();
                files.extend(self.keys("Secret", values, items, mode, secret.optional)?);
            } else if let Some(downward) = &source.downward_api {
                files.extend(self.fields(downward.items.as_deref(), mode)?);
            } else if let Some(token) = &source.service_account_token {
                let key = (self.name.to_owned(), token.path.clone());
                let value = self.tokens.get(&key).cloned().unwrap_or_default();
                files.push(self.file(&token.path, value.into_bytes(), None, mode)?);
            } else {
                return Err(self.unknown_kind("projected (clusterTrustBundle or podCertificate)"));
            }
        }
        Ok(files)
    }

    /// Files for all keys, or for those of `items`.
    fn keys(
        &self,
        object: &'static str,
        mut values: BTreeMap<String, Vec<u8>>,
        items: Option<&[KeyToPath]>,
        default_mode: Option<i32>,
        is_optional: Option<bool>,
    ) -> Result<Vec<VolumeFile>, ConfigError> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            let each = values.into_iter();
            return each
                .map(|(key, value)| self.file(&key, value, None, default_mode))
                .collect();
        };
        let mut files = Vec::new();
        for KeyToPath { key, path, mode } in items {
            match values.remove(key) {
                Some(value) => files.push(self.file(path, value, *mode, default_mode)?),
                None if is_optional == Some(true) => {}
                None => {
                    return Err(ConfigError::MissingKey {
                        key: key.clone(),
                        object,
                        of: format!("volume {}", self.name),
                    });
                }
            }
        }
        Ok(files)
    }

    fn fields(
        &self,
        items: Option<&[DownwardAPIVolumeFile]>,
        default_mode: Option<i32>,
    ) -> Result<Vec<VolumeFile>, ConfigError> {
        let mut files = Vec::new();
        for item in items.unwrap_or_default() {
            let value = if let Some(field) = &item.field_ref {
                field_value(field, self.facts)?
            } else if let Some(resource) = &item.resource_field_ref {
                let name = resource.container_name.as_deref().unwrap_or_default();
                let pod = self.facts.pod;
                let mut all = init_containers(pod).iter().chain(app_containers(pod));
                let of = all.find(|container| container.name == name);
                let unknown = || ConfigError::UnknownField(resource.resource.clone());
                resource_value(resource, of.ok_or_else(unknown)?)?
            } else {
                String::new()
            };
            files.push(self.file(&item.path, value.into_bytes(), item.mode, default_mode)?);
        }
        Ok(files)
    }

    fn file(
        &self,
        path: &str,
        content: Vec<u8>,
        mode: Option<i32>,
        default_mode: Option<i32>,
    ) -> Result<VolumeFile, ConfigError> {
        let path = PathBuf::from(path);
        let is_inside = path
            .components()
            .all(|component| matches!(component, Component::Normal(_)));
        if !is_inside {
            return Err(ConfigError::Volume {
                volume: self.name.to_owned(),
                problem: format!("invalid path {:?}: must stay in the volume", path.display()),
            });
        }
        let mode = mode.or(default_mode).unwrap_or(FILE_MODE);
        Ok(VolumeFile {
            path,
            content,
            mode: u32::try_from(mode).unwrap_or_default() & 0o777,
        })
    }
}

/// The kind of a volume: the name of the field that is set.
fn kind_of(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    let kind = fields
        .map(|(field, _)| field)
        .find(|field| *field != "name");
    kind.cloned().unwrap_or_else(|| "empty".to_owned())
}

/// The files of one pod on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodDir(PathBuf);

impl PodDir {
    /// The directory of a pod.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self(dir)
    }

    /// The directory of its logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.0.join("volumes").join(name)
    }

    fn hosts(&self) -> PathBuf {
        self.0.join("etc-hosts")
    }

    /// Makes the volumes and the directory of a container's logs, and writes the pod's
    /// `/etc/hosts`. Files of volumes are replaced. It blocks.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the operating system's.
    pub(crate) fn write(
        &self,
        container: &str,
        contents: &BTreeMap<String, VolumeContent>,
        hosts: Option<&str>,
    ) -> Result<(), ConfigError> {
        let failed = |what: &str| {
            let volume = what.to_owned();
            move |error: io::Error| ConfigError::Volume {
                volume,
                problem: error.to_string(),
            }
        };
        fs::create_private_dir_all(&self.0).map_err(failed("(directory of the pod)"))?;
        let logs = self.logs().join(container);
        fs::create_dir_all(logs).map_err(failed("(logs)"))?;
        if let Some(hosts) = hosts {
            fs::write(self.hosts(), hosts).map_err(failed("(hosts)"))?;
        }
        for (name, content) in contents {
            let dir = self.volume(name);
            match content {
                VolumeContent::Empty => make_dir(&dir, EMPTY_DIR_MODE),
                VolumeContent::Files(files) => {
                    make_dir(&dir, FILES_DIR_MODE).and_then(|()| write_files(&dir, files))
                }
                VolumeContent::Host(path, kind) => check_host_path(path, kind),
            }
            .map_err(failed(name))?;
        }
        Ok(())
    }

    /// The mounts of a container.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: a mount that is not known here.
    pub(crate) fn mounts(
        &self,
        container: &Container,
        contents: &BTreeMap<String, VolumeContent>,
        has_hosts: bool,
    ) -> Result<Vec<cri::Mount>, ConfigError> {
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            mounts.push(self.mount(mount, contents)?);
        }
        let is_taken = mounts.iter().any(|mount| mount.container_path == HOSTS);
        if has_hosts && !is_taken {
            mounts.push(cri::Mount {
                container_path: HOSTS.into(),
                host_path: self.hosts().display().to_string(),
                ..cri::Mount::default()
            });
        }
        Ok(mounts)
    }

    fn mount(
        &self,
        mount: &VolumeMount,
        contents: &BTreeMap<String, VolumeContent>,
    ) -> Result<cri::Mount, ConfigError> {
        let refused = |problem: &str| ConfigError::Mount {
            path: mount.mount_path.clone(),
            problem: problem.to_owned(),
        };
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if is_set(&mount.sub_path) || is_set(&mount.sub_path_expr) {
            return Err(refused("subPath is not supported by this kubelet"));
        }
        let host_path = match contents.get(&mount.name) {
            None => return Err(refused("the pod has no such volume")),
            Some(VolumeContent::Host(path, _)) => path.clone(),
            Some(VolumeContent::Empty | VolumeContent::Files(_)) => self.volume(&mount.name),
        };
        let propagation = match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
            // What is mounted below the pod's files would be removed with them.
            Some("Bidirectional")
                if !matches!(contents.get(&mount.name), Some(VolumeContent::Host(..))) =>
            {
                return Err(refused(
                    "Bidirectional is supported for hostPath alone by this kubelet",
                ));
            }
            Some("Bidirectional") => MountPropagation::PropagationBidirectional,
            _ => MountPropagation::PropagationPrivate,
        };
        let is_files = matches!(contents.get(&mount.name), Some(VolumeContent::Files(_)));
        Ok(cri::Mount {
            container_path: mount.mount_path.clone(),
            host_path: host_path.display().to_string(),
            readonly: mount.read_only == Some(true) || is_files,
            propagation: propagation.into(),
            ..cri::Mount::default()
        })
    }

    /// Removes all files of the pod. It blocks.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    if fs::exists(dir) {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(mode))
}

/// Writes each file beside its place and renames it, so that a reader sees the old or the new one.
fn write_files(dir: &Path, files: &[VolumeFile]) -> io::Result<()> {
    for file in files {
        let path = dir.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut name = path.clone().into_os_string();
        name.push("..new");
        fs::write(&name, &file.content)?;
        fs::set_permissions(&name, Permissions::from_mode(file.mode))?;
        fs::rename(&name, &path)?;
    }
    Ok(())
}

/// Checks a path of the host by its `type`, and makes what the type says.
fn check_host_path(path: &Path, kind: &str) -> io::Result<()> {
    let problem = match kind {
        "DirectoryOrCreate" if !fs::exists(path) => return fs::create_dir_all(path),
        "FileOrCreate" if !fs::exists(path) => return fs::write(path, ""),
        "Directory" | "DirectoryOrCreate" if !fs::is_dir(path) => "is not a directory",
        "File" | "FileOrCreate" if !fs::is_file(path) => "is not a file",
        "" | "Directory" | "DirectoryOrCreate" | "File" | "FileOrCreate" => return Ok(()),
        _ if fs::exists(path) => return Ok(()),
        _ => "does not exist",
    };
    let text = format!("hostPath type check failed: {} {problem}", path.display());
    Err(io::Error::other(text))
}

/// The text of the pod's `/etc/hosts`; `None` for a pod on its node's network, which has the
/// node's.
pub(crate) fn hosts(facts: PodFacts<'_>, hostname: &str) -> Option<String> {
    let PodFacts { pod, ips, .. } = facts;
    if is_host_network(pod) {
        return None;
    }
    let mut lines = vec![
        "# Written by the kubelet for this pod.".to_owned(),
        "127.0.0.1\tlocalhost".to_owned(),
        "::1\tlocalhost ip6-localhost ip6-loopback".to_owned(),
    ];
    let spec = pod.spec.as_ref();
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref());
    let full = subdomain.filter(|domain| !domain.is_empty()).map(|domain| {
        let namespace = pod.namespace();
        format!("{hostname}.{domain}.{namespace}.svc.cluster.local\t")
    });
    let full = full.unwrap_or_default();
    lines.extend(ips.iter().map(|ip| format!("{ip}\t{full}{hostname}")));
    for alias in spec
        .into_iter()
        .flat_map(|s| s.host_aliases.iter().flatten())
    {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        lines.push(format!("{}\t{names}", alias.ip));
    }
    Some(lines.join("\n") + "\n")
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
