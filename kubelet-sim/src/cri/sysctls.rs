//! Kernel settings of a sandbox: the allowed ones, and their paths below `/proc/sys`.

use std::collections::BTreeMap;

use tonic::Status;

/// The settings that every network namespace has of its own.
const NAMESPACED: &str = "net/";
const FIELD: &str = "config.linux.sysctls";

/// The settings by path, with slashes, checked: only those of the network namespace can be set,
/// since a sandbox has no other namespace of its own.
///
/// # Errors
///
/// `InvalidArgument` with the name of the setting.
pub(super) fn checked(
    sysctls: impl IntoIterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Status> {
    let mut paths = BTreeMap::new();
    for (name, value) in sysctls {
        let refused = |why: &str| Status::invalid_argument(format!("{FIELD}[{name:?}]: {why}"));
        let path = path(&name).ok_or_else(|| {
            refused(
                "invalid sysctl name: must be components of letters, digits, '-' and '_', with \
                 '.' or '/' between them",
            )
        })?;
        if !path.starts_with(NAMESPACED) {
            return Err(refused(
                "sysctl is not namespaced: a sandbox can only set those that begin with `net.`",
            ));
        }
        if value.contains('\0') || value.contains('\n') {
            return Err(refused("invalid value: must be one line"));
        }
        if paths.insert(path, value).is_some() {
            return Err(refused("the same sysctl is set twice"));
        }
    }
    Ok(paths)
}

/// The path of a setting below `/proc/sys`; `None` if it is not a name.
///
/// As sysctl(8) and Kubernetes have it, the first separator decides: in `net.ipv4.conf.eth0/1.mtu`
/// the dots are separators and the slash is a dot of a component, in `net/ipv4/conf/eth0.1/mtu` it
/// is the other way round.
fn path(name: &str) -> Option<String> {
    let is_dotted = name
        .find(['.', '/'])
        .map(|at| name[at..].starts_with('.'))?;
    let swapped = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = match is_dotted {
        true => name.chars().map(swapped).collect(),
        false => name.to_owned(),
    };
    let is_component = |component: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !component.is_empty() && !component.starts_with('.') && component.chars().all(is_allowed)
    };
    path.split('/').all(is_component).then_some(path)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn check(name: &str) -> Result<Vec<String>, String> {
        let checked = checked([(name.to_owned(), "1".to_owned())]);
        checked
            .map(|paths| paths.into_keys().collect())
            .map_err(|error| {
                assert_eq!(error.code(), Code::InvalidArgument);
                error.message().to_owned()
            })
    }

    #[test]
    fn reads_both_forms_of_names() {
        for (name, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            (
                "net.ipv4.conf.eth0/100.rp_filter",
                "net/ipv4/conf/eth0.100/rp_filter",
            ),
            (
                "net/ipv4/conf/eth0.100/rp_filter",
                "net/ipv4/conf/eth0.100/rp_filter",
            ),
        ] {
            assert_eq!(check(name), Ok(vec![path.to_owned()]), "{name}");
        }
    }

    #[test]
    fn refuses_sysctls_of_other_namespaces_by_name() {
        for name in ["kernel.shm_rmid_forced", "kernel/msgmax", "vm.swappiness"] {
            let error = check(name).unwrap_err();
            assert!(error.contains(name) && error.contains("`net.`"), "{error}");
        }
    }

    #[test]
    fn refuses_names_that_escape_the_net_directory() {
        for name in [
            "",
            "net",
            "net.",
            ".net.core",
            "/net/core",
            "net..core",
            "net.//.kernel.x",
            "net/../kernel/core_pattern",
            "net/./x",
            "net/ipv4/a b",
            "net/ipv4/a\0b",
            "net/ipv4/é",
        ] {
            assert!(check(name).unwrap_err().contains("invalid sysctl name"));
        }
    }

    #[test]
    fn refuses_one_sysctl_under_two_names() {
        let twice = ["net.core.somaxconn", "net/core/somaxconn"];
        let twice = twice.map(|name| (name.to_owned(), "1".to_owned()));
        assert!(checked(twice).unwrap_err().message().contains("twice"));
    }
}
