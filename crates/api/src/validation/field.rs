//! Validation errors: the path of a field, the kind of error and the message (source:
//! `apimachinery/pkg/util/validation/field`).

use std::fmt;

use serde_json::Value;

/// The path of a field: `spec.containers[0].resources.limits[cpu]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// A field of the object itself.
    pub fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    /// The path of a field of this one.
    #[must_use]
    pub fn child(&self, field: &str) -> Self {
        Self(format!("{}.{field}", self.0))
    }

    /// The path of an element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path of an entry of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of a validation error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorRule {
    /// The field is required.
    Required,
    /// The field must be absent, or must not change.
    Forbidden,
    /// The value is malformed or out of range.
    Invalid,
    /// The value is not in an enumeration.
    NotSupported,
    /// The value is not unique.
    Duplicate,
    /// The referenced object does not exist.
    NotFound,
    /// The value has too many characters or bytes.
    TooLong,
    /// The list or map has too many elements.
    TooMany,
    /// The value cannot be checked.
    Internal,
}

impl ErrorRule {
    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }
}

/// A validation error of a field. Formatted as in Kubernetes:
/// `spec.nodeName: Invalid value: "A": must be …`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field.
    pub path: FieldPath,
    /// The kind of the error.
    pub rule: ErrorRule,
    /// The invalid value, for kinds that show it.
    pub value: Option<Value>,
    /// The requirement; empty where the kind is sufficient.
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

/// All validation errors of an object, in the order in which they were found.
///
/// Formatted as in Kubernetes: a single error alone, several in brackets, equal ones once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList(Vec<FieldError>);

impl ErrorList {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if there are no errors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The errors, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }

    /// Adds an error.
    pub fn add(&mut self, error: FieldError) {
        self.0.push(error);
    }

    /// Adds an error for a list or map with `actual` elements, which may have `max`.
    pub fn too_many(&mut self, path: &FieldPath, actual: usize, max: u64) {
        let items = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {items}");
        self.push(path, ErrorRule::TooMany, Some(actual.into()), &detail);
    }

    /// Adds the errors of another list.
    pub fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Adds an error for a missing field.
    pub fn required(&mut self, path: &FieldPath, detail: &str) {
        self.push(path, ErrorRule::Required, None, detail);
    }

    /// Adds an error for a field that must be absent or must not change.
    pub fn forbidden(&mut self, path: &FieldPath, detail: &str) {
        self.push(path, ErrorRule::Forbidden, None, detail);
    }

    /// Adds an error for a malformed value or one out of range.
    pub fn invalid(&mut self, path: &FieldPath, value: impl Into<Value>, detail: &str) {
        self.push(path, ErrorRule::Invalid, Some(value.into()), detail);
    }

    /// Adds an error for each of these violated rules.
    pub fn invalid_each(&mut self, path: &FieldPath, value: &str, rules: Vec<String>) {
        for rule in rules {
            self.invalid(path, value, &rule);
        }
    }

    /// Adds an error for a value that is not in `supported`.
    pub fn not_supported(&mut self, path: &FieldPath, value: &str, supported: &[&str]) {
        self.not_supported_value(path, value.into(), supported);
    }

    /// Adds an error for a value other than a string that is not supported.
    pub fn not_supported_value(&mut self, path: &FieldPath, value: Value, supported: &[&str]) {
        let quoted: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, ErrorRule::NotSupported, Some(value), &detail);
    }

    /// Adds an error for a value that is not unique.
    pub fn duplicate(&mut self, path: &FieldPath, value: impl Into<Value>) {
        self.push(path, ErrorRule::Duplicate, Some(value.into()), "");
    }

    /// Adds an error for a reference to a missing object.
    pub fn not_found(&mut self, path: &FieldPath, value: &str) {
        self.push(path, ErrorRule::NotFound, Some(value.into()), "");
    }

    /// Adds an error for a value with more than `max` bytes.
    pub fn too_long(&mut self, path: &FieldPath, max: usize) {
        self.push(
            path,
            ErrorRule::TooLong,
            None,
            &format!("may not be more than {max} bytes"),
        );
    }

    /// Adds an error for a value that cannot be checked.
    pub fn internal(&mut self, path: &FieldPath, detail: &str) {
        self.push(path, ErrorRule::Internal, None, detail);
    }

    fn push(&mut self, path: &FieldPath, rule: ErrorRule, value: Option<Value>, detail: &str) {
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
        let path = FieldPath::new("spec").child("containers").index(1);
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
    fn prints_a_single_error_without_brackets() {
        let mut errors = ErrorList::new();
        errors.forbidden(
            &FieldPath::new("metadata").child("annotations").key("a"),
            "not now",
        );
        assert_eq!(
            errors.to_string(),
            "metadata.annotations[a]: Forbidden: not now"
        );
    }
}
