//! PriorityClasses: names for the priorities of pods.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    core::Pod,
    kinds::pod::one_of,
    meta::ObjectMeta,
    names,
    object::{Object, Scope, json_conversions},
    scheduling::PriorityClass,
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created, integer},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

/// The prefix of names that only built-in classes have.
const SYSTEM_PREFIX: &str = "system-";
/// The highest priority of a class that is not built in.
const HIGHEST_USER_PRIORITY: i32 = 1_000_000_000;
/// The policy of a class that states none.
pub(super) const DEFAULT_POLICY: &str = "PreemptLowerPriority";
/// The policies, in the order in which errors list them.
pub(super) const POLICIES: [&str; 2] = ["Never", DEFAULT_POLICY];

/// The built-in classes: name, value and description.
const SYSTEM_CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// The classes that exist from the first start, and cannot be deleted.
pub fn system_priority_classes() -> impl Iterator<Item = PriorityClass> {
    SYSTEM_CLASSES
        .into_iter()
        .map(|(name, value, description)| PriorityClass {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            value: Some(value),
            description: Some(description.to_owned()),
            ..PriorityClass::default()
        })
}

/// The class that pods without one get: the one marked as global default. There is at most one,
/// except after a race of two creations, when the lowest counts.
pub fn default_priority_class(
    classes: impl IntoIterator<Item = PriorityClass>,
) -> Option<PriorityClass> {
    let marked = classes
        .into_iter()
        .filter(|class| class.global_default == Some(true));
    marked.min_by_key(|class| class.value.unwrap_or_default())
}

/// The class of a new pod, of those of its cluster: the one that it names; if it names none, the
/// global default if there is one.
///
/// # Errors
///
/// The reason in words, if there is no class of that name.
pub fn class_of(
    pod: &Pod,
    classes: impl IntoIterator<Item = PriorityClass>,
) -> Result<Option<PriorityClass>, String> {
    let mut classes = classes.into_iter();
    match class_name(pod) {
        None => Ok(default_priority_class(classes)),
        Some(name) => {
            let class = classes.find(|class| class.name() == name);
            class.map(Some).ok_or_else(|| missing_class(name))
        }
    }
}

/// The name of the class that the pod names.
pub fn class_name(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref()?.priority_class_name.as_deref()?;
    Some(name).filter(|name| !name.is_empty())
}

/// The reason why a pod of a class that does not exist is refused, in Kubernetes' words.
pub fn missing_class(name: &str) -> String {
    format!("no PriorityClass with name {name} was found")
}

impl Object for PriorityClass {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "priorityclass";
    const SHORT_NAMES: &'static [&'static str] = &["pc"];

    json_conversions!();
}

impl FieldSelectable for PriorityClass {}

impl Validate for PriorityClass {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        if self.name().starts_with(SYSTEM_PREFIX) {
            if let Err(why) = is_built_in(self) {
                let detail = format!(
                    "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}"
                );
                errors.forbidden(&FieldPath::new("metadata").child("name"), &detail);
            }
        } else if self.value > Some(HIGHEST_USER_PRIORITY) {
            let detail = format!(
                "maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            );
            errors.forbidden(&FieldPath::new("value"), &detail);
        }
        let path = FieldPath::new("preemptionPolicy");
        if let Some(policy) = self.preemption_policy.as_deref() {
            one_of(&path, Some(policy), &POLICIES, &mut errors);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if self.value != old.value {
            errors.forbidden(&FieldPath::new("value"), "may not be changed in an update.");
        }
        if self.preemption_policy != old.preemption_policy {
            let path = FieldPath::new("preemptionPolicy");
            let policy = json!(self.preemption_policy);
            errors.invalid(&path, policy, "field is immutable");
        }
        errors
    }
}

/// Checks that the class is exactly a built-in one (source: `IsKnownSystemPriorityClass`).
fn is_built_in(class: &PriorityClass) -> Result<(), String> {
    let name = class.name();
    let known = SYSTEM_CLASSES.into_iter().find(|known| known.0 == name);
    let Some((_, value, _)) = known else {
        return Err(format!("{name} is not a known system priority class"));
    };
    if class.value != Some(value) {
        return Err(format!("value of {name} PriorityClass must be {value}"));
    }
    if class.global_default == Some(true) {
        return Err(format!(
            "globalDefault of {name} PriorityClass must be false"
        ));
    }
    Ok(())
}

impl TableRow for PriorityClass {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("VALUE"),
        always("GLOBAL-DEFAULT"),
        always("AGE"),
        always("PREEMPTIONPOLICY"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            self.value.unwrap_or_default().to_string(),
            self.global_default.unwrap_or_default().to_string(),
            created(self, now),
            self.preemption_policy.clone().unwrap_or_default(),
        ]
    }
}

impl Strategy for PriorityClass {
    const SERVICE: &'static str = "podplane.scheduling.v1.PriorityClassService";

    fn set_defaults(&mut self) {
        self.value.get_or_insert(0);
        self.preemption_policy
            .get_or_insert_with(|| DEFAULT_POLICY.to_owned());
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn delete_refusal(&self) -> Option<&'static str> {
        let mut built_in = SYSTEM_CLASSES.into_iter();
        built_in
            .any(|(name, ..)| name == self.name())
            .then_some("this is a system priority class and cannot be deleted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, value: i32) -> PriorityClass {
        let document = json!({"metadata": {"name": name}, "value": value});
        let mut class = PriorityClass::from_json(document).unwrap();
        class.set_defaults();
        class
    }

    #[test]
    fn accepts_the_built_in_classes_and_lower_ones() {
        let user = [class("high", HIGHEST_USER_PRIORITY), class("low", i32::MIN)];
        for class in system_priority_classes().chain(user) {
            assert!(class.validate().is_empty(), "{class:?}");
        }
    }

    #[test]
    fn keeps_high_priorities_and_system_names_for_the_built_in_classes() {
        let marked = PriorityClass {
            global_default: Some(true),
            ..class("system-node-critical", 2_000_001_000)
        };
        let reserved = "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: ";
        let cases = [
            (
                class("high", HIGHEST_USER_PRIORITY + 1),
                "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
                    .to_owned(),
            ),
            (
                class("system-mine", 1),
                format!("{reserved}system-mine is not a known system priority class"),
            ),
            (
                class("system-cluster-critical", 1),
                format!(
                    "{reserved}value of system-cluster-critical PriorityClass must be 2000000000"
                ),
            ),
            (
                marked,
                format!(
                    "{reserved}globalDefault of system-node-critical PriorityClass must be false"
                ),
            ),
        ];
        for (class, expected) in cases {
            assert_eq!(class.validate().to_string(), expected);
        }
    }

    #[test]
    fn refuses_unknown_preemption_policies() {
        let with = |policy: &str| PriorityClass {
            preemption_policy: Some(policy.into()),
            ..class("a", 1)
        };
        assert!(with("Never").validate().is_empty());
        assert_eq!(
            with("Always").validate().to_string(),
            r#"preemptionPolicy: Unsupported value: "Always": supported values: "Never", "PreemptLowerPriority""#
        );
        assert_eq!(
            with("").validate().to_string(),
            "preemptionPolicy: Required value"
        );
    }

    #[test]
    fn value_and_preemption_policy_are_immutable() {
        let old = class("a", 1);
        let mut new = PriorityClass {
            global_default: Some(true),
            description: Some("mine".into()),
            ..old.clone()
        };
        assert!(new.validate_update(&old).is_empty());
        new.value = Some(2);
        new.preemption_policy = Some("Never".into());
        assert_eq!(
            new.validate_update(&old).to_string(),
            r#"[value: Forbidden: may not be changed in an update., preemptionPolicy: Invalid value: "Never": field is immutable]"#
        );
    }

    #[test]
    fn the_lowest_of_several_global_defaults_counts() {
        let marked = |name, value| PriorityClass {
            global_default: Some(true),
            ..class(name, value)
        };
        let classes = [marked("a", 7), class("b", 1), marked("c", 5)];
        let default = default_priority_class(classes).unwrap();
        assert_eq!(default.name(), "c");
        assert_eq!(default_priority_class([class("b", 1)]), None);
    }

    #[test]
    fn shows_value_and_policy() {
        let cells = class("a", -5).cells(Timestamp::UNIX_EPOCH);
        assert_eq!(
            cells,
            ["a", "-5", "false", "<unknown>", "PreemptLowerPriority"]
        );
    }
}
