//! Checks that fields of many kinds share.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::Serialize;
use serde_json::json;

use super::{ErrorList, FieldPath};
use crate::{Quantity, quantity};

const QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Checks that a value has not changed.
pub(crate) fn immutable<T: PartialEq + Serialize>(
    path: &FieldPath,
    new: &T,
    old: &T,
    errors: &mut ErrorList,
) {
    if new != old {
        errors.invalid(path, json!(new), "field is immutable");
    }
}

/// Checks that a text is not empty and follows the rules.
pub(crate) fn named(
    path: &FieldPath,
    text: &str,
    rules: fn(&str) -> Vec<String>,
    errors: &mut ErrorList,
) {
    match text {
        "" => errors.required(path, ""),
        text => errors.invalid_each(path, text, rules(text)),
    }
}

/// The thousandths of a quantity; the whole part of it, times a thousand, if it is too large.
pub(crate) fn millis(quantity: &Quantity) -> Option<i128> {
    let exact = quantity::millis(quantity).map(i128::from).ok();
    exact.or_else(|| Some(i128::from(quantity::units(quantity).ok()?) * 1000))
}

/// Checks that a quantity is one, and at least 0.
pub(crate) fn quantity(path: &FieldPath, quantity: &Quantity, errors: &mut ErrorList) {
    match millis(quantity) {
        None => errors.invalid(path, quantity.0.as_str(), QUANTITY),
        Some(value) if value < 0 => {
            let detail = "must be greater than or equal to 0";
            errors.invalid(path, quantity.0.as_str(), detail);
        }
        Some(_) => {}
    }
}

/// Checks that a quantity is one, and above 0.
pub(crate) fn positive(path: &FieldPath, quantity: &Quantity, errors: &mut ErrorList) {
    match millis(quantity) {
        None => errors.invalid(path, quantity.0.as_str(), QUANTITY),
        Some(value) if value <= 0 => {
            errors.invalid(path, quantity.0.as_str(), "must be greater than zero");
        }
        Some(_) => {}
    }
}

/// Checks the quantities of a map, and its keys by the rules.
pub(crate) fn quantities(
    path: &FieldPath,
    all: Option<&BTreeMap<String, Quantity>>,
    rules: fn(&str) -> Vec<String>,
    errors: &mut ErrorList,
) {
    for (name, value) in all.into_iter().flatten() {
        errors.invalid_each(&path.key(name), name, rules(name));
        quantity(&path.key(name), value, errors);
    }
}

/// Sets a default for a missing or an empty text.
pub(crate) fn default_word(field: &mut Option<String>, value: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(value.to_owned());
    }
}

/// Checks that a text is a range of addresses, and returns it.
pub(crate) fn cidr(path: &FieldPath, text: &str, errors: &mut ErrorList) -> Option<IpNet> {
    let range = text.parse::<IpNet>().ok();
    if range.is_none() {
        let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.invalid(path, text, detail);
    }
    range.map(|range| range.trunc())
}

/// Checks that a text is an address as it is written in the shortest way.
pub(crate) fn canonical_ip(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
        Ok(address) if address.to_string() != text => {
            vec![format!(
                "must be in canonical form ({:?})",
                address.to_string()
            )]
        }
        Ok(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_in_the_shortest_way() {
        assert!(canonical_ip("fd00::1").is_empty());
        assert_eq!(canonical_ip("fd00:0::1").len(), 1);
        assert_eq!(canonical_ip("010.0.0.1").len(), 1);
    }
}
