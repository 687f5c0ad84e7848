//! `--runtime-config`: versions of API groups that are not served, as in kube-apiserver.

use std::{collections::BTreeSet, str::FromStr, sync::Arc};

use crate::rest::resource::Resource;

/// A version of a group, and whether it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiVersionSetting {
    /// `GROUP/VERSION`; the core group has the version alone.
    version: String,
    is_served: bool,
}

/// The text does not set a version of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid setting {0:?}: want GROUP/VERSION=true or GROUP/VERSION=false")]
pub struct ApiVersionSettingError(String);

/// No kind of the server has this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--runtime-config: Invalid value: {version:?}: unknown API version; there are {known}")]
pub struct UnknownApiVersion {
    version: String,
    known: String,
}

impl FromStr for ApiVersionSetting {
    type Err = ApiVersionSettingError;

    fn from_str(text: &str) -> Result<Self, ApiVersionSettingError> {
        let refused = || ApiVersionSettingError(text.to_owned());
        let (version, value) = text.split_once('=').ok_or_else(refused)?;
        Ok(Self {
            version: version.to_owned(),
            is_served: value.parse().map_err(|_| refused())?,
        })
    }
}

/// Removes the resources of versions that are not served. A later setting of a version counts.
pub(crate) fn served(
    mut resources: Vec<Arc<dyn Resource>>,
    settings: &[ApiVersionSetting],
) -> Result<Vec<Arc<dyn Resource>>, UnknownApiVersion> {
    let version_of = |resource: &Arc<dyn Resource>| {
        let names = resource.names();
        match &*names.group {
            "" => names.version.to_string(),
            group => format!("{group}/{}", names.version),
        }
    };
    let known: BTreeSet<String> = resources.iter().map(version_of).collect();
    for ApiVersionSetting { version, .. } in settings {
        if !known.contains(version) {
            return Err(UnknownApiVersion {
                version: version.clone(),
                known: Vec::from_iter(known).join(", "),
            });
        }
    }
    resources.retain(|resource| {
        let version = version_of(resource);
        let mut settings = settings.iter().rev();
        settings
            .find(|setting| setting.version == version)
            .is_none_or(|setting| setting.is_served)
    });
    Ok(resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_version_and_a_value() {
        let setting: ApiVersionSetting = "networking.x-k8s.io/v1=false".parse().unwrap();
        assert_eq!(setting.version, "networking.x-k8s.io/v1");
        assert!(!setting.is_served);
        for text in ["", "apps/v1", "apps/v1=", "apps/v1=no"] {
            assert!(text.parse::<ApiVersionSetting>().is_err(), "{text}");
        }
    }
}
