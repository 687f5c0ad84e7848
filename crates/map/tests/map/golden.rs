//! Pictures of small clusters, byte for byte. `PODPLANE_WRITE_GOLDEN=1` writes them anew; look at
//! the diff.

use std::{fs, path::Path};

use podplane_map::{
    AddressDetail, AddressSpace, ColorMode, GridLimit, Scene, TextGrid, TextSize, View, svg,
};

use crate::samples::{duplicates, ipv6, space, topology};

fn assert_golden(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/map/golden")
        .join(name);
    if std::env::var_os("PODPLANE_WRITE_GOLDEN").is_some() {
        fs::write(&path, actual).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        want == actual,
        "{name} differs; PODPLANE_WRITE_GOLDEN=1 writes it anew. Now it is:\n{actual}"
    );
}

fn text(space: &AddressSpace, prefix: &str, colors: ColorMode) -> String {
    let size = TextSize::new(80, 24).unwrap();
    let network = &space.networks()[0];
    let prefix = prefix.parse().unwrap();
    let scene = Scene::new(space, network, prefix, size.limits()).unwrap();
    TextGrid::new(&scene, size).to_text(colors)
}

fn picture(space: &AddressSpace, prefix: &str) -> String {
    let network = &space.networks()[0];
    let prefix = prefix.parse().unwrap();
    let scene = Scene::new(space, network, prefix, svg::limits()).unwrap();
    svg::picture(&scene)
}

#[test]
fn duplicates_in_a_cluster() {
    let space = space(duplicates());
    let cluster = "10.244.0.0/20";
    assert_golden("duplicates.txt", &text(&space, cluster, ColorMode::Plain));
    assert_golden(
        "duplicates.ansi",
        &text(&space, cluster, ColorMode::Ansi256),
    );
    assert_golden("duplicates.svg", &picture(&space, cluster));
}

#[test]
fn duplicates_in_a_block() {
    let space = space(duplicates());
    let block = "10.244.1.0/24";
    assert_golden("block.txt", &text(&space, block, ColorMode::Plain));
    assert_golden("block.svg", &picture(&space, block));
}

#[test]
fn ipv6_by_use() {
    let space = space(ipv6());
    let cluster = "fd00:10:244::/48";
    assert_golden("ipv6.txt", &text(&space, cluster, ColorMode::Plain));
    assert_golden("ipv6.svg", &picture(&space, cluster));
    assert_golden("ipv6.json", &json(&space, cluster));
}

/// The document of a view, as pages receive it.
fn json(space: &AddressSpace, prefix: &str) -> String {
    let limit = GridLimit::new(8, 8).unwrap();
    let prefix = prefix.parse().unwrap();
    let view = View::new(space, &space.networks()[0], prefix, limit).unwrap();
    format!("{}\n", serde_json::to_string_pretty(&view).unwrap())
}

#[test]
fn the_network_of_a_node() {
    let node = topology();
    assert_golden("topology.txt", &format!("{node}\n"));
    assert_golden("topology.svg", &svg::topology(&node));
    let json = serde_json::to_string_pretty(&node).unwrap();
    assert_golden("topology.json", &format!("{json}\n"));
}

#[test]
fn an_address_and_its_holders() {
    let space = space(duplicates());
    let detail = |ip: &str| AddressDetail::new(&space, ip.parse().unwrap());
    let addresses = [
        "10.244.1.5",
        "10.244.4.4",
        "10.244.1.1",
        "10.96.0.10",
        "172.20.0.9",
        "9.9.9.9",
    ];
    let texts: Vec<String> = addresses.map(|ip| format!("{}\n", detail(ip))).into();
    assert_golden("addresses.txt", &texts.join("\n"));
    let json = serde_json::to_string_pretty(&detail("10.244.1.5")).unwrap();
    assert_golden("address.json", &format!("{json}\n"));
}
