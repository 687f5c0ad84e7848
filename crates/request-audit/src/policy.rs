//! The audit policy: which requests are written, and how much of each.

mod document;
mod matching;

use podplane_access::Attributes;

use self::document::{GroupResources, PolicyDocument, Rule};
use crate::level::{Level, StageSet};

/// The amount and the stages that are written about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The amount.
    pub level: Level,
    /// The stages without an event.
    pub omit_stages: StageSet,
    /// True if `metadata.managedFields` is left out of bodies.
    pub omit_managed_fields: bool,
}

/// A valid policy.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<CompiledRule>,
    /// The decision about requests that no rule matches.
    otherwise: Decision,
}

#[derive(Clone, Debug)]
struct CompiledRule {
    rule: Rule,
    decision: Decision,
}

/// The text is not a policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The text is not YAML.
    #[error("invalid YAML")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// A field is unknown or has a value of another type.
    #[error("{path}: {reason}")]
    Field {
        /// The field, such as `rules[2].resources[0].group`.
        path: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// The document is of another kind.
    #[error("apiVersion and kind must be `audit.k8s.io/v1` and `Policy`, not `{0}` and `{1}`")]
    Kind(String, String),
    /// Without rules nothing would ever be written.
    #[error("rules: must have at least one rule")]
    NoRules,
    /// The fields are readable and break rules: one in each line.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

impl Policy {
    /// Reads a policy: YAML, of which JSON is a subset. Fields that `audit.k8s.io/v1` does not have
    /// are refused, unlike in Kubernetes, which ignores them with a warning: a misspelled
    /// restriction would widen its rule.
    ///
    /// # Errors
    ///
    /// [`PolicyError`], which names the field and its rule.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let PolicyDocument {
            rules,
            omit_stages,
            omit_managed_fields,
        } = document::read(text)?;
        let omit_stages: StageSet = omit_stages.into_iter().collect();
        let otherwise = Decision {
            level: Level::None,
            omit_stages,
            omit_managed_fields,
        };
        let compiled = rules.into_iter().map(|rule| CompiledRule {
            decision: Decision {
                level: rule.level,
                omit_stages: omit_stages.union(rule.omit_stages.iter().copied().collect()),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(omit_managed_fields),
            },
            rule,
        });
        Ok(Self {
            rules: compiled.collect(),
            otherwise,
        })
    }

    /// The decision about a request: that of the first rule that matches it, or level `None`.
    pub fn decide(&self, request: &Attributes<'_>) -> Decision {
        let matched = self
            .rules
            .iter()
            .find(|compiled| matching::matches(&compiled.rule, request));
        matched.map_or(self.otherwise, |compiled| compiled.decision)
    }

    /// The highest level that a request can have.
    pub fn highest_level(&self) -> Level {
        let levels = self.rules.iter().map(|compiled| compiled.decision.level);
        levels.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
