//! The parameters of requests, as kube-rs has them.

use kube::api::{Preconditions, PropagationPolicy, VersionMatch, WatchParams};
use podplane_proto::{error::ApiError, wire::Propagation};

use crate::api::{DeleteParams, ListParams};

pub(super) fn list_params(params: &ListParams) -> Result<kube::api::ListParams, ApiError> {
    let ListParams {
        label_selector,
        field_selector,
        limit,
        continue_token,
        resource_version,
        resource_version_match,
    } = params.clone();
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let version_match = match resource_version_match.as_str() {
        "" => None,
        "Exact" => Some(VersionMatch::Exact),
        "NotOlderThan" => Some(VersionMatch::NotOlderThan),
        other => {
            let why = format!("Unsupported value: {other:?}: must be Exact or NotOlderThan");
            return Err(ApiError::bad_field("resourceVersionMatch", why));
        }
    };
    Ok(kube::api::ListParams {
        label_selector: given(label_selector),
        field_selector: given(field_selector),
        limit: u32::try_from(limit).ok().filter(|limit| *limit > 0),
        continue_token: given(continue_token),
        version_match,
        resource_version: given(resource_version),
        ..kube::api::ListParams::default()
    })
}

pub(super) fn watch_params(params: &ListParams) -> WatchParams {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    WatchParams {
        label_selector: given(&params.label_selector),
        field_selector: given(&params.field_selector),
        bookmarks: true,
        ..WatchParams::default()
    }
}

/// The options of a deletion as kube-rs has them.
pub(crate) fn delete_params(params: &DeleteParams) -> kube::api::DeleteParams {
    let DeleteParams {
        grace_period_seconds,
        uid,
        resource_version,
        propagation,
    } = params.clone();
    let is_conditional = uid.is_some() || resource_version.is_some();
    kube::api::DeleteParams {
        grace_period_seconds: grace_period_seconds
            .map(|seconds| u32::try_from(seconds).unwrap_or_default()),
        propagation_policy: propagation.map(|policy| match policy {
            Propagation::Background => PropagationPolicy::Background,
            Propagation::Foreground => PropagationPolicy::Foreground,
            Propagation::Orphan => PropagationPolicy::Orphan,
        }),
        preconditions: is_conditional.then_some(Preconditions {
            resource_version,
            uid,
        }),
        ..kube::api::DeleteParams::default()
    }
}
