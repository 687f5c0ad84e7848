//! Pictures of small clusters, byte for byte. `PODPLANE_WRITE_GOLDEN=1` writes them anew; look at
//! the diff.

use std::{fs, path::Path};

use podplane_map::{AddressSpace, ColorMode, Scene, TextGrid, TextSize, svg};

use crate::samples::{duplicates, ipv6, space};

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
    let size = TextSize::MIN;
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
    let json = View::json(&space, cluster);
    assert_golden("ipv6.json", &json);
}

struct View;

impl View {
    /// What the page gets.
    fn json(space: &AddressSpace, prefix: &str) -> String {
        let limit = podplane_map::GridLimit::new(8, 8).unwrap();
        let prefix = prefix.parse().unwrap();
        let view = podplane_map::View::new(space, &space.networks()[0], prefix, limit).unwrap();
        format!("{}\n", serde_json::to_string_pretty(&view).unwrap())
    }
}
