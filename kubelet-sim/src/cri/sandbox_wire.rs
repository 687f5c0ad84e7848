//! Sandboxes as CRI has them.

use podplane_proto::cri;

use super::record::{SandboxMetadata, SandboxRecord, SandboxState};

fn wire_state(state: SandboxState) -> cri::PodSandboxState {
    match state {
        SandboxState::Ready => cri::PodSandboxState::SandboxReady,
        SandboxState::Creating | SandboxState::NotReady => cri::PodSandboxState::SandboxNotready,
    }
}

impl From<SandboxMetadata> for cri::PodSandboxMetadata {
    fn from(metadata: SandboxMetadata) -> Self {
        let SandboxMetadata {
            name,
            namespace,
            uid,
            attempt,
        } = metadata;
        Self {
            name,
            uid,
            namespace,
            attempt,
        }
    }
}

impl From<&SandboxRecord> for cri::PodSandbox {
    fn from(record: &SandboxRecord) -> Self {
        Self {
            state: wire_state(record.state).into(),
            id: record.id.clone().into(),
            metadata: Some(record.metadata.clone().into()),
            created_at: record.created_at,
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
            runtime_handler: record.runtime_handler.clone(),
        }
    }
}

impl From<&SandboxRecord> for cri::PodSandboxStatus {
    fn from(record: &SandboxRecord) -> Self {
        let mode = match record.network {
            Some(_) => cri::NamespaceMode::Pod,
            None => cri::NamespaceMode::Node,
        };
        let mut ips = record
            .network
            .iter()
            .flat_map(|network| &network.ips)
            .map(ToString::to_string);
        let network = cri::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| cri::PodIp { ip }).collect(),
        };
        let options = cri::NamespaceOption {
            network: mode.into(),
            ..cri::NamespaceOption::default()
        };
        Self {
            state: wire_state(record.state).into(),
            id: record.id.clone().into(),
            metadata: Some(record.metadata.clone().into()),
            created_at: record.created_at,
            network: Some(network),
            linux: Some(cri::LinuxPodSandboxStatus {
                namespaces: Some(cri::Namespace {
                    options: Some(options),
                }),
            }),
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
            runtime_handler: record.runtime_handler.clone(),
        }
    }
}

/// Returns true if a client that filters so wants the sandbox.
pub(super) fn matches(record: &SandboxRecord, filter: &cri::PodSandboxFilter) -> bool {
    let cri::PodSandboxFilter {
        id,
        state,
        label_selector,
    } = filter;
    let has = |(key, value): (&String, &String)| record.labels.get(key) == Some(value);
    record.id.as_str().starts_with(id)
        && state.is_none_or(|state| state.state() == wire_state(record.state))
        && label_selector.iter().all(has)
}
