//! The range allocator's flags against the reference's table, texts included.

use podplane_ipam::{NodeBlocks, Notice, RangeConfig, RangeConfigError, RangeFlags, Usage};
use serde::Deserialize;

#[derive(Deserialize)]
struct Table {
    flags: Vec<FlagCase>,
    controller: Vec<ControllerCase>,
    upstream_start_table: Vec<StartCase>,
}

#[derive(Deserialize)]
struct FlagCase {
    name: String,
    #[serde(default)]
    cluster_cidr: String,
    node_cidr_mask_size: Option<u8>,
    node_cidr_mask_size_ipv4: Option<u8>,
    node_cidr_mask_size_ipv6: Option<u8>,
    #[serde(default)]
    service_cidr: String,
    #[serde(default)]
    secondary_service_cidr: String,
    want_masks: Option<Vec<u8>>,
    want_err: Option<String>,
    want_canonical: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ControllerCase {
    name: String,
    cluster_cidr: String,
    service_cidr: String,
    secondary_service_cidr: String,
    masks: Vec<u8>,
    allocator: String,
    fatal: bool,
}

#[derive(Deserialize)]
struct StartCase {
    name: String,
    cluster_cidr: Option<String>,
    allocate_node_cidrs: bool,
    cfg: Option<StartConfig>,
    err: bool,
}

#[derive(Deserialize, Default, Clone)]
#[serde(rename_all = "PascalCase", default)]
struct StartConfig {
    #[serde(rename = "ServiceCIDR")]
    service_cidr: String,
    #[serde(rename = "SecondaryServiceCIDR")]
    secondary_service_cidr: String,
    #[serde(rename = "NodeCIDRMaskSize")]
    node_cidr_mask_size: Option<u8>,
    #[serde(rename = "NodeCIDRMaskSizeIPv4")]
    node_cidr_mask_size_ipv4: Option<u8>,
    #[serde(rename = "NodeCIDRMaskSizeIPv6")]
    node_cidr_mask_size_ipv6: Option<u8>,
}

fn table() -> Table {
    serde_json::from_str(include_str!("data/nodeipam_flags.json")).expect("the table is valid")
}

fn service(first: &str, second: &str) -> String {
    if second.is_empty() {
        first.to_owned()
    } else {
        format!("{first},{second}")
    }
}

fn masks(config: &RangeConfig) -> Vec<u8> {
    config
        .ranges
        .iter()
        .map(podplane_ipam::ClusterRange::node_mask)
        .collect()
}

#[test]
fn flags_are_accepted_and_refused_as_the_reference_does() {
    for case in table().flags {
        let flags = RangeFlags {
            cluster_cidr: case.cluster_cidr,
            node_cidr_mask_size: case.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: case.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: case.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: service(&case.service_cidr, &case.secondary_service_cidr),
        };
        let got = flags.validate();
        match (&case.want_masks, &case.want_err) {
            (Some(want), None) => assert_eq!(&masks(got.as_ref().unwrap()), want, "{}", case.name),
            (None, Some(want)) => assert_eq!(
                &got.as_ref().unwrap_err().to_string(),
                want,
                "{}",
                case.name
            ),
            _ => panic!("{}: a case wants masks or an error", case.name),
        }
        if let Some(want) = case.want_canonical {
            let config = got.unwrap();
            let canonical: Vec<String> = config
                .ranges
                .iter()
                .map(|range| range.cidr().to_string())
                .collect();
            assert_eq!(canonical, want, "{}", case.name);
            let notice = config.notices.first().map(ToString::to_string);
            assert_eq!(
                notice.as_deref(),
                Some("10.244.0.0/12 has host bits set; the range is 10.240.0.0/12")
            );
        }
    }
}

/// The rows for `CloudAllocator` do not apply: it has no range. Those of the two allocators that no
/// longer exist (`IPAMFrom…`) do, because a range that is fatal for them is fatal for every
/// allocator that divides ranges. Their `invalid_serviceCIDR_contains_clusterCIDR` is fatal only
/// there; here it is a range without capacity.
#[test]
fn controller_start_is_fatal_where_the_reference_is() {
    for case in table()
        .controller
        .into_iter()
        .filter(|case| case.allocator != "CloudAllocator")
    {
        let mut flags = RangeFlags {
            cluster_cidr: case.cluster_cidr,
            service_cluster_ip_range: service(&case.service_cidr, &case.secondary_service_cidr),
            ..RangeFlags::default()
        };
        match case.masks.as_slice() {
            [one] => flags.node_cidr_mask_size = Some(*one),
            [v4, v6] => {
                (
                    flags.node_cidr_mask_size_ipv4,
                    flags.node_cidr_mask_size_ipv6,
                ) = (Some(*v4), Some(*v6))
            }
            _ => panic!("{}: one mask for each family", case.name),
        }
        match (case.name.as_str(), flags.validate()) {
            ("invalid_serviceCIDR_contains_clusterCIDR", got) => {
                assert_eq!(got.unwrap().max_nodes(), 0)
            }
            // Not fatal in the reference, but an error of its constructor: 2000::/10 with /98 is
            // 2^88 blocks.
            (
                "valid_range_allocator_dualstack"
                | "valid_range_allocator_dualstack_dualstackservice",
                got,
            ) => {
                assert_eq!(got, Err(RangeConfigError::TooManyBlocks), "{}", case.name);
            }
            (name, got) => assert_eq!(got.is_err(), case.fatal, "{name}: {got:?}"),
        }
    }
}

/// The controller decides on `Allocate node CIDRs disabled` before it looks at ranges.
#[test]
fn refuses_the_failing_cases_of_the_start_table() {
    for case in table()
        .upstream_start_table
        .into_iter()
        .filter(|case| case.allocate_node_cidrs)
    {
        let cfg = case.cfg.unwrap_or_default();
        let flags = RangeFlags {
            cluster_cidr: case.cluster_cidr.unwrap_or_default(),
            node_cidr_mask_size: cfg.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: cfg.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: cfg.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: service(&cfg.service_cidr, &cfg.secondary_service_cidr),
        };
        assert_eq!(flags.validate().is_err(), case.err, "{}", case.name);
    }
}

fn story_a(mask: u8, service_range: &str) -> RangeConfig {
    let flags = RangeFlags {
        cluster_cidr: "10.255.0.0/19".to_owned(),
        node_cidr_mask_size: Some(mask),
        service_cluster_ip_range: service_range.to_owned(),
        ..RangeFlags::default()
    };
    flags.validate().expect("story A's flags are legal")
}

#[test]
fn a_service_range_inside_the_cluster_range_takes_its_blocks() {
    for (mask, want) in [(30, 1984), (29, 992)] {
        let config = story_a(mask, "10.255.31.0/24");
        assert_eq!(config.max_nodes(), want);
        let usage: Vec<Usage> = NodeBlocks::new(&config).usage().collect();
        assert_eq!((usage[0].capacity(), usage[0].free), (want, want));
        assert!(config.notices.is_empty());
    }
}

#[test]
fn notices_a_service_range_that_covers_the_cluster_range() {
    for service in ["10.255.0.0/19", "10.0.0.0/8"] {
        let config = story_a(30, service);
        assert_eq!(config.max_nodes(), 0);
        assert_eq!(
            NodeBlocks::new(&config).usage().next().unwrap().capacity(),
            0
        );
        let notice = config.notices.first().unwrap();
        assert!(matches!(notice, Notice::NoBlockLeft { .. }), "{notice}");
    }
    // One block, and a service range inside it.
    assert_eq!(story_a(19, "10.255.31.0/24").max_nodes(), 0);
    assert_eq!(story_a(20, "10.255.31.0/24").max_nodes(), 1);
}

#[test]
fn masks_beyond_the_family_and_long_service_lists_are_refused() {
    let refused = |flags: RangeFlags| flags.validate().unwrap_err().to_string();
    let cluster_cidr = "10.0.0.0/16".to_owned();
    assert_eq!(
        refused(RangeFlags {
            cluster_cidr: cluster_cidr.clone(),
            node_cidr_mask_size: Some(33),
            ..RangeFlags::default()
        }),
        "node CIDR mask size 33 is more than the 32 bits of an IPv4 address",
    );
    let service_cluster_ip_range = "10.0.0.0/16,fd00::/112,10.2.0.0/16".to_owned();
    assert_eq!(
        refused(RangeFlags {
            cluster_cidr,
            service_cluster_ip_range,
            ..RangeFlags::default()
        }),
        "--service-cluster-ip-range can not contain more than two entries",
    );
}

#[test]
fn invalid_service_ranges_give_notices() {
    let config = story_a(30, "nonsense,10.255.31.7/24");
    let texts: Vec<String> = config.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "invalid service range \"nonsense\": must be a CIDR; nothing is reserved for it",
            "10.255.31.7/24 has host bits set; the range is 10.255.31.0/24",
        ]
    );
}
