//! Taints and tolerations.

use crate::core::{Taint, Toleration};

/// The taint of a node whose kubelet is unreachable.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// True if the toleration matches the taint. An empty effect matches every effect, an empty key
/// with `Exists` every key.
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    fn not_empty(text: Option<&String>) -> Option<&str> {
        text.map(String::as_str).filter(|text| !text.is_empty())
    }
    let value = toleration.value.as_deref().unwrap_or_default();
    not_empty(toleration.effect.as_ref()).is_none_or(|effect| effect == taint.effect)
        && not_empty(toleration.key.as_ref()).is_none_or(|key| key == taint.key)
        && match not_empty(toleration.operator.as_ref()) {
            Some("Exists") => true,
            Some("Equal") | None => value == taint.value.as_deref().unwrap_or_default(),
            Some(_) => false,
        }
}
