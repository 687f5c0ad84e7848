//! The map as a screen.

use std::sync::Arc;

use podplane_map::{AddressClaim, AddressSpace, Holder, Network, NetworkRole, SpaceParts};

use super::*;

fn block(cidr: &str, node: &str) -> NodeBlock {
    NodeBlock::parse(cidr, BlockState::Assigned, Some(node)).unwrap()
}

fn space() -> Arc<AddressSpace> {
    let pod = Holder::Pod {
        name: "default/api-0".into(),
        node: Some("node-1".into()),
    };
    Arc::new(AddressSpace::new(SpaceParts {
        networks: vec![
            Network::parse(NetworkRole::Pods, "10.244.0.0/16", "").unwrap(),
            Network::parse(NetworkRole::Services, "10.96.0.0/24", "").unwrap(),
        ],
        blocks: vec![
            block("10.244.0.0/24", "node-0"),
            block("10.244.1.0/24", "node-1"),
        ],
        claims: vec![AddressClaim::new("10.244.1.2".parse().unwrap(), pod).unwrap()],
        ..SpaceParts::default()
    }))
}

/// The line about the cell under the cursor, which may take two rows.
fn line(top: &mut Fixture) -> String {
    let screen = top.screen();
    let rows: Vec<_> = screen.lines().skip(22).collect();
    rows.join(" ").trim().to_owned()
}

#[test]
fn asks_for_the_space_once_and_again_when_objects_change() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    let asked = |top: &mut Fixture| {
        top.wait(5);
        let asked = top
            .effects
            .iter()
            .filter(|effect| **effect == Effect::MeasureSpace)
            .count();
        top.effects.clear();
        asked
    };
    assert_eq!(asked(&mut top), 0, "blocks and networks are loading");
    top.send(Message::Blocks(Ok(None)));
    assert_eq!(asked(&mut top), 0, "networks are loading");
    top.send(Message::Networks(Ok(())));
    assert_eq!(asked(&mut top), 1);
    assert_eq!(asked(&mut top), 0, "one at a time");
    top.send(Message::Space(space()));
    assert_eq!(asked(&mut top), 0);
    top.send(Message::Pods(Change::Applied(running(
        "b",
        "node-0",
        "10.244.0.4",
    ))));
    assert_eq!(asked(&mut top), 1);
}

#[test]
fn zooms_to_the_address_of_a_pod_and_describes_it() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    assert!(top.screen().contains("loading the map"));
    top.send(Message::Space(space()));
    let screen = top.screen();
    assert!(screen.starts_with("cluster CIDR 10.244.0.0/16"), "{screen}");
    let first = line(&mut top);
    assert!(first.contains("block 10.244.0.0/24 of node-0"), "{first}");
    // To the address 10.244.1.2, however the curve goes: the line names the cell.
    top.effects.clear();
    while !top
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::Load(_)))
    {
        seek(&mut top, "10.244.1.2");
        top.press(KeyCode::Enter);
    }
    let Some(Effect::Load(detail)) = top.effects.last().cloned() else {
        panic!("{:?}", top.effects);
    };
    assert_eq!(detail.to_string(), "describe pod default/api-0");
    top.press(KeyCode::Esc);
    assert_eq!(
        line(&mut top),
        "pod 10.244.1.2: pod default/api-0 on node-1; block 10.244.1.0/24 of node-1"
    );
    top.keys("n");
    assert!(top.screen().starts_with("pods (on node-1)"));
    top.press(KeyCode::Esc);
    for _ in 0..4 {
        top.press(KeyCode::Backspace);
    }
    assert!(
        top.screen().contains("65536 addresses, each cell"),
        "{}",
        top.screen()
    );
}

/// Moves the cursor row by row until the cell under it contains the address.
fn seek(top: &mut Fixture, ip: &str) {
    let ip: std::net::IpAddr = ip.parse().unwrap();
    let is_there = |line: &str| {
        let mut words = line.split([' ', ':', ';']);
        words.any(|word| match word.parse::<ipnet::IpNet>() {
            Ok(net) => net.contains(&ip),
            Err(_) => word.parse() == Ok(ip),
        })
    };
    // The block is named behind the semicolon.
    let cell = |top: &mut Fixture| line(top).split(';').next().unwrap().to_owned();
    for _ in 0..64 {
        top.press(KeyCode::Left);
        top.press(KeyCode::Up);
    }
    for _ in 0..32 {
        for _ in 0..64 {
            if is_there(&cell(top)) {
                return;
            }
            top.press(KeyCode::Right);
        }
        for _ in 0..64 {
            top.press(KeyCode::Left);
        }
        top.press(KeyCode::Down);
    }
    panic!("{ip} is in no cell:\n{}", top.screen());
}

#[test]
fn escape_zooms_out_and_goes_back_to_the_table_before() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    top.keys("2");
    top.press(KeyCode::Enter);
    top.keys("6");
    top.send(Message::Space(space()));
    top.press(KeyCode::Enter);
    assert!(top.screen().contains("view 10.244.0.0/20"));
    top.press(KeyCode::Esc);
    assert!(top.screen().contains("65536 addresses, each cell"));
    top.press(KeyCode::Esc);
    assert!(top.screen().starts_with("pods (all) 8"), "{}", top.screen());
    top.keys("66");
    top.press(KeyCode::Esc);
    assert!(
        top.screen().starts_with("pods (all) 8"),
        "one map at a time"
    );
}

#[test]
fn the_map_of_one_namespace_says_so() {
    let mut top = Fixture::of_namespace(Some("shop"), View::Map, 140, 24);
    top.send(Message::Space(space()));
    let said = line(&mut top);
    assert!(said.starts_with("10.244.0.0/"), "{said}");
    top.send(Message::Namespace {
        name: "shop".into(),
        exists: false,
    });
    let said = line(&mut top);
    assert!(
        said.starts_with("namespace shop does not exist; 10."),
        "{said}"
    );
}

#[test]
fn one_step_leads_to_a_used_prefix_of_ipv6_and_one_back() {
    let network = Network::parse(NetworkRole::Pods, "fd00:10::/48", "").unwrap();
    let space = AddressSpace::new(SpaceParts {
        networks: vec![network],
        blocks: vec![block("fd00:10::/64", "a"), block("fd00:10:0:1::/64", "b")],
        ..SpaceParts::default()
    });
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(Arc::new(space)));
    assert!(top.screen().starts_with("cluster CIDR fd00:10::/48"));
    top.press(KeyCode::Enter);
    assert!(
        top.screen().contains("view fd00:10::/64, 2^64"),
        "{}",
        top.screen()
    );
    top.press(KeyCode::Esc);
    assert!(top.screen().contains("2^80 addresses"), "{}", top.screen());
}

#[test]
fn tab_goes_through_the_networks() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(space()));
    top.press(KeyCode::Tab);
    assert!(top.screen().starts_with("service range 10.96.0.0/24"));
    top.press(KeyCode::Tab);
    assert!(top.screen().starts_with("cluster CIDR"));
}

/// The map of a space that does not change, which begins with a part.
fn fixed(part: &str) -> Fixture {
    let mut app = App::of_space(space(), "dump.json", (80, 24), now());
    app.start_with(Some(part.parse().unwrap()));
    Fixture::of_app(app, 80, 24)
}

#[test]
fn begins_with_the_part_that_is_named() {
    for (part, title, cursor) in [
        ("10.244.1.0/24", "view 10.244.1.0/24", "10.244.1.0"),
        (
            "10.244.1.2",
            "view 10.244.1.0/24",
            "pod 10.244.1.2: pod default/api-0",
        ),
        ("services", "service range 10.96.0.0/24", "10.96.0.0"),
    ] {
        let mut map = fixed(part);
        let screen = map.screen();
        assert!(screen.contains(title), "{screen}");
        assert!(line(&mut map).contains(cursor), "{screen}");
    }
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.app.start_with(Some("10.244.1.2".parse().unwrap()));
    assert!(top.screen().contains("loading the map"));
    top.send(Message::Space(space()));
    assert!(line(&mut top).starts_with("pod 10.244.1.2"));
    top.press(KeyCode::Tab);
    assert!(top.screen().starts_with("service range"));
}

#[test]
fn says_that_the_part_is_in_no_network_until_a_key_moves() {
    let mut map = fixed("192.0.2.0/24");
    assert!(map.screen().starts_with("cluster CIDR 10.244.0.0/16"));
    assert!(line(&mut map).contains("invalid prefix `192.0.2.0/24`: it is in no network"));
    map.press(KeyCode::Right);
    assert!(!line(&mut map).contains("192.0.2.0"));
}

#[test]
fn a_space_that_does_not_change_has_only_its_map() {
    let mut map = fixed("10.244.1.2");
    let screen = map.screen();
    assert!(
        screen
            .lines()
            .next()
            .unwrap()
            .ends_with("dump.json not live")
    );
    map.resize(120, 40);
    let wide = map.screen();
    let keys = wide.lines().nth(1).unwrap();
    let shown = ["Tab next", "n pods", "d describe"].map(|key| keys.contains(key));
    assert_eq!(shown, [true, false, false], "{keys}");
    map.resize(80, 24);
    for keys in ["1", "2", "n", "d", "y", ":events"] {
        map.keys(keys);
        if keys.starts_with(':') {
            map.press(KeyCode::Enter);
        }
        let answer = line(&mut map);
        assert!(
            answer.starts_with("only the map is known"),
            "{keys}: {answer}"
        );
        assert!(map.screen().contains("view 10.244.1.0/24"), "{keys}");
    }
    map.wait(60);
    assert_eq!(map.effects, []);
    map.keys("q");
    assert_eq!(map.effects, [Effect::Quit]);
}

#[test]
fn the_state_does_not_cover_the_first_line() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(space()));
    let name = |top: &mut Fixture| top.screen().lines().next().unwrap().to_owned();
    assert!(name(&mut top).ends_with("unix:/run/apiserver.sock live"));
    let long = "a-very-long-name-of-a-network-with-a-purpose-that-somebody-wrote";
    let networks = vec![Network::parse(NetworkRole::Pods, "10.244.0.0/16", long).unwrap()];
    top.send(Message::Space(Arc::new(AddressSpace::new(SpaceParts {
        networks,
        ..SpaceParts::default()
    }))));
    let first = name(&mut top);
    assert!(
        first.contains("10.244.0.0/16") && first.ends_with("live"),
        "{first}"
    );
    assert!(first.ends_with(" live") || first.contains('~'), "{first}");
    assert!(
        !first.contains("unix:"),
        "the name of the server gives way: {first}"
    );
}

#[test]
fn says_how_large_the_terminal_must_be() {
    let mut top = Fixture::with_cluster(View::Map, 79, 24);
    top.send(Message::Space(space()));
    let want = "the map needs at least 80 columns and 24 rows";
    assert!(top.screen().contains(want));
    top.resize(80, 23);
    assert!(top.screen().contains(want));
    top.resize(60, 20);
    assert!(
        top.screen()
            .contains("this terminal has 60 columns and 20 rows")
    );
    top.resize(80, 24);
    assert!(top.screen().starts_with("cluster CIDR"));
}

#[test]
fn the_help_is_named_and_the_line_about_the_cursor_is_whole_on_the_smallest_terminal() {
    let node = "a-node-with-a-name-as-long-as-a-name-of-a-cloud-is.example.internal";
    let block = NodeBlock::parse("10.0.0.0/24", BlockState::Assigned, Some(node)).unwrap();
    let space = Arc::new(AddressSpace::new(SpaceParts {
        networks: vec![Network::parse(NetworkRole::Pods, "10.0.0.0/8", "").unwrap()],
        blocks: vec![block],
        ..SpaceParts::default()
    }));
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(space));
    for zoom in 0..7 {
        let screen = top.screen();
        let scale = screen.lines().nth(1).unwrap();
        assert!(scale.ends_with("? help"), "{zoom}: {screen}");
        top.press(KeyCode::Enter);
    }
    let screen = top.screen();
    assert!(screen.contains("a /32 of 1 address"), "{screen}");
    let end: Vec<&str> = screen.lines().rev().take(2).collect();
    let about = format!("{} {}", end[1], end[0]);
    assert!(about.contains(&format!("of {node}")), "{screen}");
    // The legend is whole above it.
    assert!(screen.contains("unassigned"), "{screen}");
}

#[test]
fn the_map_says_that_it_has_no_filter() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(space()));
    top.keys("/");
    assert!(line(&mut top).starts_with("the map has no filter"));
}

#[test]
fn an_address_in_a_block_beyond_its_network_is_shown_in_the_network() {
    let foreign = NodeBlock::parse("10.96.0.0/16", BlockState::Foreign, Some("node-0")).unwrap();
    let space = AddressSpace::new(SpaceParts {
        networks: vec![Network::parse(NetworkRole::Services, "10.96.0.0/24", "").unwrap()],
        blocks: vec![foreign],
        ..SpaceParts::default()
    });
    let mut app = App::of_space(Arc::new(space), "dump.json", (80, 24), now());
    app.start_with(Some("10.96.0.7".parse().unwrap()));
    let mut map = Fixture::of_app(app, 80, 24);
    let screen = map.screen();
    assert!(screen.starts_with("service range 10.96.0.0/24"), "{screen}");
    assert!(line(&mut map).contains("10.96.0.7"), "{screen}");
}

/// Networks that are inferred from so many blocks of nodes and addresses of Services.
fn inferred(pods: &str, services: &str) -> Message {
    let network = |role, cidr| Network::parse(role, cidr, "inferred").unwrap();
    Message::Space(Arc::new(AddressSpace::new(SpaceParts {
        networks: vec![
            network(NetworkRole::Pods, pods),
            network(NetworkRole::Services, services),
        ],
        blocks: vec![block("10.244.0.0/24", "node-0")],
        ..SpaceParts::default()
    })))
}

#[test]
fn the_place_stays_when_an_inferred_network_grows_or_shrinks() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    let shows = |top: &mut Fixture, want: &str| {
        let screen = top.screen();
        assert!(screen.contains(want), "{want}: {screen}");
    };
    top.send(inferred("10.244.0.0/22", "10.96.0.0/24"));
    top.press(KeyCode::Enter);
    shows(&mut top, "view 10.244.0.0/26");
    top.send(inferred("10.244.0.0/20", "10.96.0.0/24"));
    shows(&mut top, "cluster CIDR 10.244.0.0/20");
    shows(&mut top, "view 10.244.0.0/26");
    // The step leads back to more than there is now.
    top.send(inferred("10.244.0.0/23", "10.96.0.0/24"));
    top.press(KeyCode::Esc);
    shows(&mut top, "cluster CIDR 10.244.0.0/23");
    shows(&mut top, "512 addresses");
    // All of a network stays all of it.
    top.press(KeyCode::Tab);
    shows(&mut top, "service range 10.96.0.0/24");
    for services in ["10.96.0.0/22", "10.96.0.0/25"] {
        top.send(inferred("10.244.0.0/23", services));
        shows(&mut top, &format!("service range {services}"));
        top.press(KeyCode::Right);
    }
}
