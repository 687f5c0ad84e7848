//! The data of ConfigMaps and Secrets: keys, sizes and immutability (source:
//! `pkg/apis/core/validation`).

use super::{ErrorList, FieldPath};

/// The most bytes of all values of an object together (`MaxSecretSize`).
pub(crate) const MAX_BYTES: usize = 1024 * 1024;

const KEY_MAX: usize = 253;
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or \
     'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const FIXED: &str = "field is immutable when `immutable` is set";

/// Checks the name of a value, which may become the name of a file.
pub(crate) fn key(path: &FieldPath, key: &str, errors: &mut ErrorList) {
    let mut broken = Vec::new();
    if key.len() > KEY_MAX {
        broken.push(format!("must be no more than {KEY_MAX} characters"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if key.is_empty() || !key.bytes().all(is_allowed) {
        broken.push(KEY.to_owned());
    } else if key == "." || key == ".." {
        broken.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        broken.push("must not start with '..'".to_owned());
    }
    errors.invalid_each(&path.key(key), key, broken);
}

/// Checks that an object that was immutable is one still, and that the named parts, which are
/// equal or not, have not changed.
pub(crate) fn immutable(
    old: Option<bool>,
    new: Option<bool>,
    are_equal: &[(&str, bool)],
    errors: &mut ErrorList,
) {
    if old != Some(true) {
        return;
    }
    if new != Some(true) {
        errors.forbidden(&FieldPath::new("immutable"), FIXED);
    }
    for (field, _) in are_equal.iter().filter(|(_, is_equal)| !is_equal) {
        errors.forbidden(&FieldPath::new(field), FIXED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_of_files() {
        let broken = |text: &str| {
            let mut errors = ErrorList::new();
            key(&FieldPath::new("data"), text, &mut errors);
            errors.to_string()
        };
        for good in ["a", "A_b-c.d", "0", ".bashrc", &"a".repeat(253)] {
            assert_eq!(broken(good), "[]", "{good}");
        }
        assert_eq!(
            broken(".."),
            r#"data[..]: Invalid value: "..": must not be '..'"#
        );
        assert!(broken("..a").ends_with("must not start with '..'"));
        assert!(broken(&"a".repeat(254)).ends_with("must be no more than 253 characters"));
        for bad in ["", "a/b", "a b", "\u{e4}"] {
            assert!(broken(bad).contains("a valid config key"), "{bad}");
        }
    }
}
