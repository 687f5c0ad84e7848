//! RBAC: roles, bindings, and who may grant them.
//!
//! Rules only add up; nothing takes a right away. [`Policy`] holds the roles and bindings of a
//! cluster, compiled, and is kept by their events. [`cover`] compares rules, [`escalation`] refuses
//! to grant what one does not have, and [`aggregation`] fills the roles that consist of others.

pub mod aggregation;
mod binding;
pub mod cover;
pub mod escalation;
mod policy;
mod rule;

pub use policy::{Policy, PolicyObject, ResolvedRules, RoleNotFound};
pub use rule::CompiledRules;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The wildcard of verbs, groups, resources and paths.
pub(crate) const ALL: &str = "*";

/// Several errors as one text, each once: empty for none, `[a, b]` for several.
pub(crate) fn aggregated_text(errors: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.len() {
        0 | 1 => texts.pop().unwrap_or_default(),
        _ => format!("[{}]", texts.join(", ")),
    }
}
