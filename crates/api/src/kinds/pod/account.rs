//! The ServiceAccount of a pod (source: Kubernetes' admission plugin `ServiceAccount`, without the
//! token volume).

use crate::{
    core::{Pod, ServiceAccount},
    kinds::service_account::DEFAULT_ACCOUNT,
    object::Object as _,
};

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
