//! Large clusters.

use super::*;

#[test]
fn formats_only_visible_rows_of_150_000_pods() {
    let mut top = Fixture::new(View::Pods, 140, 40);
    let block = |n: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + 256 * n);
    let nodes = (0..5_000).map(|n| {
        let block = format!("{}/24", block(n));
        node(&format!("node-{n}"), &block, 253, true)
    });
    top.send(Message::Nodes(Change::Listed(nodes.collect())));
    let model = running("web", "node-0", "10.0.0.2");
    let pods = (0..150_000_u32).map(|n| {
        let mut pod = model.clone();
        pod.key.name = format!("web-{n}");
        pod.node = Some(format!("node-{}", n % 5_000));
        pod.ips =
            vec![std::net::Ipv4Addr::from_bits(block(n % 5_000).to_bits() + 2 + n / 5_000).into()];
        pod
    });
    top.send(Message::Pods(Change::Listed(pods.collect())));
    let screen = top.screen();
    assert!(screen.starts_with("pods (all) 150000 "), "{screen}");
    let shown = screen.lines().filter(|line| line.contains("Running"));
    assert_eq!(shown.count(), 40 - 5);
    // A change is not sorted in at once, and keys do not wait for it.
    top.send(Message::Pods(Change::Applied(running(
        "a-new-one",
        "node-0",
        "10.0.0.200",
    ))));
    top.keys("jjjk");
    assert!(!top.screen().contains("a-new-one"));
    top.wait(1);
    assert!(top.screen().contains("a-new-one"));
    top.keys("1");
    assert!(
        top.screen().lines().nth(4).unwrap().contains("31/253"),
        "{}",
        top.screen()
    );
}
