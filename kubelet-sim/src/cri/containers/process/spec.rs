//! Specifications for helpers, from records and images.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use podplane_container_init::{
    ContainerSpec, ProcessSpec,
    spec::{BeneathPath, BindMount},
};
use podplane_host::fs;
use rustix::process::Signal;

use super::{ProcessError, Processes, request::ProcessRequest};
use crate::cri::{
    containers::record::{ContainerMount, ContainerRecord},
    images::{roots::UnpackedImage, store::IMAGE_UID},
    record::SandboxRecord,
};

/// The directories of programs, where neither image nor container says others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The machine's resolver, of pods that have none.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The process that a client wants, with what its image says.
pub(super) fn process(
    wanted: &ProcessRequest,
    image: &UnpackedImage,
    hostname: &str,
) -> Result<ProcessSpec, ProcessError> {
    let config = &image.config;
    let args = config.command_line(&wanted.command, &wanted.args);
    if args.is_empty() {
        return Err(ProcessError::NoCommand);
    }
    let mut env = BTreeMap::from([("HOME", "/"), ("PATH", PATH)]);
    if !hostname.is_empty() {
        env.insert("HOSTNAME", hostname);
    }
    if wanted.tty {
        env.insert("TERM", "xterm");
    }
    env.extend(config.env());
    env.extend(
        wanted
            .env
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str())),
    );
    let nobody = u32::try_from(IMAGE_UID).unwrap_or(u32::MAX);
    let (image_uid, image_gid) = config.user().unwrap_or((nobody, None));
    let uid = wanted.uid.unwrap_or(image_uid);
    // A group of the image belongs to its user.
    let image_gid = image_gid.filter(|_| wanted.uid.is_none());
    let cwd = match wanted.working_dir.as_str() {
        "" => config.working_dir().unwrap_or("/"),
        dir => dir,
    };
    Ok(ProcessSpec {
        args,
        env: env
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        cwd: Path::new("/").join(cwd),
        uid,
        gid: wanted.gid.or(image_gid).unwrap_or(uid),
        groups: wanted.groups.clone(),
        terminal: wanted.tty,
    })
}

/// The signal that stops a container, by the name or the number that its image has.
pub(super) fn stop_signal(image: &UnpackedImage) -> Signal {
    let name = image.config.stop_signal().unwrap_or_default();
    let name = name.strip_prefix("SIG").unwrap_or(name);
    match name {
        "HUP" | "1" => Signal::HUP,
        "INT" | "2" => Signal::INT,
        "QUIT" | "3" => Signal::QUIT,
        "KILL" | "9" => Signal::KILL,
        "USR1" | "10" => Signal::USR1,
        "USR2" | "12" => Signal::USR2,
        "WINCH" | "28" => Signal::WINCH,
        _ => Signal::TERM,
    }
}

impl Processes {
    /// Checks that all mounts are of the pod's own volumes, and returns them for a helper.
    ///
    /// # Errors
    ///
    /// [`ProcessError::HostPath`].
    pub(in crate::cri::containers) fn mounts(
        &self,
        mounts: &[ContainerMount],
        pod_uid: &str,
    ) -> Result<Vec<BindMount>, ProcessError> {
        let dir = self.config.pods_dir.join(pod_uid);
        let checked = mounts.iter().map(|mount| {
            let path = Path::new(&mount.host_path).strip_prefix(&dir);
            let is_plain = |path: &&Path| {
                path.components()
                    .all(|part| matches!(part, Component::Normal(_)))
            };
            let path = path.ok().filter(is_plain).filter(|_| is_name(pod_uid));
            let path = path.ok_or_else(|| ProcessError::HostPath {
                target: mount.container_path.clone(),
                host_path: mount.host_path.clone(),
                dir: dir.clone(),
            })?;
            Ok(BindMount {
                source: BeneathPath {
                    root: dir.clone(),
                    path: path.to_owned(),
                },
                target: PathBuf::from(&mount.container_path),
                readonly: mount.readonly,
            })
        });
        checked.collect()
    }

    pub(super) fn container(
        &self,
        record: &ContainerRecord,
        sandbox: &SandboxRecord,
        image: &UnpackedImage,
    ) -> Result<ContainerSpec, ProcessError> {
        let resolver = match &sandbox.dns {
            Some(dns) => dns.to_string(),
            None => fs::read_to_string(RESOLV_CONF).unwrap_or_default(),
        };
        let hostname = &sandbox.hostname;
        let named = (!hostname.is_empty())
            .then(|| (PathBuf::from("/etc/hostname"), format!("{hostname}\n")));
        let files = named
            .into_iter()
            .chain([(PathBuf::from(RESOLV_CONF), resolver)]);
        let wanted = record.process.clone().unwrap_or_default();
        let adjustment = record.resources.oom_score_adj.clamp(-1000, 1000);
        Ok(ContainerSpec {
            image: image.files.clone(),
            mounts: self.mounts(&record.mounts, &record.pod.uid)?,
            files: files.collect(),
            masked_paths: wanted.masked_paths.into_iter().map(PathBuf::from).collect(),
            readonly_paths: wanted
                .readonly_paths
                .into_iter()
                .map(PathBuf::from)
                .collect(),
            readonly: wanted.readonly_rootfs,
            hostname: hostname.clone(),
            scratch: self.config.scratch.clone(),
            oom_score_adj: i32::try_from(adjustment).unwrap_or(0),
        })
    }
}

/// Returns true for a text that is one component of a path.
fn is_name(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == text)
}
