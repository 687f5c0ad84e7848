//! The table of ClusterCIDRs.

use jiff::Timestamp;

use crate::{
    Object as _,
    core::{NodeSelector, NodeSelectorRequirement},
    networking::ClusterCIDR,
    table::{Column, NONE, TableRow, always, created, wide},
};

impl TableRow for ClusterCIDR {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("PERNODEHOSTBITS"),
        always("IPV4"),
        always("IPV6"),
        always("AGE"),
        wide("NODESELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let known = |cidr: Option<String>| cidr.filter(|cidr| !cidr.is_empty());
        let known = |cidr| known(cidr).unwrap_or_else(|| NONE.into());
        vec![
            self.name().into(),
            spec.per_node_host_bits.to_string(),
            known(spec.ipv4),
            known(spec.ipv6),
            created(self, now),
            selector(spec.node_selector.as_ref()),
        ]
    }
}

/// Formats a selector as `[{zone In [a b]}],[{metadata.name In [n]}]`: the lists of requirements,
/// as Go prints them.
fn selector(selector: Option<&NodeSelector>) -> String {
    let Some(selector) = selector else {
        return NONE.into();
    };
    let terms = selector.node_selector_terms.iter();
    let lists = terms.flat_map(|term| [&term.match_expressions, &term.match_fields]);
    let shown = lists.flatten().filter(|list| !list.is_empty()).map(|list| {
        let each: Vec<_> = list.iter().map(requirement).collect();
        format!("[{}]", each.join(" "))
    });
    shown.collect::<Vec<_>>().join(",")
}

fn requirement(requirement: &NodeSelectorRequirement) -> String {
    let values = requirement.values.as_deref().unwrap_or_default().join(" ");
    let NodeSelectorRequirement { key, operator, .. } = requirement;
    format!("{{{key} {operator} [{values}]}}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_ranges_and_node_selectors() {
        let cells = |spec| {
            let object = ClusterCIDR::from_json(json!({"metadata": {"name": "a"}, "spec": spec}));
            object.unwrap().cells(Timestamp::UNIX_EPOCH)
        };
        assert_eq!(
            cells(json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8})),
            ["a", "8", "10.0.0.0/8", NONE, "<unknown>", NONE]
        );
        let terms = json!([
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
        ]);
        assert_eq!(
            cells(
                json!({"ipv6": "fd00::/48", "perNodeHostBits": 16, "nodeSelector": {"nodeSelectorTerms": terms}})
            )[2..],
            [
                NONE,
                "fd00::/48",
                "<unknown>",
                "[{zone In [a b]} {x Exists []}],[{metadata.name In [n]}]"
            ]
        );
    }
}
