//! Validation of names and ids, shared by plugins and runtimes.

use std::net::IpAddr;

use super::{CniError, Version, code};

/// Returns true if the text matches `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Validates a container id.
///
/// # Errors
/// Code 3 if it is missing, otherwise code 4.
pub fn container_id(id: &str) -> Result<(), CniError> {
    if id.is_empty() {
        return Err(CniError::new(
            code::UNKNOWN_CONTAINER,
            "missing containerID",
        ));
    }
    if !is_identifier(id) {
        let error = CniError::new(
            code::INVALID_ENVIRONMENT,
            "invalid characters in containerID",
        );
        return Err(error.with_details(id));
    }
    Ok(())
}

/// Validates the name of a network.
///
/// # Errors
/// Code 7.
pub fn network_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::new(code::INVALID_CONFIG, "missing network name"));
    }
    if !is_identifier(name) {
        let msg = "invalid characters found in network name";
        return Err(CniError::new(code::INVALID_CONFIG, msg).with_details(name));
    }
    Ok(())
}

/// Validates the name of an interface.
///
/// # Errors
/// Code 4.
pub fn interface_name(name: &str) -> Result<(), CniError> {
    let invalid = |msg: &str| CniError::new(code::INVALID_ENVIRONMENT, msg);
    if name.is_empty() {
        return Err(invalid("interface name is empty"));
    }
    if name.len() > 15 {
        return Err(invalid("interface name is too long")
            .with_details("interface name should be less than 16 characters"));
    }
    if name == "." || name == ".." {
        return Err(invalid("interface name is . or .."));
    }
    if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return Err(invalid(
            "interface name contains / or : or whitespace characters",
        ));
    }
    Ok(())
}

/// Checks that a result of the version has room for the addresses: before 0.3.0 for one of each
/// family.
///
/// # Errors
/// The reference's text.
pub fn families(version: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), String> {
    let (mut v4, mut v6) = (0, 0);
    for address in addresses {
        *(if address.is_ipv4() { &mut v4 } else { &mut v6 }) += 1;
    }
    let is_old = || {
        let version = version.parse::<Version>();
        version.is_ok_and(|version| version < Version::V0_3_0)
    };
    if (v4 > 1 || v6 > 1) && is_old() {
        return Err(format!(
            "CNI version {version} does not support more than 1 address per family"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_valid_interface_names() {
        for good in ["eth0", "a.b", "0123456789abcde", "..."] {
            assert_eq!(interface_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\u{a0}b",
            "0123456789abcdef",
            "ééééééééé",
        ] {
            assert_eq!(interface_name(bad).unwrap_err().code, 4, "{bad}");
        }
    }

    #[test]
    fn accepts_only_valid_container_ids() {
        assert_eq!(container_id("0a_.-"), Ok(()));
        for bad in ["-a", ".a", "a\n", "a/b", "é"] {
            let error = container_id(bad).unwrap_err();
            assert_eq!((error.code, error.details.as_str()), (4, bad));
        }
    }
}
