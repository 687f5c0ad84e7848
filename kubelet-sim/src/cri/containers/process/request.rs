//! The process that a `CreateContainer` asks for with `--containers=process`, and what is refused
//! there.

use std::path::{Component, Path};

use podplane_proto::cri;
use serde::{Deserialize, Serialize};
use tonic::Status;

/// A process, as the client wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessRequest {
    /// In place of the image's entrypoint.
    pub command: Vec<String>,
    /// In place of the image's arguments.
    pub args: Vec<String>,
    /// After the image's environment.
    pub env: Vec<(String, String)>,
    /// In place of the image's working directory; empty for that.
    pub working_dir: String,
    /// In place of the image's user.
    pub uid: Option<u32>,
    /// In place of the image's group.
    pub gid: Option<u32>,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The process has a terminal.
    pub tty: bool,
    /// The process has an open standard input, for clients that attach.
    pub stdin: bool,
    /// The standard input is closed when the first client has gone.
    pub stdin_once: bool,
    /// The root cannot be written.
    pub readonly_rootfs: bool,
    /// Paths that are hidden.
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    pub readonly_paths: Vec<String>,
}

impl ProcessRequest {
    /// The process of a request.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with the name of a setting that would give the process a right of the
    /// machine, or that cannot be kept.
    pub fn of(config: &cri::ContainerConfig) -> Result<Self, Status> {
        let linux = config.linux.clone().unwrap_or_default();
        let context = linux.security_context.unwrap_or_default();
        refuse_rights(config, &context)?;
        refuse_namespaces(&context.namespace_options.unwrap_or_default())?;
        for mount in &config.mounts {
            refuse_mount(mount)?;
        }
        if !context.run_as_username.is_empty() {
            return Err(refused(
                "run_as_username",
                &context.run_as_username,
                "users are known by their numbers alone; use runAsUser",
            ));
        }
        if let (None, Some(group)) = (&context.run_as_user, &context.run_as_group) {
            let why = "a group is given without a user; set runAsUser, too";
            return Err(refused("run_as_group", group.value, why));
        }
        let groups = context.supplemental_groups.into_iter();
        let groups = groups.map(|gid| id("supplemental_groups", gid));
        let number = |field, value: Option<cri::Int64Value>| {
            value.map(|value| id(field, value.value)).transpose()
        };
        Ok(Self {
            command: config.command.clone(),
            args: config.args.clone(),
            env: config
                .envs
                .iter()
                .map(|env| (env.key.clone(), env.value.clone()))
                .collect(),
            working_dir: config.working_dir.clone(),
            uid: number("run_as_user", context.run_as_user)?,
            gid: number("run_as_group", context.run_as_group)?,
            groups: groups.collect::<Result<_, _>>()?,
            tty: config.tty,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            readonly_rootfs: context.readonly_rootfs,
            masked_paths: paths("masked_paths", context.masked_paths)?,
            readonly_paths: paths("readonly_paths", context.readonly_paths)?,
        })
    }
}

fn refused(field: &str, value: impl std::fmt::Display, why: &str) -> Status {
    Status::invalid_argument(format!(
        "config.linux.security_context.{field} {value}: refused by --containers=process: {why}"
    ))
}

/// Absolute paths without `..`.
fn paths(field: &str, paths: Vec<String>) -> Result<Vec<String>, Status> {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let bad = paths.iter().find(|path| {
        let path = Path::new(path);
        !path.is_absolute() || !path.components().all(is_plain)
    });
    match bad {
        Some(path) => Err(refused(
            field,
            path,
            "must be an absolute path without \"..\"",
        )),
        None => Ok(paths),
    }
}

/// A number of a user or group, which is not 0.
fn id(field: &str, value: i64) -> Result<u32, Status> {
    match u32::try_from(value) {
        Ok(0) => Err(refused(
            field,
            0,
            "containers do not run as root; use another number",
        )),
        Ok(id) if id < u32::MAX => Ok(id),
        _ => Err(refused(field, value, "the number is out of range")),
    }
}

fn refuse_rights(
    config: &cri::ContainerConfig,
    context: &cri::LinuxContainerSecurityContext,
) -> Result<(), Status> {
    if context.privileged {
        return Err(refused("privileged", true, "containers have no privileges"));
    }
    let capabilities = context.capabilities.clone().unwrap_or_default();
    let added = [
        ("add_capabilities", capabilities.add_capabilities),
        (
            "add_ambient_capabilities",
            capabilities.add_ambient_capabilities,
        ),
    ];
    for (field, names) in added {
        if !names.is_empty() {
            let field = format!("capabilities.{field}");
            let names = names.join(", ");
            return Err(refused(&field, names, "containers have no capabilities"));
        }
    }
    for (field, profile) in [
        ("seccomp", &context.seccomp),
        ("apparmor", &context.apparmor),
    ] {
        if let Some(profile) = profile
            && profile.profile_type() == cri::security_profile::ProfileType::Localhost
        {
            let why = "profiles of the machine are not loaded; there is one filter for all";
            return Err(refused(field, &profile.localhost_ref, why));
        }
    }
    for (field, is_set) in [
        ("devices", !config.devices.is_empty()),
        ("CDI_devices", !config.cdi_devices.is_empty()),
    ] {
        if is_set {
            return Err(Status::invalid_argument(format!(
                "config.{field}: refused by --containers=process: containers have no devices of \
                 the machine"
            )));
        }
    }
    Ok(())
}

fn refuse_namespaces(options: &cri::NamespaceOption) -> Result<(), Status> {
    use cri::NamespaceMode::{Node, Pod, Target};
    let field = |name: &str| format!("namespace_options.{name}");
    for (name, pod_field, mode) in [
        ("network", "hostNetwork", options.network()),
        ("pid", "hostPID", options.pid()),
        ("ipc", "hostIPC", options.ipc()),
    ] {
        if mode == Node {
            let why = format!("a container has no namespace of the machine; drop {pod_field}");
            return Err(refused(&field(name), "NODE", &why));
        }
    }
    let why = "each container has its own processes; drop shareProcessNamespace, or the target";
    match options.pid() {
        mode @ (Pod | Target) if mode == Target || is_given(options) => {
            Err(refused(&field("pid"), mode.as_str_name(), why))
        }
        _ => Ok(()),
    }
}

/// True for options that a client has set: without any, `POD` is only the default of the format.
fn is_given(options: &cri::NamespaceOption) -> bool {
    *options != cri::NamespaceOption::default()
}

fn refuse_mount(mount: &cri::Mount) -> Result<(), Status> {
    let refused = |field: &str, why: &str| {
        Status::invalid_argument(format!(
            "config.mounts: {}: {field}: refused by --containers=process: {why}",
            mount.container_path
        ))
    };
    if mount.image.is_some() {
        return Err(refused("image", "images cannot be mounted"));
    }
    if mount.propagation() != cri::MountPropagation::PropagationPrivate {
        return Err(refused("propagation", "mounts are private"));
    }
    if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
        return Err(refused("uidMappings", "owners are not mapped"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(
        change: impl FnOnce(&mut cri::ContainerConfig, &mut cri::LinuxContainerSecurityContext),
    ) -> cri::ContainerConfig {
        let mut config = cri::ContainerConfig::default();
        // As a kubelet has it.
        let mut context = cri::LinuxContainerSecurityContext {
            namespace_options: Some(cri::NamespaceOption {
                pid: cri::NamespaceMode::Container.into(),
                ..cri::NamespaceOption::default()
            }),
            run_as_user: Some(cri::Int64Value { value: 1000 }),
            ..cri::LinuxContainerSecurityContext::default()
        };
        change(&mut config, &mut context);
        config.linux = Some(cri::LinuxContainerConfig {
            security_context: Some(context),
            ..cri::LinuxContainerConfig::default()
        });
        config
    }

    #[test]
    fn keeps_what_the_process_is_to_be() {
        let wanted = config(|config, context| {
            config.command = vec!["sh".into()];
            config.tty = true;
            context.supplemental_groups = vec![2000];
        });
        let request = ProcessRequest::of(&wanted).unwrap();
        assert_eq!(request.command, ["sh"]);
        assert_eq!((request.uid, request.gid), (Some(1000), None));
        assert_eq!(request.groups, [2000]);
        assert!(request.tty && !request.stdin);
    }

    #[test]
    fn refuses_by_name_what_would_give_rights() {
        use cri::NamespaceMode::{Node, Pod, Target};
        let node = |set: fn(&mut cri::NamespaceOption)| {
            config(|_, context| set(context.namespace_options.as_mut().unwrap()))
        };
        let profile = || {
            Some(cri::SecurityProfile {
                profile_type: cri::security_profile::ProfileType::Localhost.into(),
                localhost_ref: "mine".into(),
            })
        };
        for (field, wanted) in [
            ("privileged", config(|_, context| context.privileged = true)),
            (
                "run_as_user 0",
                config(|_, context| {
                    context.run_as_user = Some(cri::Int64Value { value: 0 });
                }),
            ),
            (
                "run_as_user -1",
                config(|_, context| {
                    context.run_as_user = Some(cri::Int64Value { value: -1 });
                }),
            ),
            (
                "run_as_group 0",
                config(|_, context| {
                    context.run_as_group = Some(cri::Int64Value { value: 0 });
                }),
            ),
            (
                "run_as_group 7",
                config(|_, context| {
                    context.run_as_user = None;
                    context.run_as_group = Some(cri::Int64Value { value: 7 });
                }),
            ),
            (
                "masked_paths",
                config(|_, context| context.masked_paths = vec!["/a/../b".into()]),
            ),
            (
                "supplemental_groups 0",
                config(|_, context| context.supplemental_groups = vec![0]),
            ),
            (
                "run_as_username",
                config(|_, context| context.run_as_username = "root".into()),
            ),
            (
                "add_capabilities NET_ADMIN",
                config(|_, context| {
                    context.capabilities = Some(cri::Capability {
                        add_capabilities: vec!["NET_ADMIN".into()],
                        ..cri::Capability::default()
                    });
                }),
            ),
            (
                "seccomp mine",
                config(|_, context| context.seccomp = profile()),
            ),
            (
                "apparmor mine",
                config(|_, context| context.apparmor = profile()),
            ),
            ("hostNetwork", node(|options| options.network = Node.into())),
            ("hostPID", node(|options| options.pid = Node.into())),
            ("hostIPC", node(|options| options.ipc = Node.into())),
            ("pid TARGET", node(|options| options.pid = Target.into())),
            (
                "devices",
                config(|config, _| config.devices = vec![cri::Device::default()]),
            ),
            (
                "propagation",
                config(|config, _| {
                    config.mounts = vec![cri::Mount {
                        propagation: cri::MountPropagation::PropagationBidirectional.into(),
                        ..cri::Mount::default()
                    }];
                }),
            ),
            (
                "image",
                config(|config, _| {
                    config.mounts = vec![cri::Mount {
                        image: Some(cri::ImageSpec::default()),
                        ..cri::Mount::default()
                    }];
                }),
            ),
        ] {
            let refused = ProcessRequest::of(&wanted).unwrap_err();
            assert!(refused.message().contains(field), "{field}: {refused}");
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        }
        let shared = node(|options| {
            options.pid = Pod.into();
            options.target_id = "x".into();
        });
        assert!(ProcessRequest::of(&shared).is_err());
    }
}
