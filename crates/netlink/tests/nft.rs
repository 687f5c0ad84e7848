//! nftables through netlink, compared with the output of Debian's `nft`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{net::IpAddr, path::Path};

use podplane_netlink::nft::{
    BaseChain, Batch, Chain, Expr, Family, Hook, Nft, Table,
    expr::{self, Side, Transport},
};
use podplane_test_network::{NetnsFixture, require, run_in};

const TABLE: Table<'_> = Table {
    family: Family::Inet,
    name: "podplane",
};
const BASE: Chain<'_> = TABLE.chain("postrouting");
const REGULAR: Chain<'_> = TABLE.chain("checks");

fn nft(netns: &Path, args: &[&str]) -> String {
    run_in(netns, "nft", args)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn chains(batch: &mut Batch) {
    batch.add_table(TABLE, Some("a table"));
    batch.add_chain(REGULAR, None, Some("a chain"));
    let base = BaseChain {
        kind: "nat",
        hook: Hook::Postrouting,
        priority: 100,
        policy: true,
    };
    batch.add_chain(BASE, Some(base), None);
}

fn with(mut exprs: Vec<Expr>, last: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    exprs.extend(last);
    exprs
}

#[test]
fn nft_lists_each_expression_as_intended() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("a");
    let rules = [
        (
            with(
                expr::address(Side::Source, ip("10.0.0.1")),
                [expr::return_()],
            ),
            "ip saddr 10.0.0.1 return",
        ),
        (
            with(
                expr::address(Side::Destination, ip("fd00::1")),
                [expr::accept()],
            ),
            "ip6 daddr fd00::1 accept",
        ),
        (
            with(
                expr::in_network(Side::Destination, "224.0.0.0/4".parse().unwrap()),
                [expr::return_()],
            ),
            "ip daddr 224.0.0.0/4 return",
        ),
        (
            with(
                expr::in_network(Side::Destination, "ff00::/8".parse().unwrap()),
                [expr::return_()],
            ),
            "ip6 daddr ff00::/8 return",
        ),
        (
            with(
                expr::not_in_network(Side::Source, "fd00:1::/65".parse().unwrap()),
                [expr::counter()],
            ),
            "ip6 saddr != fd00:1::/65 counter packets 0 bytes 0",
        ),
        (
            with(
                expr::leaves_network(ip("10.244.1.2"), "10.244.1.0/24".parse().unwrap()),
                [expr::masquerade()],
            ),
            "ip saddr 10.244.1.2 ip daddr != 10.244.1.0/24 masquerade",
        ),
        (
            with(
                expr::leaves_network(ip("fd00::2"), "fd00::/64".parse().unwrap()),
                [expr::masquerade()],
            ),
            "ip6 saddr fd00::2 ip6 daddr != fd00::/64 masquerade",
        ),
        (
            with(
                expr::between(ip("10.0.0.1"), ip("10.0.0.2")),
                [expr::drop()],
            ),
            "ip saddr 10.0.0.1 ip daddr 10.0.0.2 drop",
        ),
        (
            with(
                expr::destination_port(Transport::Tcp, 8080),
                [expr::accept()],
            ),
            "tcp dport 8080 accept",
        ),
        (
            with(expr::destination_port(Transport::Sctp, 1), [expr::accept()]),
            "sctp dport 1 accept",
        ),
        (
            with(expr::destination_is_local(), [expr::return_()]),
            "fib daddr type local return",
        ),
        (
            with(expr::incoming_interface("veth0"), [expr::return_()]),
            "iifname \"veth0\" return",
        ),
        (
            with(expr::mark_is(0x2000, 0x2000), [expr::return_()]),
            "meta mark & 0x00002000 == 0x00002000 return",
        ),
    ];
    let mut batch = Batch::default();
    chains(&mut batch);
    for (rule, _) in &rules {
        batch.add_rule(REGULAR, rule.clone(), None);
    }
    batch.insert_rule(BASE, vec![expr::goto("checks")], Some("go: \"there\""));
    let hook = TABLE.chain("prerouting");
    let base = BaseChain {
        kind: "nat",
        hook: Hook::Prerouting,
        priority: -100,
        policy: false,
    };
    batch.add_chain(hook, Some(base), None);
    let to = expr::dnat(ip("10.244.1.2"), 80);
    batch.add_rule(
        hook,
        with(expr::destination_port(Transport::Udp, 53), to),
        None,
    );
    let to = expr::dnat(ip("fd00::2"), 443);
    batch.add_rule(
        hook,
        with(expr::destination_port(Transport::Tcp, 443), to),
        None,
    );
    let mut kernel = Nft::open_in(&netns).unwrap();
    kernel.apply(batch).unwrap();

    let shown = nft(&netns, &["list", "ruleset"]);
    for (_, text) in rules {
        assert!(
            shown.lines().any(|line| line.trim() == text),
            "{text}\n{shown}"
        );
    }
    for text in [
        "comment \"a table\"",
        "comment \"a chain\"",
        "type nat hook postrouting priority srcnat; policy accept;",
        "type nat hook prerouting priority dstnat; policy accept;",
        "goto checks comment \"go: \"there\"\"",
        "udp dport 53 dnat ip to 10.244.1.2:80",
        "tcp dport 443 dnat ip6 to [fd00::2]:443",
    ] {
        assert!(
            shown.lines().any(|line| line.trim() == text),
            "{text}\n{shown}"
        );
    }

    let bridge = Table {
        family: Family::Bridge,
        name: "nat",
    };
    let mut batch = Batch::default();
    batch.add_table(bridge, None);
    batch.add_chain(bridge.chain("mac"), None, None);
    let rule = with(expr::source_mac([2, 0, 0, 0, 0, 1]), [expr::return_()]);
    batch.add_rule(bridge.chain("mac"), rule, None);
    kernel.apply(batch).unwrap();
    let shown = nft(&netns, &["list", "chain", "bridge", "nat", "mac"]);
    assert!(
        shown.contains("ether saddr 02:00:00:00:00:01 return"),
        "{shown}"
    );
}

#[test]
fn finds_rules_by_comment_and_deletes_them_by_handle() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("a");
    let mut kernel = Nft::open_in(&netns).unwrap();
    assert_eq!(kernel.rules(REGULAR).unwrap(), []);
    assert_eq!(kernel.chains(TABLE).unwrap(), []);
    let mut batch = Batch::default();
    chains(&mut batch);
    for n in 0..300 {
        let comment = format!("rule {n}");
        batch.add_rule(REGULAR, vec![expr::counter()], Some(&comment));
    }
    kernel.apply(batch).unwrap();
    nft(
        &netns,
        &[
            "add",
            "rule",
            "inet",
            "podplane",
            "postrouting",
            "jump",
            "checks",
            "comment",
            "\"by nft\"",
        ],
    );
    let by_nft = kernel.rules(BASE).unwrap();
    assert_eq!(by_nft.len(), 1);
    assert_eq!(
        (by_nft[0].comment.as_str(), by_nft[0].target.as_deref()),
        ("by nft", Some("checks"))
    );
    let rules = kernel.rules(REGULAR).unwrap();
    assert_eq!(rules.len(), 300);
    assert_eq!(rules[7].comment, "rule 7");
    let found: Vec<_> = kernel
        .chains(TABLE)
        .unwrap()
        .into_iter()
        .map(|chain| (chain.name, chain.comment))
        .collect();
    assert_eq!(
        found,
        [
            ("checks".to_owned(), "a chain".to_owned()),
            ("postrouting".to_owned(), String::new())
        ]
    );
    assert_eq!(kernel.tables(Family::Inet).unwrap(), ["podplane"]);

    let mut batch = Batch::default();
    for rule in &rules[1..] {
        batch.delete_rule(REGULAR, rule.handle);
    }
    batch.delete_rule(BASE, by_nft[0].handle);
    kernel.apply(batch).unwrap();
    assert_eq!(kernel.rules(REGULAR).unwrap(), rules[..1]);
    let mut batch = Batch::default();
    batch.flush_chain(REGULAR);
    batch.delete_chain(BASE);
    kernel.apply(batch).unwrap();
    assert_eq!(kernel.rules(REGULAR).unwrap(), []);
    let mut batch = Batch::default();
    batch.delete_table(TABLE);
    kernel.apply(batch).unwrap();
    assert_eq!(nft(&netns, &["list", "ruleset"]), "");
    kernel.apply(Batch::default()).unwrap();
}

#[test]
fn a_failed_batch_changes_nothing_and_names_the_cause() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let netns = world.netns("a");
    let mut kernel = Nft::open_in(&netns).unwrap();
    let mut batch = Batch::default();
    chains(&mut batch);
    batch.delete_rule(REGULAR, 4711);
    batch.add_rule(TABLE.chain("nowhere"), vec![expr::accept()], None);
    let error = kernel.apply(batch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to delete rule 4711 of chain inet podplane checks"
    );
    assert!(error.is_not_found());
    assert_eq!(nft(&netns, &["list", "ruleset"]), "");
    // The answers to the rest of the failed batch do not disturb the next one.
    let mut batch = Batch::default();
    chains(&mut batch);
    kernel.apply(batch).unwrap();
    let mut batch = Batch::default();
    batch.add_rule(BASE, vec![expr::jump("checks")], None);
    kernel.apply(batch).unwrap();
    let mut batch = Batch::default();
    batch.delete_chain(REGULAR);
    let error = kernel.apply(batch).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to delete chain inet podplane checks"
    );
    assert_eq!(kernel.rules(BASE).unwrap().len(), 1);
}
