//! Ids of sandboxes and containers: 64 hexadecimal digits, as with other runtimes.

use std::{borrow::Borrow, fmt};

use podplane_host::random;
use serde::{Deserialize, Serialize};

/// The length of an id in digits.
const LEN: usize = 64;

fn is_id(text: &str) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == LEN && text.as_bytes().iter().all(is_digit)
}

macro_rules! id {
    ($(#[$doc:meta])* $id:ident, $error:ident, $object:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $id(String);

        #[doc = concat!("The text is not the id of a ", $object, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("invalid {object} id {0:?}: must be 64 lower-case hexadecimal digits", object = $object)]
        pub struct $error(String);

        impl $id {
            /// The length of an id in digits.
            pub const LEN: usize = LEN;

            /// A new id.
            pub fn random() -> Self {
                let half = || random::uuid().simple();
                Self(format!("{}{}", half(), half()))
            }

            /// The id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $id {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                if is_id(&text) {
                    Ok(Self(text))
                } else {
                    Err($error(text))
                }
            }
        }

        impl From<$id> for String {
            fn from(id: $id) -> Self {
                id.0
            }
        }

        impl Borrow<str> for $id {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// The id of a sandbox.
    SandboxId,
    SandboxIdError,
    "sandbox"
);
id!(
    /// The id of a container.
    ContainerId,
    ContainerIdError,
    "container"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_ids_of_64_hexadecimal_digits() {
        let id = SandboxId::random();
        assert_eq!(SandboxId::try_from(id.as_str().to_owned()), Ok(id));
        for bad in [
            "",
            "../x",
            &"g".repeat(64),
            &"A".repeat(64),
            &"a".repeat(63),
        ] {
            assert!(SandboxId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
