//! The map as a screen.

use std::sync::Arc;

use podplane_map::{AddressClaim, AddressSpace, Holder, Network, NetworkRole, SpaceParts};

use super::*;

fn space() -> Arc<AddressSpace> {
    let block =
        |cidr: &str, node| NodeBlock::parse(cidr, BlockState::Assigned, Some(node)).unwrap();
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

/// The line about the cell under the cursor.
fn line(top: &mut Fixture) -> String {
    top.screen().lines().last().unwrap().to_owned()
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
    assert_eq!(asked(&mut top), 1);
    assert_eq!(asked(&mut top), 0, "one at a time");
    top.send(Message::Space(space()));
    assert_eq!(asked(&mut top), 1, "the cluster has come since");
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
fn tab_goes_through_the_networks() {
    let mut top = Fixture::with_cluster(View::Map, 80, 24);
    top.send(Message::Space(space()));
    top.press(KeyCode::Tab);
    assert!(top.screen().starts_with("service range 10.96.0.0/24"));
    top.press(KeyCode::Tab);
    assert!(top.screen().starts_with("cluster CIDR"));
}

#[test]
fn says_how_large_the_terminal_must_be() {
    let mut top = Fixture::with_cluster(View::Map, 79, 24);
    top.send(Message::Space(space()));
    assert!(
        top.screen()
            .contains("the map needs at least 80 columns and 23 rows")
    );
    top.resize(80, 24);
    assert!(top.screen().starts_with("cluster CIDR"));
}
