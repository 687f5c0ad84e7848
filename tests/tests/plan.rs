//! `podplane plan`: its exit codes, and its plans for stories A and B, compared with the counts in
//! the stories.

use anyhow::Result;
use podplane_tests::programs::{ProgramOutput, finish, podplane};
use serde_json::Value;

fn plan(line: &str) -> ProgramOutput {
    finish(&mut podplane(
        std::iter::once("plan").chain(line.split_whitespace()),
    ))
}

#[test]
fn plans_the_documented_stories() -> Result<()> {
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

/// A dump among the test data of the audit.
fn dump(name: &str) -> String {
    format!(
        "{}/../crates/audit/tests/data/networks/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

#[test]
fn exit_code_agrees_with_the_own_row_of_the_table() -> Result<()> {
    for line in [
        "",
        "--max-pods 110",
        "--max-pods 254",
        "--node-cidr-mask-size 27",
        "--node-cidr-mask-size 27 --max-pods 110",
        "--node-cidr-mask-size 31",
        "--nodes 300",
        "--nodes 0",
    ] {
        let done = plan(&format!("{line} -o json"));
        let json: Value = serde_json::from_str(&done.stdout)?;
        let range = &json["ranges"][0];
        let rows = range["alternatives"].as_array().into_iter().flatten();
        let mut own = rows.filter(|row| row["nodeCIDRMaskSize"] == range["nodeCIDRMaskSize"]);
        let fits = own.next().map(|row| row["fits"] == true);
        assert_eq!(fits, Some(done.code == Some(0)), "{line}: {done:?}");
        assert_eq!(json["fits"], done.code == Some(0), "{line}");
    }
    Ok(())
}

#[test]
fn the_last_line_answers_whether_the_plan_is_enough() {
    // The step of docs/tour.md, and the range of its next one.
    let line = "--cluster-cidr 10.244.0.0/27 --node-cidr-mask-size 29 --nodes 3 --max-pods 5";
    let said = plan(line).ok();
    for part in [
        "Recommended:        10.244.0.0/27 in blocks of /29: 4 nodes, 5 pods each\n",
        "Enough:             yes: blocks for 4 nodes, 3 needed\n",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let said = plan("--nodes 300").stdout;
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("Enough:             no: 300 nodes"),
        "{said}"
    );
    assert_eq!(said.matches("300 nodes need").count(), 1, "{said}");
    assert!(!plan("").ok().contains("Enough"));
}

#[test]
fn an_overlap_with_services_is_the_first_limit() {
    let line = "--cluster-cidr 10.244.0.0/16 --service-cidr 10.0.0.0/8 --nodes 3";
    let said = plan(line).stdout;
    for part in [
        "First limit:        the overlap of services and cluster CIDR: change --cluster-cidr first",
        "no: service range 10.0.0.0/8 overlaps all of cluster CIDR 10.244.0.0/16",
        "Recommended:        172.16.0.0/23 in blocks of /25: 4 nodes",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn growth_says_when_the_blocks_end() {
    let said = plan("--nodes 128 --growth +1/month").ok();
    assert!(
        said.contains("First limit:        the blocks, for 256 nodes"),
        "{said}"
    );
    assert!(
        said.contains("Blocks used up:     in 11 years, about "),
        "{said}"
    );
}

#[test]
fn recommending_another_mask_warns_about_a_live_cluster() {
    let said = plan("--nodes 100").ok();
    assert!(
        said.contains("Recommended:        10.244.0.0/18 in blocks of /25"),
        "{said}"
    );
    assert!(said.contains("docs/cidr-change.md"), "{said}");
    let said = plan("--nodes 100 --max-pods 200").ok();
    assert!(!said.contains("On a live cluster"), "{said}");
}

#[test]
fn recommends_ranges_to_add_to_a_live_cluster() -> Result<()> {
    let from = |name: &str, more: &str| plan(&format!("--from {} {more} -o json", dump(name)));
    let enough = from("cilium-kubernetes.yaml", "--cluster-cidr 10.244.0.0/16");
    let json: Value = serde_json::from_str(&enough.ok())?;
    assert_eq!(json["ranges"][0]["used"], 3);
    assert_eq!(json["ranges"][0]["free"], 253);
    let first = &json["families"][0]["additions"][0];
    assert_eq!(first["cidr"], "10.245.0.0/16");
    assert_eq!(
        first["nodeCIDRMaskSize"], 24,
        "the mask of the live cluster"
    );
    assert_eq!(
        (&first["nodes"], &first["podsPerNode"]),
        (&256.into(), &253.into())
    );
    assert_eq!(first["together"], "10.244.0.0/15");

    let short = from(
        "cilium-kubernetes.yaml",
        "--cluster-cidr 10.244.0.0/22 --growth 100%/year --horizon 2",
    );
    assert_eq!(short.code, Some(1), "{short:?}");
    let json: Value = serde_json::from_str(&short.stdout)?;
    assert_eq!(json["nodesToServe"], 12);
    assert_eq!(json["families"][0]["shortage"], 8);
    let additions = json["families"][0]["additions"].as_array();
    assert!(
        additions
            .into_iter()
            .flatten()
            .all(|one| one["nodes"].as_u64() >= Some(8)),
        "{json:#}"
    );

    for (name, network) in [
        ("calico.yaml", "IPPool"),
        ("cilium-multi-pool.yaml", "CiliumPodIPPool"),
    ] {
        let json: Value = serde_json::from_str(&from(name, "").ok())?;
        assert!(
            json["how"]
                .as_str()
                .is_some_and(|how| how.contains(network)),
            "{json:#}"
        );
    }
    let pods = from("cilium-kubernetes.yaml", "--max-pods 300");
    assert_eq!(pods.code, Some(1), "{pods:?}");
    let json: Value = serde_json::from_str(&pods.stdout)?;
    assert_eq!(json["fits"], false);
    let first = &json["warnings"][0];
    assert!(
        first.as_str().is_some_and(|text| text.contains("have 253")),
        "{json:#}"
    );
    for (flags, want) in [
        ("--node-cidr-mask-size 25", "are /24, not /25"),
        ("--cluster-cidr 10.99.0.0/16", "contains none of the 3 IPv4"),
    ] {
        let said = from("cilium-kubernetes.yaml", flags).failed(2);
        assert!(said.contains(want), "{said}");
    }
    let none = from("eks.yaml", "").failed(2);
    assert!(none.contains("Amazon VPC CNI"), "{none}");
    Ok(())
}

#[test]
fn exit_code_tells_if_the_plan_fits() {
    for (line, code) in [
        ("--nodes 256", 0),
        ("--nodes 257", 1),
        ("--max-pods 253", 0),
        ("--max-pods 254", 1),
        ("--max-pods 0", 1),
        ("--cluster-cidr 10.244.0.0/16,fd00::/48 --nodes 300", 1),
        ("--nodes 200 --growth 20%/year --horizon 1", 0),
        ("--nodes 200 --growth 20%/year --horizon 2", 1),
        ("--cluster-cidr 10.0.0.0/16 --service-cidr 10.0.0.0/8", 1),
        ("--cluster-cidr 10.244.0.0/12", 0),
        // The growth is rounded up: the 257th node needs a whole block.
        ("--nodes 256 --growth 20%/year --horizon 0.001", 1),
        ("--node-cidr-mask-size 31", 1),
        ("--node-cidr-mask-size 30", 0),
        ("--cluster-cidr nonsense", 2),
        ("--cluster-cidr fd00::/40", 2),
        ("--service-cidr nonsense", 2),
        ("--horizon 3", 2),
    ] {
        let finished = plan(line);
        assert_eq!(finished.code, Some(code), "{line}: {finished:?}");
    }
}
