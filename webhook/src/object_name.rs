//! The namespace and name of an object, as a flag.

use std::str::FromStr;

use podplane_api::{ObjectKey, names};

/// The namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName(pub(crate) ObjectKey);

/// The text is not the namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name of an object {0:?}: want NAMESPACE/NAME")]
pub struct ObjectNameError(String);

impl FromStr for ObjectName {
    type Err = ObjectNameError;

    fn from_str(text: &str) -> Result<Self, ObjectNameError> {
        let refused = || ObjectNameError(text.to_owned());
        let (namespace, name) = text.split_once('/').ok_or_else(refused)?;
        let is_valid =
            names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty();
        match is_valid {
            true => Ok(Self(ObjectKey::new(namespace, name))),
            false => Err(refused()),
        }
    }
}
