//! The sandbox that a `RunPodSandbox` asks for.

use podplane_proto::cri;
use tonic::Status;

use super::{
    capabilities,
    record::{Dns, SandboxMetadata},
    sandboxes::{NetworkMode, SandboxSpec},
    sysctls,
};

impl TryFrom<cri::RunPodSandboxRequest> for SandboxSpec {
    type Error = Status;

    fn try_from(request: cri::RunPodSandboxRequest) -> Result<Self, Status> {
        let missing = |field: &str| Status::invalid_argument(format!("{field} is missing"));
        let config = request.config.ok_or_else(|| missing("config"))?;
        let metadata = config.metadata.ok_or_else(|| missing("config.metadata"))?;
        let cri::PodSandboxMetadata {
            name,
            uid,
            namespace,
            attempt,
        } = metadata;
        for (field, value) in [("name", &name), ("uid", &uid), ("namespace", &namespace)] {
            if value.is_empty() {
                return Err(missing(&format!("config.metadata.{field}")));
            }
            // These fields become CNI_ARGS, which cannot quote.
            if value.contains(['=', ';']) || value.contains(char::is_control) {
                return Err(Status::invalid_argument(format!(
                    "config.metadata.{field} {value:?} has a character that CNI_ARGS cannot carry"
                )));
            }
        }
        if !request.runtime_handler.is_empty() {
            return Err(Status::invalid_argument(format!(
                "failed to get sandbox runtime: no runtime for {:?} is configured",
                request.runtime_handler
            )));
        }
        let linux = config.linux.unwrap_or_default();
        let context = linux.security_context.unwrap_or_default();
        let options = context.namespace_options;
        let userns = options.as_ref().and_then(|o| o.userns_options.as_ref());
        if userns.is_some_and(|userns| userns.mode() == cri::NamespaceMode::Pod) {
            return Err(Status::invalid_argument(
                "config.linux.security_context.namespace_options.userns_options: a sandbox cannot \
                 have a user namespace of its own; set hostUsers of the pod to true, or leave it out",
            ));
        }
        let network = match options.map(|options| options.network()) {
            None | Some(cri::NamespaceMode::Pod) => NetworkMode::Pod,
            Some(cri::NamespaceMode::Node) => NetworkMode::Node,
            Some(mode @ (cri::NamespaceMode::Container | cri::NamespaceMode::Target)) => {
                return Err(Status::invalid_argument(format!(
                    "a sandbox cannot have its network in mode {}",
                    mode.as_str_name()
                )));
            }
        };
        let sysctls = sysctls::checked(linux.sysctls)?;
        if let (NetworkMode::Node, Some(path)) = (network, sysctls.keys().next()) {
            return Err(Status::invalid_argument(format!(
                "config.linux.sysctls: {path} cannot be set for a sandbox in its node's network, \
                 since it would be set for the whole node"
            )));
        }
        let annotations = config.annotations.into_iter().collect();
        let dns = config.dns_config.map(dns).transpose()?;
        let dns = dns.filter(|dns| *dns != Dns::default());
        let runtime_config = capabilities::of(capabilities::CapabilitySource {
            ports: &config.port_mappings,
            annotations: &annotations,
            dns: dns.as_ref(),
            cgroup_parent: &linux.cgroup_parent,
        })?;
        Ok(Self {
            metadata: SandboxMetadata {
                name,
                namespace,
                uid,
                attempt,
            },
            labels: config.labels.into_iter().collect(),
            annotations,
            runtime_handler: request.runtime_handler,
            hostname: hostname(config.hostname)?,
            dns,
            runtime_config,
            sysctls,
            network,
        })
    }
}

/// The host name, if it is valid.
fn hostname(name: String) -> Result<String, Status> {
    // The kernel takes any 64 bytes.
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.len() <= 64 && name.chars().all(is_allowed) {
        return Ok(name);
    }
    Err(Status::invalid_argument(format!(
        "config.hostname: invalid host name {name:?}: must be at most 64 letters, digits, '-' and '.'"
    )))
}

/// The resolver's configuration, if all entries are single words, as they become words of a file.
fn dns(config: cri::DnsConfig) -> Result<Dns, Status> {
    let cri::DnsConfig {
        servers,
        searches,
        options,
    } = config;
    for (field, words) in [
        ("servers", &servers),
        ("searches", &searches),
        ("options", &options),
    ] {
        let is_word = |text: &&String| !text.is_empty() && !text.contains(char::is_whitespace);
        if let Some(bad) = words.iter().find(|text| !is_word(text)) {
            return Err(Status::invalid_argument(format!(
                "config.dns_config.{field}: invalid entry {bad:?}: must be one word"
            )));
        }
    }
    Ok(Dns {
        servers,
        searches,
        options,
    })
}
