//! Where an object breaks a rule, and in which words (source: `apimachinery/pkg/util/validation/field`).

use std::fmt;

use serde_json::Value;

/// The path of a field: `spec.containers[0].resources.limits[cpu]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A field of the object itself.
    pub fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    /// A field of this one.
    #[must_use]
    pub fn child(&self, field: &str) -> Self {
        Self(format!("{}.{field}", self.0))
    }

    /// An element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which kind of rule a field breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It has to be there.
    Required,
    /// It may not be there, or not change.
    Forbidden,
    /// Its value has the wrong form, or is out of range.
    Invalid,
    /// Its value is none of an enumeration.
    NotSupported,
    /// Its value is there already, where values are unique.
    Duplicate,
    /// What it refers to is not there.
    NotFound,
    /// It has too many characters or bytes.
    TooLong,
    /// It cannot be judged.
    Internal,
}

impl Rule {
    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::Internal => "Internal error",
        }
    }
}

/// A field that breaks a rule. Displayed as Kubernetes does: `spec.nodeName: Invalid value: "A": must be …`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field.
    pub path: Path,
    /// The kind of rule.
    pub rule: Rule,
    /// The value at fault, for rules that show it.
    pub value: Option<Value>,
    /// What would be right; empty where the rule says it all.
    pub detail: String,
}

impl FieldError {
    /// The error without its path: `Invalid value: "A": must be …`.
    pub fn body(&self) -> String {
        let rule = self.rule.words();
        let value = match &self.value {
            None => String::new(),
            Some(Value::String(text)) => format!(": {text:?}"),
            Some(value) => format!(": {value}"),
        };
        match self.detail.as_str() {
            "" => format!("{rule}{value}"),
            detail => format!("{rule}{value}: {detail}"),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// All rules that an object breaks, in the order in which they were found.
///
/// Displayed as Kubernetes does: one error alone, several in brackets, equal ones once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList(Vec<FieldError>);

impl ErrorList {
    /// No errors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no rule is broken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The errors, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }

    /// Adds the errors of another list.
    pub fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The field has to be there.
    pub fn required(&mut self, path: &Path, detail: &str) {
        self.push(path, Rule::Required, None, detail);
    }

    /// The field may not be there, or not change.
    pub fn forbidden(&mut self, path: &Path, detail: &str) {
        self.push(path, Rule::Forbidden, None, detail);
    }

    /// The value has the wrong form, or is out of range.
    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: &str) {
        self.push(path, Rule::Invalid, Some(value.into()), detail);
    }

    /// The value breaks each of these rules.
    pub fn invalid_each(&mut self, path: &Path, value: &str, rules: Vec<String>) {
        for rule in rules {
            self.invalid(path, value, &rule);
        }
    }

    /// The value is none of `supported`.
    pub fn not_supported(&mut self, path: &Path, value: &str, supported: &[&str]) {
        self.not_supported_value(path, value.into(), supported);
    }

    /// The same for a value that is no text.
    pub fn not_supported_value(&mut self, path: &Path, value: Value, supported: &[&str]) {
        let quoted: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, Rule::NotSupported, Some(value), &detail);
    }

    /// The value is there already.
    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(path, Rule::Duplicate, Some(value.into()), "");
    }

    /// What the value refers to is not there.
    pub fn not_found(&mut self, path: &Path, value: &str) {
        self.push(path, Rule::NotFound, Some(value.into()), "");
    }

    /// The value has more than `max` bytes.
    pub fn too_long(&mut self, path: &Path, max: usize) {
        self.push(
            path,
            Rule::TooLong,
            None,
            &format!("may not be more than {max} bytes"),
        );
    }

    /// The value cannot be judged.
    pub fn internal(&mut self, path: &Path, detail: &str) {
        self.push(path, Rule::Internal, None, detail);
    }

    fn push(&mut self, path: &Path, rule: Rule, value: Option<Value>, detail: &str) {
        self.0.push(FieldError {
            path: path.clone(),
            rule,
            value,
            detail: detail.to_owned(),
        });
    }
}

impl fmt::Display for ErrorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut distinct: Vec<String> = Vec::new();
        for error in self.iter().map(FieldError::to_string) {
            if !distinct.contains(&error) {
                distinct.push(error);
            }
        }
        match &distinct[..] {
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_print_as_kubernetes_prints_them() {
        let path = Path::new("spec").child("containers").index(1);
        let mut errors = ErrorList::new();
        errors.required(&path.child("image"), "");
        errors.invalid(
            &path.child("ports"),
            70000,
            "must be between 1 and 65535, inclusive",
        );
        errors.duplicate(&path.child("name"), "a");
        errors.not_supported(&path.child("p"), "x", &["a", "b"]);
        errors.invalid(&path.child("l"), json!(["x", "y"]), "no");
        errors.too_long(&path.child("t"), 3);
        errors.required(&path.child("image"), "");
        assert_eq!(
            errors.to_string(),
            r#"[spec.containers[1].image: Required value, spec.containers[1].ports: Invalid value: 70000: must be between 1 and 65535, inclusive, spec.containers[1].name: Duplicate value: "a", spec.containers[1].p: Unsupported value: "x": supported values: "a", "b", spec.containers[1].l: Invalid value: ["x","y"]: no, spec.containers[1].t: Too long: may not be more than 3 bytes]"#
        );
    }

    #[test]
    fn one_error_has_no_brackets() {
        let mut errors = ErrorList::new();
        errors.forbidden(
            &Path::new("metadata").child("annotations").key("a"),
            "not now",
        );
        assert_eq!(
            errors.to_string(),
            "metadata.annotations[a]: Forbidden: not now"
        );
    }
}
