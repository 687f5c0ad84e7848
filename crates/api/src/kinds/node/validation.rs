//! Validation of nodes; podCIDRs are checked as leniently as in Kubernetes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;

use crate::{
    core::{Node, NodeSpec},
    names,
    validation::{ErrorList, FieldPath, Validate, metadata, resources, taints},
};

const POD_CIDR_CHANGED: &str = "node updates may not change podCIDR except from \"\" to valid";

impl Validate for Node {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        if let Some(spec) = &self.spec {
            taints::taints(
                &path.child("taints"),
                spec.taints.as_deref().unwrap_or_default(),
                &mut errors,
            );
            pod_cidrs(&path.child("podCIDRs"), cidrs(self), &mut errors);
        }
        let path = FieldPath::new("status");
        if let Some(status) = &self.status {
            for (field, list) in [
                ("capacity", &status.capacity),
                ("allocatable", &status.allocatable),
            ] {
                resources::list(&path.child(field), list.iter().flatten(), &mut errors);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("spec");
        let (new_cidrs, old_cidrs) = (cidrs(self), cidrs(old));
        if !old_cidrs.is_empty() {
            if new_cidrs.len() == old_cidrs.len() {
                let differing = new_cidrs
                    .iter()
                    .zip(old_cidrs)
                    .filter(|(new, old)| new != old);
                differing.for_each(|_| errors.forbidden(&path.child("podCIDRs"), POD_CIDR_CHANGED));
            } else {
                errors.forbidden(&path.child("podCIDRs"), POD_CIDR_CHANGED);
            }
        }
        let provider = |node: &Self| {
            node.spec
                .as_ref()
                .and_then(|spec| spec.provider_id.clone())
                .unwrap_or_default()
        };
        if !provider(old).is_empty() && provider(self) != provider(old) {
            let detail = "node updates may not change providerID except from \"\" to valid";
            errors.forbidden(&path.child("providerID"), detail);
        }
        errors
    }
}

/// Makes `podCIDR` and `podCIDRs` consistent, as Kubernetes does when it decodes a node: `podCIDR`
/// is the first of `podCIDRs`, and where both are given and differ, only `podCIDR` is kept.
pub(super) fn sync_pod_cidrs(spec: &mut NodeSpec) {
    let first = spec.pod_cidr.take().filter(|cidr| !cidr.is_empty());
    let mut list = spec.pod_cidrs.take().unwrap_or_default();
    if let Some(first) = first
        && list.first() != Some(&first)
    {
        list = vec![first];
    }
    spec.pod_cidr = list.first().cloned();
    spec.pod_cidrs = (!list.is_empty()).then_some(list);
}

fn cidrs(node: &Node) -> &[String] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.pod_cidrs.as_deref())
        .unwrap_or_default()
}

fn pod_cidrs(path: &FieldPath, cidrs: &[String], errors: &mut ErrorList) {
    for (index, cidr) in cidrs.iter().enumerate() {
        if parse_cidr(cidr).is_none() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.invalid(&path.index(index), cidr.as_str(), detail);
        }
    }
    if cidrs.len() < 2 {
        return;
    }
    let families: Vec<_> = cidrs
        .iter()
        .map(|cidr| parse_cidr(cidr).map(|(family, _)| family))
        .collect();
    if let Some((index, cidr)) = cidrs
        .iter()
        .enumerate()
        .find(|(index, _)| families[*index].is_none())
    {
        let detail = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{index}]: <nil> (invalid CIDR address: {cidr})"
        );
        errors.internal(path, &detail);
    }
    let dual = families.iter().all(Option::is_some)
        && families.contains(&Some(IpFamily::V4))
        && families.contains(&Some(IpFamily::V6));
    if !dual || cidrs.len() > 2 {
        errors.invalid(
            path,
            json!(cidrs),
            "may specify no more than one CIDR for each IP family",
        );
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IpFamily {
    V4,
    V6,
}

/// The family of a CIDR, where an IPv4-mapped address counts as IPv4, and its length. Kubernetes'
/// rule for fields that are older than its strict one: host bits, leading zeros and IPv4-mapped
/// IPv6 are accepted. `None` if it is invalid.
pub(crate) fn parse_cidr(text: &str) -> Option<(IpFamily, u8)> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let (family, most) = match ip(address)? {
        IpAddr::V4(_) => (IpFamily::V4, 32),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => (IpFamily::V4, 128),
        IpAddr::V6(_) => (IpFamily::V6, 128),
    };
    (length <= most).then_some((family, length))
}

/// Parses an address whose IPv4 octets may have leading zeros, which Go's parser took for decimal
/// before 1.17.
fn ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let octets: Option<Vec<u8>> = text
        .split('.')
        .map(|octet| {
            octet
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| octet.parse().ok())?
        })
        .collect();
    let octets: [u8; 4] = octets?.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::ObjectMeta;

    fn node(cidrs: &[&str]) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some("n".into()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                pod_cidrs: Some(cidrs.iter().map(|c| (*c).to_owned()).collect()),
                ..NodeSpec::default()
            }),
            status: None,
        }
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_lenient_cidrs() {
        for cidr in [
            "10.0.0.0/24",
            "10.0.0.1/24",
            "010.0.0.0/8",
            "::ffff:10.0.0.0/104",
            "fd00::/64",
            "0.0.0.0/0",
        ] {
            assert_eq!(
                texts(&node(&[cidr]).validate()),
                Vec::<String>::new(),
                "{cidr}"
            );
        }
        for pair in [["10.0.0.0/24", "fd00::/64"], ["fd00::/64", "10.0.0.0/24"]] {
            assert!(node(&pair).validate().is_empty());
        }
    }

    #[test]
    fn refuses_invalid_cidrs_with_kubernetes_messages() {
        for cidr in [
            "x",
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/24",
            "10.0.0.0/",
            "fd00::/129",
            "1.2.3.256/8",
            "+1.2.3.4/8",
        ] {
            let want = format!(
                "spec.podCIDRs[0]: Invalid value: {cidr:?}: must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            );
            assert_eq!(texts(&node(&[cidr]).validate()), [want]);
        }
        assert_eq!(
            texts(&node(&["10.0.0.0/24", "10.0.1.0/24"]).validate()),
            [
                r#"spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP family"#
            ]
        );
        assert_eq!(
            texts(&node(&["10.0.0.0/24", "garbage"]).validate()).len(),
            3
        );
        assert_eq!(
            texts(&node(&["10.0.0.0/24", "fd00::/64", "fd01::/64"]).validate()).len(),
            1
        );
    }

    #[test]
    fn an_assigned_block_is_immutable() {
        let changed = r#"spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid"#;
        let old = node(&["10.0.0.0/24"]);
        for new in [&["10.0.0.1/24"][..], &[], &["10.0.0.0/24", "fd00::/64"]] {
            assert_eq!(
                texts(&node(new).validate_update(&old)),
                [changed],
                "{new:?}"
            );
        }
        assert!(old.validate_update(&old).is_empty());
        assert!(old.validate_update(&node(&[])).is_empty());
        let swapped = node(&["fd00::/64", "10.0.0.0/24"])
            .validate_update(&node(&["10.0.0.0/24", "fd00::/64"]));
        assert_eq!(texts(&swapped), [changed, changed]);
    }

    #[test]
    fn synchronizes_pod_cidr_with_pod_cidrs() {
        let cases: [(Option<&str>, &[&str], &[&str]); 5] = [
            (Some("a"), &[], &["a"]),
            (None, &["a", "b"], &["a", "b"]),
            (Some("a"), &["a", "b"], &["a", "b"]),
            (Some("x"), &["a", "b"], &["x"]),
            (Some(""), &[], &[]),
        ];
        for (one, list, want) in cases {
            let mut spec = NodeSpec {
                pod_cidr: one.map(Into::into),
                pod_cidrs: Some(list.iter().map(|c| (*c).to_owned()).collect()),
                ..NodeSpec::default()
            };
            sync_pod_cidrs(&mut spec);
            assert_eq!(spec.pod_cidrs.unwrap_or_default(), want);
            assert_eq!(spec.pod_cidr.as_deref(), want.first().copied());
        }
    }
}
