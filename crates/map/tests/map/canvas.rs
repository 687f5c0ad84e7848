//! The canvases: well-formed, complete, within their size, and safe for the names of others.

use podplane_map::{
    AddressSpace, AddressState, BlockState, ColorMode, GridLimit, MarkSeverity, NetworkRole, Scene,
    SceneMark, SpaceParts, TextGrid, TextSize, View, cell_line, svg,
};
use proptest::prelude::*;
use quick_xml::{Reader, events::Event};

use crate::{
    model::{Facts, facts, prefix},
    samples::{block, duplicates, ipv6, large, network, pod, space},
};

fn picture(space: &AddressSpace) -> String {
    let network = &space.networks()[0];
    let scene = Scene::new(space, network, network.cidr(), svg::limits()).unwrap();
    svg::picture(&scene)
}

fn text(space: &AddressSpace, size: TextSize, colors: ColorMode) -> String {
    let network = &space.networks()[0];
    let scene = Scene::new(space, network, network.cidr(), size.limits()).unwrap();
    TextGrid::new(&scene, size).to_text(colors)
}

/// Reads XML to its end, and returns the names of its elements and its text without markup.
fn parse(xml: &str) -> (Vec<String>, String) {
    let mut reader = Reader::from_str(xml);
    let (mut depth, mut names, mut all) = (0, Vec::new(), String::new());
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                depth += 1;
                names.push(String::from_utf8(start.name().as_ref().to_vec()).unwrap());
                for attribute in start.attributes() {
                    attribute.unwrap();
                }
            }
            Event::Empty(start) => {
                names.push(String::from_utf8(start.name().as_ref().to_vec()).unwrap());
                for attribute in start.attributes() {
                    attribute.unwrap();
                }
            }
            Event::End(_) => depth -= 1,
            Event::Text(text) => all.push_str(&text.decode().unwrap()),
            Event::GeneralRef(_) => all.push('&'),
            Event::Eof => break,
            other => panic!("unexpected in a picture: {other:?}"),
        }
    }
    assert_eq!(depth, 0, "every element ends");
    (names, all)
}

#[test]
fn a_picture_names_the_states_and_describes_itself() {
    let svg = picture(&space(duplicates()));
    let (names, text) = parse(&svg);
    for state in AddressState::ALL {
        assert!(text.contains(&format!("{state} ")), "{state}");
    }
    for element in ["title", "desc", "style", "pattern"] {
        assert!(names.iter().any(|name| name == element), "{element}");
    }
    for part in [
        "Address map of cluster CIDR 10.244.0.0/20",
        "duplicate 10.244.1.5: pod default/web-0 on node-a, pod default/web-1 on node-b",
        "overlap: foreign block 10.244.1.0/24 of node-b overlaps block 10.244.1.0/24 of node-a",
        "in no network: outside 172.20.0.9: pod default/stray on node-c",
        "orphaned on node-b: 2, addresses not reported",
        "service range 10.96.0.0/16",
        "node network 192.168.10.0/24",
        "held by instance 5ab1c0de",
        "node-c",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(svg.contains("prefers-color-scheme:dark"));
    // One file: no script, and nothing from elsewhere but the name of the language.
    assert!(!names.iter().any(|name| name == "script" || name == "image"));
    assert_eq!(svg.matches("http").count(), 1, "the namespace alone");
}

#[test]
fn a_block_of_several_nodes_has_all_of_them_in_its_label_and_lines() {
    let shown = |states: &[(&str, BlockState)]| {
        let mut parts = duplicates();
        let of = |(node, state): &(&str, BlockState)| block("10.244.8.0/22", *state, node);
        parts.blocks.extend(states.iter().map(of));
        let space = space(parts);
        let network = &space.networks()[0];
        let limit = GridLimit::new(16, 16).unwrap();
        let view = View::new(&space, network, network.cidr(), limit).unwrap();
        let cell = view.cell_of("10.244.8.1".parse().unwrap()).unwrap();
        let line = cell_line(&space, NetworkRole::Pods, cell);
        let (_, of) = line.split_once("; block 10.244.8.0/22 of ").unwrap();
        (of.to_owned(), picture(&space))
    };
    use BlockState::{Assigned, Draining};
    let (m, n, o, p) = (
        ("m", Assigned),
        ("n", Assigned),
        ("o", Assigned),
        ("p", Assigned),
    );
    let gone = ("gone", Draining);
    for (nodes, line, label) in [
        (&[m] as &[_], "m", "m"),
        (&[n, m], "n; also of m", "m, n"),
        (&[n, o, m, p], "p; also of m, n +1", "m, n +2"),
        (&[m, gone], "gone, draining; also of m", "m"),
    ] {
        let (of, svg) = shown(nodes);
        assert_eq!(of, line);
        assert!(svg.contains(&format!(">{label}</text>")), "{label}: {svg}");
        let title = format!("block 10.244.8.0/22 of {line}: ");
        assert!(svg.contains(&title), "{title}: {svg}");
    }
    // Where two names have no room.
    let long = ["n", "m"].map(|name| name.repeat(30));
    let (_, svg) = shown(&[(&long[0], Assigned), (&long[1], Assigned)]);
    let first = format!(">{} +1</text>", long[1]);
    assert!(svg.contains(&first), "{svg}");
}

/// Names of others, in all places where a source can have one.
fn hostile(name: &str) -> SpaceParts {
    let mut parts = duplicates();
    parts.networks = vec![
        podplane_map::Network::parse(NetworkRole::Pods, "10.244.0.0/20", name).unwrap(),
        podplane_map::Network::parse(NetworkRole::Nodes, "10.244.8.0/24", name).unwrap(),
    ];
    parts
        .blocks
        .push(block("10.244.8.0/22", BlockState::Assigned, name).with_details(name));
    parts.claims.push(pod("10.244.8.9", name, name));
    parts
        .claims
        .push(pod("10.244.8.9", &format!("{name}2"), name));
    parts.claims.push(pod("9.9.9.9", name, name));
    parts.unlocated_orphans.push((name.into(), 3));
    parts
}

#[test]
fn hostile_names_stay_text() {
    let name = "<script>alert(\"1\")</script>&amp;'\u{1b}[31m\u{202e}]]>";
    let space = space(hostile(name));
    let svg = picture(&space);
    let (names, _) = parse(&svg);
    assert!(!names.iter().any(|name| name == "script"));
    assert!(svg.contains("&lt;script&gt;alert(&quot;1&quot;)"));
    assert!(!svg.contains('\u{1b}') && !svg.contains('\u{202e}'));
    let text = text(&space, TextSize::MIN, ColorMode::Plain);
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ' || c == '\n';
    assert!(text.chars().all(is_plain), "{text}");
}

#[test]
fn a_text_needs_a_terminal_of_80_by_24_with_a_row_for_the_prompt() {
    let error = TextSize::new(79, 23).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid size `79x23`: the map needs at least 80 columns and 23 rows"
    );
    assert!(TextSize::new(80, 22).is_err());
}

/// A text without its escape sequences.
fn stripped(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let (_, rest) = part.split_once('m').unwrap();
        all + rest
    })
}

fn assert_fits(text: &str, size: TextSize) {
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= usize::from(size.rows()), "{text}");
    for line in lines {
        let width = stripped(line).chars().count();
        assert!(width <= usize::from(size.columns()), "{width}: {line}");
    }
}

#[test]
fn the_smallest_size_has_the_whole_map_and_legend() {
    for parts in [duplicates(), ipv6(), large(), hostile("a")] {
        let space = space(parts);
        let text = text(&space, TextSize::MIN, ColorMode::Plain);
        assert_fits(&text, TextSize::MIN);
        for state in AddressState::ALL {
            assert!(text.contains(state.as_str()), "{state}: {text}");
        }
        assert!(text.contains("beside"), "{text}");
    }
}

#[test]
fn colours_change_nothing_but_colour() {
    let space = space(duplicates());
    let plain = text(&space, TextSize::MIN, ColorMode::Plain);
    let colored = text(&space, TextSize::MIN, ColorMode::Ansi256);
    assert!(!plain.contains('\u{1b}'));
    assert!(
        colored.contains("\u{1b}[0;48;5;166;38;5;16m"),
        "a duplicate"
    );
    let trimmed: Vec<String> = stripped(&colored)
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    let plain: Vec<&str> = plain.lines().map(str::trim_end).collect();
    assert_eq!(trimmed, plain);
}

#[test]
fn the_cursor_finds_its_cell() {
    let space = space(duplicates());
    let network = &space.networks()[0];
    let size = TextSize::MIN;
    let scene = Scene::new(&space, network, network.cidr(), size.limits()).unwrap();
    let grid = TextGrid::new(&scene, size);
    for cell in scene.main().cells() {
        let (column, row) = grid.position_of(cell.x, cell.y).unwrap();
        assert_eq!((column, row), (cell.x * 2 + 1, cell.y + 2));
        let drawn = grid.at(column, row).unwrap();
        assert_eq!(drawn.symbol, cell.dominant.letter());
        assert_eq!(drawn.style.state, Some(cell.dominant));
        assert_eq!(grid.map_cell(column, row), Some((cell.x, cell.y)));
        assert_eq!(grid.map_cell(column + 1, row), Some((cell.x, cell.y)));
    }
    assert_eq!(grid.map_cell(0, 5), None, "the frame");
    assert_eq!(grid.map_cell(1, 1), None, "the heading");
    assert_eq!(grid.map_cell(79, 5), None, "the side");
    assert_eq!(grid.at(80, 0), None);
}

#[test]
fn a_list_of_blocks_has_room_beside_every_map() {
    let space = space(duplicates());
    for columns in [80, 96, 97, 120] {
        let size = TextSize::new(columns, 23).unwrap();
        let text = text(&space, size, ColorMode::Plain);
        assert!(
            text.contains("blocks: used/usable, node"),
            "{columns}: {text}"
        );
    }
}

#[test]
fn blocks_that_are_smaller_than_a_cell_are_listed() {
    let text = text(&space(large()), TextSize::MIN, ColorMode::Plain);
    for part in [
        "10.0.0.0/24 30/253 node-0000",
        "10.0.3.0/24 30/253 node-0001",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("| and 49"), "{text}");
}

#[test]
fn a_frame_shows_where_the_map_ends() {
    let space = space(duplicates());
    let line = format!("+{}+", "-".repeat(32));
    let drawn = |rows| text(&space, TextSize::new(80, rows).unwrap(), ColorMode::Plain);
    let large = drawn(25);
    assert_eq!(large.matches(&line).count(), 2, "{large}");
    // Without the room for all of it there are the sides.
    let small = drawn(23);
    assert!(!small.contains(&line), "{small}");
    assert!(small.lines().nth(2).unwrap().starts_with('|'), "{small}");
    // There is room for one remark: it says of how many.
    let remark = small.lines().last().unwrap();
    assert!(
        remark.starts_with("1 of 7: duplicate 10.244.1.5: "),
        "{small}"
    );
}

#[test]
fn a_tall_terminal_lists_more_blocks() {
    let space = space(large());
    let listed = |rows| {
        let size = TextSize::new(80, rows).unwrap();
        let text = text(&space, size, ColorMode::Plain);
        assert_fits(&text, size);
        assert!(text.contains("unassigned"), "the legend is below: {text}");
        text.lines().filter(|line| line.contains("/24 ")).count()
    };
    // The map is as wide as the terminal allows, and has 16 rows.
    let (small, tall) = (listed(24), listed(50));
    assert_eq!(tall, small + 50 - 24);
}

#[test]
fn a_full_block_is_full() {
    let mut parts = SpaceParts {
        networks: vec![network(NetworkRole::Pods, "10.0.0.0/28")],
        blocks: vec![block("10.0.0.0/29", BlockState::Assigned, "a")],
        ..SpaceParts::default()
    };
    let fill = |parts: &SpaceParts| {
        let space = space(parts.clone());
        let network = &space.networks()[0];
        let limit = GridLimit::new(2, 1).unwrap();
        let view = View::new(&space, network, network.cidr(), limit).unwrap();
        let text = text(&space, TextSize::MIN, ColorMode::Plain);
        (view.cells()[0].fill(), text)
    };
    for last in 2..6 {
        parts
            .claims
            .push(pod(&format!("10.0.0.{last}"), &format!("d/{last}"), "a"));
    }
    let (eighths, text) = fill(&parts);
    assert_eq!(eighths, 6, "4 of 5");
    assert!(text.contains("10.0.0.0/29 4/5 a"), "{text}");
    parts.claims.push(pod("10.0.0.6", "d/6", "a"));
    let (eighths, text) = fill(&parts);
    assert_eq!(eighths, 8);
    assert!(text.contains("10.0.0.0/29 5/5 a"), "{text}");
}

#[test]
fn long_names_are_cut_and_whole_in_a_title() {
    let name = "a-network-with-a-name-that-is-longer-than-the-map-beside-it-is-wide";
    let network =
        |role, cidr: &str, name: &str| podplane_map::Network::parse(role, cidr, name).unwrap();
    let width = |parts: SpaceParts| {
        let svg = picture(&space(parts));
        let (_, rest) = svg.split_once("width=\"").unwrap();
        (rest.split('"').next().unwrap().to_owned(), svg)
    };
    let (plain, _) = width(duplicates());
    let mut parts = duplicates();
    parts.networks = vec![
        network(NetworkRole::Pods, "10.244.0.0/20", &name.repeat(3)),
        network(NetworkRole::Nodes, "fd00:10:244:77::/64", name),
    ];
    let (wide, svg) = width(parts);
    assert_eq!((plain.as_str(), wide.as_str()), ("1024", "1024"));
    for (whole, shown) in [
        (
            format!("cluster CIDR 10.244.0.0/20 ({})", name.repeat(3)),
            "cluster CIDR 10.244.0.0/20 (a-network-with-a-name",
        ),
        (
            format!("node network ({name})"),
            "node network (a-network-with-a-name",
        ),
    ] {
        let title = format!("<title>{whole}</title>{shown}");
        assert!(svg.contains(&title), "{title}: {svg}");
    }
    // Half of a prefix would be that of another network.
    assert!(
        svg.contains(">fd00:10:244:77::/64: 0 in use</text>"),
        "{svg}"
    );
}

#[test]
fn a_block_is_visible_among_many_addresses_of_no_block() {
    let parts = SpaceParts {
        networks: vec![network(NetworkRole::Pods, "10.0.0.0/8")],
        blocks: vec![block("10.0.7.0/24", BlockState::Assigned, "a")],
        ..SpaceParts::default()
    };
    let space = space(parts);
    let text = text(&space, TextSize::MIN, ColorMode::Plain);
    assert!(text.lines().nth(2).unwrap().starts_with("|. "), "{text}");
    assert_eq!(
        text.matches("|  ").count(),
        15,
        "no other row begins so: {text}"
    );
}

#[test]
fn a_label_hides_no_letter_and_no_narrower_block() {
    let labels = |parts: SpaceParts| {
        let svg = picture(&space(parts));
        let texts = svg.split("<text class=\"label\" ").skip(1);
        let labels = texts.map(|text| {
            let (_, y) = text.split_once("y=\"").unwrap();
            let (y, text) = y.split_once("\">").unwrap();
            let (text, _) = text.split_once("</text>").unwrap();
            (text.to_owned(), y.parse::<f64>().unwrap())
        });
        labels.collect::<Vec<_>>()
    };
    let parts = |cidr, blocks: &[(&str, &str)], pods: &[&str]| SpaceParts {
        networks: vec![network(NetworkRole::Pods, cidr)],
        blocks: blocks
            .iter()
            .map(|(cidr, node)| block(cidr, BlockState::Assigned, node))
            .collect(),
        claims: pods.iter().map(|ip| pod(ip, ip, "a")).collect(),
        ..SpaceParts::default()
    };
    // A full block of eight cells that are less wide than its name: the list names it.
    let full = [2, 3, 4, 5, 6].map(|last| format!("10.0.0.{last}"));
    let full = full.each_ref().map(String::as_str);
    let small = [("10.0.0.0/29", "worker-0")];
    assert_eq!(labels(parts("10.0.0.0/24", &small, &full)), []);
    assert_ne!(labels(parts("10.0.0.0/24", &small, &full[..2])), []);
    // The label of the wide one is beside the other's cells: its centre is their corner.
    let nested = [("10.0.0.0/22", "wide"), ("10.0.0.0/24", "narrow")];
    let found = labels(parts("10.0.0.0/22", &nested, &[]));
    let of = |name: &str| found.iter().find(|(text, _)| text == name).unwrap().1;
    assert!(of("narrow") < 380.0 && of("wide") > 400.0, "{found:?}");
    assert_eq!(found.len(), 4, "{found:?}");
    // Without letters a label is at the centre, and a letter moves it.
    let free = labels(parts("10.0.0.0/24", &[("10.0.0.0/24", "a")], &[]));
    let at = |ip| labels(parts("10.0.0.0/24", &[("10.0.0.0/24", "a")], &[ip]));
    assert_eq!(free.len(), 2);
    assert_ne!(free, at("10.0.0.128"));
    assert_eq!(free, at("10.0.0.20"));
}

/// The texts of a picture that are seen, apart from titles.
fn seen(svg: &str) -> Vec<String> {
    let texts = svg.split("<text ").skip(1);
    let texts = texts.filter_map(|text| text.split_once('>')?.1.split_once("</text>"));
    let seen = texts.map(|(text, _)| match text.split_once("</title>") {
        Some((_, shown)) => shown.to_owned(),
        None => text.to_owned(),
    });
    seen.collect()
}

#[test]
fn a_picture_names_every_block_with_its_node_and_fill() {
    let svg = picture(&space(duplicates()));
    let texts = seen(&svg);
    for line in [
        "blocks: used/usable, node",
        "10.244.1.0/24 3/253 node-a overlap",
        "10.244.1.0/24 3/253 node-b foreign overlap",
        "10.244.4.0/24 1/253 node-d held",
    ] {
        assert!(texts.iter().any(|text| text == line), "{line}: {texts:?}");
    }
    // Blocks that are smaller than a cell: the first by name, and each in a title.
    let svg = picture(&space(large()));
    let texts = seen(&svg);
    assert!(texts.contains(&"10.0.0.0/24 30/253 node-0000".to_owned()));
    let more = "and 4850 more: `podplane map PREFIX` shows those of a part";
    assert!(texts.iter().any(|text| text == more), "{texts:?}");
    let titles = svg.matches(": 30 pod, 2 reserved, 1 gateway, 223 free");
    assert_eq!(titles.count(), 5000, "each block");
    assert!(svg.contains(" of node-4999: 30 pod"));
    // The line about a cell names some of the nodes in it.
    let many = space(large());
    let limit = GridLimit::new(16, 16).unwrap();
    let view = View::new(&many, &many.networks()[0], many.networks()[0].cidr(), limit).unwrap();
    let line = cell_line(&many, NetworkRole::Pods, &view.cells()[0]);
    assert!(
        line.ends_with("; 86 blocks inside of node-0000, node-0001 +84"),
        "{line}"
    );
    // A part of a block, which begins before it.
    let space = space(duplicates());
    let part = "10.244.1.64/28".parse().unwrap();
    let scene = Scene::new(&space, &space.networks()[0], part, svg::limits()).unwrap();
    let texts = seen(&svg::picture(&scene));
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("10.244.1.0/24 3/253 node-")),
        "{texts:?}"
    );
}

#[test]
fn addresses_of_other_namespaces_are_unknown_and_not_free() {
    let parts = SpaceParts {
        only_namespace: Some("shop".into()),
        ..duplicates()
    };
    let space = space(parts);
    let text = text(&space, TextSize::MIN, ColorMode::Plain);
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("only pods of namespace shop: cluster CIDR 10.244.0.0/20"),
        "{text}"
    );
    assert!(text.contains("?  unknown"), "{text}");
    assert!(!text.contains("free "), "{text}");
    let network = &space.networks()[0];
    let limit = GridLimit::new(16, 16).unwrap();
    let block = "10.244.3.0/24".parse().unwrap();
    let view = View::new(&space, network, block, limit).unwrap();
    let cell = view.cell_of("10.244.3.200".parse().unwrap()).unwrap();
    let line = cell_line(&space, NetworkRole::Pods, cell);
    assert!(line.starts_with("unknown 10.244.3.200;"), "{line}");
    // All Services are known.
    let is_of_services = |network: &&podplane_map::Network| network.role() == NetworkRole::Services;
    let services = space.networks().iter().rfind(is_of_services).unwrap();
    let view = View::new(&space, services, services.cidr(), limit).unwrap();
    let line = cell_line(&space, NetworkRole::Services, &view.cells()[0]);
    assert!(line.contains(" free"), "{line}");
}

#[test]
fn marks_are_borders_of_blocks_and_rings_of_addresses() {
    let space = space(duplicates());
    let mark = |prefix: &str, severity, text: &str| SceneMark {
        prefix: prefix.parse().unwrap(),
        severity,
        text: text.into(),
    };
    let marks = vec![
        mark("10.244.1.0/24", MarkSeverity::Warning, "a <block>"),
        mark("10.244.1.0/24", MarkSeverity::Error, "the same block"),
        mark("10.244.1.5/32", MarkSeverity::Warning, "an address"),
        mark("192.0.2.0/24", MarkSeverity::Error, "elsewhere"),
    ];
    let network = &space.networks()[0];
    let whole = |prefix: &str| {
        let scene = Scene::new(&space, network, prefix.parse().unwrap(), svg::limits()).unwrap();
        scene.with_marks(marks.clone())
    };
    let scene = whole("10.244.0.0/20");
    assert!(scene.is_marked());
    let svg = svg::picture(&scene);
    let (_, text) = parse(&svg);
    assert!(text.contains("the same block"));
    assert!(!text.contains("elsewhere"));
    let of = |class: &str| svg.matches(&format!("<g class=\"m {class}\">")).count();
    assert_eq!((of("m-error"), of("m-warning")), (1, 1), "{svg}");
    // The border of the cell of the address is within it.
    assert_eq!(svg.matches("class=\"halo thin\"").count(), 1, "{svg}");
    assert!(!svg.contains(":not("), "PNGs would have no such rule");
    assert!(!whole("10.244.2.0/24").is_marked());
    let plain = Scene::new(&space, network, network.cidr(), svg::limits()).unwrap();
    assert!(!svg::picture(&plain).contains("class=\"m "));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_text_fits_its_size(
        facts in facts(), prefix in prefix(), columns in 80u16..200, rows in 23u16..70, name in "\\PC{1,60}",
    ) {
        let mut space = hostile(&name);
        space.blocks.extend(facts.blocks.clone());
        space.claims.extend(facts.claims.clone());
        let space = AddressSpace::new(space);
        let size = TextSize::new(columns, rows).unwrap();
        let network = Facts::network(&facts);
        let scene = Scene::new(&space, &network, prefix, size.limits()).unwrap();
        let grid = TextGrid::new(&scene, size);
        for colors in [ColorMode::Plain, ColorMode::Ansi256] {
            assert_fits(&grid.to_text(colors), size);
        }
    }

    #[test]
    fn every_picture_is_well_formed(facts in facts(), prefix in prefix(), name in any::<String>()) {
        prop_assume!(!name.is_empty());
        let mut space = hostile(&name);
        space.blocks.extend(facts.blocks.clone());
        space.claims.extend(facts.claims.clone());
        let space = AddressSpace::new(space);
        let network = Facts::network(&facts);
        let scene = Scene::new(&space, &network, prefix, svg::limits()).unwrap();
        let (names, _) = parse(&svg::picture(&scene));
        prop_assert!(names.iter().all(|name| name != "script"));
    }
}

#[test]
fn many_networks_are_counted_and_not_drawn() {
    let networks = (0..20).map(|n| network(NetworkRole::Pods, &format!("10.{n}.0.0/16")));
    let space = space(SpaceParts {
        networks: networks.collect(),
        ..SpaceParts::default()
    });
    let (_, text) = parse(&picture(&space));
    assert!(text.contains("and 11 more networks"));
}
