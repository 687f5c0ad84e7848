//! `podplane plan`: its exit codes, and that stories A and B are planned as they were counted.

use anyhow::Result;
use podplane_tests::programs::{Finished, finish, podplane};
use serde_json::Value;

fn plan(line: &str) -> Finished {
    finish(&mut podplane(
        std::iter::once("plan").chain(line.split_whitespace()),
    ))
}

#[test]
fn the_stories() -> Result<()> {
    for (line, nodes, pods) in [
        (
            "--cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24",
            256,
            253,
        ),
        (
            "--cluster-cidr 10.244.0.0/12 --node-cidr-mask-size 16",
            16,
            65_533,
        ),
        (
            "--cluster-cidr 10.244.0.0/12 --node-cidr-mask-size 24",
            4096,
            253,
        ),
        (
            "--cluster-cidr 10.255.0.0/19 --node-cidr-mask-size 30 --service-cidr 10.255.31.0/24",
            1984,
            1,
        ),
        (
            "--cluster-cidr 10.255.0.0/19 --node-cidr-mask-size 29 --service-cidr 10.255.31.0/24",
            992,
            5,
        ),
    ] {
        let plan: Value = serde_json::from_str(&plan(&format!("{line} -o json")).ok())?;
        assert_eq!(plan["maxNodes"], nodes, "{line}");
        assert_eq!(plan["podsPerNode"], pods, "{line}");
    }
    Ok(())
}

#[test]
fn exit_codes_for_a_pipeline() {
    for (line, code) in [
        ("--nodes 256", 0),
        ("--nodes 257", 1),
        ("--max-pods 253", 0),
        ("--max-pods 254", 1),
        ("--nodes 200 --growth 20%/year --horizon 1", 0),
        ("--nodes 200 --growth 20%/year --horizon 2", 1),
        ("--cluster-cidr 10.0.0.0/16 --service-cidr 10.0.0.0/8", 1),
        ("--cluster-cidr 10.244.0.0/12", 0),
        ("--cluster-cidr nonsense", 2),
        ("--cluster-cidr fd00::/40", 2),
        ("--service-cidr nonsense", 2),
        ("--horizon 3", 2),
    ] {
        let finished = plan(line);
        assert_eq!(finished.code, Some(code), "{line}: {finished:?}");
    }
}
