//! The allowed kernel settings: those of the network and, if the node's administrator keeps a list,
//! only those on it.

use std::{fs, io, path::Path};

use podplane_cni::types::{CniError, json::go_quote};
use regex::Regex;

/// The administrator's list, with a regular expression on each line. Without the file everything is
/// allowed.
const ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// The path below `/proc/sys` that a key stands for. `IFNAME` in the key is replaced by the
/// interface's name.
///
/// # Errors
/// The reference's text, if the key is not a setting of the network.
pub(super) fn path(key: &str, ifname: &str) -> Result<String, CniError> {
    let key = key.replace('.', "/").replacen("IFNAME", ifname, 1);
    // Dots have become slashes, so no part can be `..`.
    let parts: Vec<_> = key.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["net", _, ..] => Ok(parts.join("/")),
        _ => Err(CniError::internal(format!(
            "invalid net sysctl key: {}",
            go_quote(&key)
        ))),
    }
}

/// Refuses keys that are not on the administrator's list, if there is one.
pub(super) fn refuse_unlisted<'a>(
    mut keys: impl Iterator<Item = &'a String>,
) -> Result<(), CniError> {
    let text = match fs::read_to_string(Path::new(ALLOWLIST)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other
            .map_err(|error| CniError::internal(format!("failed to read {ALLOWLIST}: {error}")))?,
    };
    let allowed: Vec<_> = text.split('\n').map(str::trim).collect();
    let allowed: Vec<_> = allowed
        .into_iter()
        .filter(|line| !line.is_empty())
        .collect();
    keys.try_for_each(|key| refuse_unlisted_key(key, &allowed))
}

fn refuse_unlisted_key(key: &str, allowed: &[&str]) -> Result<(), CniError> {
    for pattern in allowed {
        let regex = Regex::new(pattern).map_err(|error| {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            let why = why.strip_prefix("error: ").unwrap_or(why);
            let pattern = go_quote(pattern);
            CniError::internal(format!(
                "invalid regular expression {pattern} in {ALLOWLIST}: {why}"
            ))
        })?;
        if regex.is_match(key) {
            return Ok(());
        }
    }
    Err(CniError::internal(format!(
        "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]",
        allowed.join(" ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_the_network_have_a_path() {
        let good = |key| path(key, "eth0.5").unwrap();
        assert_eq!(good("net.core.somaxconn"), "net/core/somaxconn");
        assert_eq!(good("/net//core/somaxconn"), "net/core/somaxconn");
        assert_eq!(
            good("net.ipv4.conf.IFNAME.arp_filter"),
            "net/ipv4/conf/eth0.5/arp_filter"
        );
        assert_eq!(good("net/IFNAME/IFNAME"), "net/eth0.5/IFNAME");
        for (bad, shown) in [
            ("kernel.shmmax", "kernel/shmmax"),
            ("net", "net"),
            ("", ""),
            ("nets.x", "nets/x"),
            ("kernel/../net/x", "kernel////net/x"),
            ("vm/x", "vm/x"),
        ] {
            let error = path(bad, "eth0").unwrap_err().msg;
            assert_eq!(error, format!("invalid net sysctl key: \"{shown}\""));
        }
    }

    #[test]
    fn allowlist_patterns_match_anywhere_in_the_key() {
        let allowed = ["^net\\.ipv4\\.conf\\..*\\.arp_filter$", "somaxconn", "("];
        refuse_unlisted_key("net.ipv4.conf.IFNAME.arp_filter", &allowed).unwrap();
        refuse_unlisted_key("net.core.somaxconn", &allowed).unwrap();
        let error = refuse_unlisted_key("net.x", &allowed).unwrap_err().msg;
        assert_eq!(
            error,
            "invalid regular expression \"(\" in /etc/cni/tuning/allowlist.conf: unclosed group"
        );
        let error = refuse_unlisted_key("net.x", &["a", "b"]).unwrap_err().msg;
        assert_eq!(
            error,
            "Sysctl net.x is not allowed. Only the following sysctls are allowed: [a b]"
        );
    }
}
