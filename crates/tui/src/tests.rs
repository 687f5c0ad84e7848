//! The program on terminals of several sizes, as text.

mod golden;
mod map;
mod scale;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use podplane_api::{
    core::{Event, Node, Pod},
    jiff::{SignedDuration, Timestamp},
    pod_ips::PodIpResource,
    strict,
};
use podplane_map::{BlockState, NodeBlock, PodRule};
use podplane_summary::ControlPlane;
use ratatui::{Terminal, backend::TestBackend};
use serde_json::{Value, json};

use crate::{
    App, BlockRecords, Change, Effect, EventFact, Message, NodeFact, PodFact, Source,
    SourceFailure, Theme, View, draw,
};

/// The time on the clock of these tests.
fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

pub(crate) fn node(name: &str, block: &str, capacity: u64, is_ready: bool) -> NodeFact {
    let ready = if is_ready { "True" } else { "False" };
    let node: Node = strict::decode(json!({
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"podplane.io/pod-ips-orphaned": if name == "node-1" { "1" } else { "0" }}},
        "spec": {"podCIDR": block, "podCIDRs": [block]},
        "status": {"capacity": {"podplane.io/pod-ips": capacity.to_string()},
            "conditions": [{"type": "Ready", "status": ready},
                {"type": "PodIPsReported", "status": "True"}]}}))
    .unwrap();
    NodeFact::from(&node)
}

pub(crate) fn pod(name: &str, node: Option<&str>, status: Value) -> PodFact {
    pod_of(name, node, status, ControlPlane::Podplane)
}

fn pod_of(name: &str, node: Option<&str>, status: Value, control_plane: ControlPlane) -> PodFact {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": name, "creationTimestamp": "2026-01-01T00:09:30Z"},
        "spec": {"containers": [{"name": "c"}]}, "status": status});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    let pod: Pod = strict::decode(pod).unwrap();
    PodFact::new(&pod, &PodIpResource::default(), control_plane)
}

pub(crate) fn running(name: &str, node: &str, ip: &str) -> PodFact {
    let at = |seconds: u8| format!("2026-01-01T00:09:3{seconds}Z");
    let condition = |kind: &str, seconds| json!({"type": kind, "status": "True", "lastTransitionTime": at(seconds)});
    let conditions = [
        condition("PodScheduled", 0),
        condition("PodReadyToStartContainers", 1),
        condition("Ready", 2),
    ];
    let status = json!({"phase": "Running", "podIPs": [{"ip": ip}], "conditions": conditions});
    pod(name, Some(node), status)
}

fn waiting(name: &str, message: &str) -> PodFact {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastTransitionTime": "2026-01-01T00:09:40Z"});
    pod(
        name,
        None,
        json!({"phase": "Pending", "conditions": [condition]}),
    )
}

fn event(name: &str, reason: &str, pod: &str) -> EventFact {
    let event: Event = strict::decode(json!({
        "metadata": {"namespace": "default", "name": name},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": pod},
        "type": if reason == "Scheduled" { "Normal" } else { "Warning" },
        "reason": reason, "message": format!("about {pod}"), "lastTimestamp": "2026-01-01T00:09:50Z"}))
    .unwrap();
    EventFact::from(&event)
}

/// The program on a terminal, with what it asked for.
pub(crate) struct Fixture {
    app: App,
    terminal: Terminal<TestBackend>,
    pub(crate) effects: Vec<Effect>,
}

impl Fixture {
    pub(crate) fn new(view: View, columns: u16, rows: u16) -> Self {
        Self::of_namespace(None, view, columns, rows)
    }

    fn of_namespace(namespace: Option<&str>, view: View, columns: u16, rows: u16) -> Self {
        let namespace = namespace.map(str::to_owned);
        let server = "unix:/run/apiserver.sock";
        let (app, effects) = App::new(view, namespace, server, (columns, rows), now());
        Self {
            effects,
            ..Self::of_app(app, columns, rows)
        }
    }

    fn of_app(app: App, columns: u16, rows: u16) -> Self {
        Self {
            app,
            terminal: Terminal::new(TestBackend::new(columns, rows)).unwrap(),
            effects: Vec::new(),
        }
    }

    /// The same with three nodes, four pods and two that wait.
    fn with_cluster(view: View, columns: u16, rows: u16) -> Self {
        let mut fixture = Self::new(view, columns, rows);
        fixture.send(Message::Nodes(Change::Listed(vec![
            node("node-0", "10.244.0.0/29", 5, true),
            node("node-1", "10.244.0.8/29", 5, true),
            node("node-2", "10.244.0.16/29", 5, false),
        ])));
        let message = "0/3 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, 2 Insufficient pod IPs.";
        let mut pods: Vec<_> = (0..5)
            .map(|n| {
                running(
                    &format!("web-{n}"),
                    "node-0",
                    &format!("10.244.0.{}", n + 2),
                )
            })
            .collect();
        pods.push(running("api-0", "node-1", "10.244.0.10"));
        pods.push(waiting("late-0", message));
        pods.push(waiting("late-1", message));
        fixture.send(Message::Pods(Change::Listed(pods)));
        fixture
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.app.update(message);
        self.effects.extend(self.app.settle());
    }

    fn press(&mut self, code: KeyCode) {
        self.send(Message::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }

    pub(crate) fn keys(&mut self, text: &str) {
        text.chars().for_each(|key| self.press(KeyCode::Char(key)));
    }

    fn wait(&mut self, seconds: i64) {
        let later = self.app.now + SignedDuration::from_secs(seconds);
        self.send(Message::Tick(later));
    }

    /// The screen as text, without spaces at the ends of lines.
    pub(crate) fn screen(&mut self) -> String {
        let app = &self.app;
        self.terminal
            .draw(|frame| draw(app, frame, Theme::Colored))
            .unwrap();
        let buffer = self.terminal.backend().buffer();
        let lines = buffer.content.chunks(usize::from(buffer.area.width));
        let lines = lines.map(|line| {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.terminal.backend_mut().resize(columns, rows);
        self.send(Message::Resize(columns, rows));
    }

    /// The selected row, which is shown in reverse.
    fn selected(&mut self) -> String {
        let screen = self.screen();
        let buffer = self.terminal.backend().buffer();
        let is_selected = |line: &[ratatui::buffer::Cell]| {
            line.first()
                .is_some_and(|cell| cell.modifier.contains(ratatui::style::Modifier::REVERSED))
        };
        let mut lines = buffer.content.chunks(usize::from(buffer.area.width));
        let index = lines.position(is_selected).expect("a selected row");
        screen.lines().nth(index).unwrap().to_owned()
    }
}

#[test]
fn drills_down_from_a_node_to_a_pod_and_back() {
    let mut top = Fixture::with_cluster(View::Nodes, 100, 24);
    assert_eq!(
        top.effects,
        [Effect::Follow(Source::Nodes), Effect::Follow(Source::Pods)]
    );
    top.press(KeyCode::Down);
    assert!(top.selected().starts_with("node-1"));
    top.press(KeyCode::Enter);
    let screen = top.screen();
    assert!(screen.starts_with("pods (on node-1) 1 "), "{screen}");
    assert!(
        screen.contains("api-0") && !screen.contains("web-0"),
        "{screen}"
    );
    top.press(KeyCode::Enter);
    let Some(Effect::Load(detail)) = top.effects.last().cloned() else {
        panic!("{:?}", top.effects);
    };
    assert_eq!(detail.to_string(), "describe pod default/api-0");
    assert!(top.screen().contains("loading"));
    top.send(Message::Loaded(
        detail,
        Ok("Name:  api-0\n\u{1b}[2JNode:  x".into()),
    ));
    let screen = top.screen();
    assert!(
        screen.contains("Name:  api-0") && screen.contains("\\u{1b}[2JNode:  x"),
        "{screen}"
    );
    top.press(KeyCode::Esc);
    top.press(KeyCode::Esc);
    assert!(
        top.selected().starts_with("node-1"),
        "the selection is kept"
    );
}

#[test]
fn counts_an_address_of_two_pods_once_and_pods_without_one_apart() {
    let mut top = Fixture::new(View::Nodes, 80, 24);
    top.send(Message::Nodes(Change::Listed(vec![
        node("node-0", "10.244.0.0/29", 5, true),
        node("node-2", "10.244.0.0/29", 5, true),
    ])));
    top.send(Message::Pods(Change::Listed(vec![
        running("web-0", "node-0", "10.244.0.2"),
        running("web-1", "node-2", "10.244.0.2"),
        running("web-2", "node-2", "10.244.0.3"),
        pod("late", Some("node-0"), json!({"phase": "Pending"})),
    ])));
    let screen = top.screen();
    let numbers = |node: &str| {
        let line = screen.lines().find(|line| line.starts_with(node));
        let words = line
            .unwrap_or_else(|| panic!("{screen}"))
            .split_whitespace();
        words.skip(3).map(str::to_owned).collect::<Vec<_>>()
    };
    // Used, fill, orphans, waiting, pods, age.
    assert_eq!(numbers("node-0"), ["2/5", "###-----", "0", "1", "2", "10m"]);
    assert_eq!(numbers("node-2"), ["2/5", "###-----", "0", "0", "2", "10m"]);
    top.keys("4");
    let screen = top.screen();
    assert!(screen.contains("2      5"), "{screen}");
}

#[test]
fn filters_while_typing_and_restores_the_filter_with_escape() {
    let mut top = Fixture::with_cluster(View::Pods, 80, 24);
    top.keys("/web-[01]");
    assert!(top.screen().starts_with("pods (all) 2 of 8  /web-[01]"));
    top.press(KeyCode::Enter);
    top.keys("/x");
    assert!(top.screen().contains("no pod matches /web-[01]x"));
    top.press(KeyCode::Esc);
    assert!(top.screen().starts_with("pods (all) 2 of 8  /web-[01]"));
    top.press(KeyCode::Esc);
    assert!(top.screen().starts_with("pods (all) 8 "));
}

#[test]
fn sorts_by_keys_and_keeps_the_selection() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    top.keys("j");
    top.keys("F");
    assert!(top.screen().contains("FILL↑"));
    top.keys("F");
    let screen = top.screen();
    assert!(screen.contains("FILL↓"), "{screen}");
    assert!(
        screen.lines().nth(4).unwrap().starts_with("node-0"),
        "{screen}"
    );
    assert!(top.selected().starts_with("node-1"));
    top.keys("X");
    assert!(
        top.screen()
            .contains("no column sorts by X: want one of NSBUFOWPA")
    );
}

#[test]
fn a_deleted_row_leaves_the_selection_in_its_place() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    top.keys("G");
    assert!(top.selected().starts_with("node-2"));
    let gone = podplane_api::ObjectKey::new("", "node-2");
    top.send(Message::Nodes(Change::Deleted(gone)));
    assert!(top.selected().starts_with("node-1"));
}

#[test]
fn a_lost_connection_is_shown_with_its_age_until_it_is_back() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    let lost = || SourceFailure {
        message: "connection refused".into(),
        is_denied: false,
    };
    top.send(Message::Nodes(Change::Failed(lost())));
    top.wait(5);
    top.send(Message::Nodes(Change::Failed(lost())));
    top.wait(5);
    let screen = top.screen();
    assert!(screen.contains("CONNECTION LOST 10s ago"), "{screen}");
    let why = screen.lines().rev().take(2).collect::<Vec<_>>();
    let why = format!("{} {}", why[1], why[0]);
    let want = "no connection to unix:/run/apiserver.sock since 2026-01-01T00:10:00Z: connection";
    assert!(why.contains(want) && why.contains("refused"), "{screen}");
    assert!(screen.contains("node-0"), "what was known stays");
    top.send(Message::Nodes(Change::Resumed));
    let screen = top.screen();
    assert!(
        screen.contains(" live") && !screen.contains("LOST"),
        "{screen}"
    );
}

#[test]
fn what_is_not_permitted_is_missing_in_its_views_alone() {
    let mut top = Fixture::new(View::Pods, 80, 24);
    top.send(Message::Nodes(Change::Listed(vec![node(
        "node-0",
        "10.244.0.0/29",
        5,
        true,
    )])));
    assert!(top.screen().contains("loading pods"));
    top.send(Message::Pods(Change::Failed(SourceFailure {
        message: "pods is forbidden: User \"u\" cannot list resource \"pods\"".into(),
        is_denied: true,
    })));
    let screen = top.screen();
    assert!(
        screen.contains("pods: not permitted: pods is forbidden"),
        "{screen}"
    );
    top.keys("1");
    let screen = top.screen();
    assert!(
        screen.contains("?/5") && screen.contains("pods not permitted"),
        "{screen}"
    );
    assert!(
        screen.contains(" live"),
        "a refusal does not mean a lost connection: {screen}"
    );
}

#[test]
fn commands_switch_views_and_say_what_is_wrong() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    top.keys(":po default");
    assert!(top.screen().ends_with(":po default"));
    top.press(KeyCode::Enter);
    assert!(top.screen().starts_with("pods (namespace default) 8"));
    top.keys(":po empty");
    top.press(KeyCode::Enter);
    assert!(top.screen().contains("no pods in namespace empty"));
    assert_eq!(
        top.effects.pop(),
        Some(Effect::CheckNamespace("empty".into()))
    );
    assert!(!top.screen().contains("does not exist"));
    let answer = |exists| Message::Namespace {
        name: "empty".into(),
        exists,
    };
    top.send(answer(false));
    assert!(top.screen().contains("namespace empty does not exist"));
    top.send(answer(true));
    assert!(!top.screen().contains("does not exist"));
    for before in ["pods (namespace default) 8", "nodes (all) 3"] {
        top.press(KeyCode::Esc);
        assert!(top.screen().starts_with(before), "{}", top.screen());
    }
    top.press(KeyCode::Esc);
    assert!(top.screen().starts_with("nodes (all) 3"), "the first stays");
    top.keys(":sheep");
    top.press(KeyCode::Enter);
    assert!(top.screen().contains("unknown view `sheep`"));
    top.keys("5");
    assert_eq!(top.effects.pop(), Some(Effect::Follow(Source::Events)));
    top.keys("1");
    top.keys("5");
    assert!(
        !top.effects.contains(&Effect::Follow(Source::Events)),
        "followed once"
    );
    top.keys(":q");
    top.press(KeyCode::Enter);
    assert_eq!(top.effects.pop(), Some(Effect::Quit));
}

#[test]
fn the_only_namespace_is_named_and_may_be_missing() {
    let mut top = Fixture::of_namespace(Some("shop"), View::Pods, 80, 24);
    assert!(top.screen().contains("loading pods from unix:/run/"));
    top.send(Message::Pods(Change::Listed(Vec::new())));
    let screen = top.screen();
    assert!(screen.starts_with("pods (namespace shop) 0 "), "{screen}");
    assert!(screen.contains("no pods in namespace shop"), "{screen}");
    assert!(top.effects.contains(&Effect::CheckNamespace("shop".into())));
    top.send(Message::Namespace {
        name: "shop".into(),
        exists: false,
    });
    let screen = top.screen();
    assert!(screen.contains("namespace shop does not exist"), "{screen}");
    top.keys("1");
    let screen = top.screen();
    assert!(
        screen.starts_with("nodes (pods of namespace shop) 0"),
        "{screen}"
    );
    assert!(screen.contains("namespace shop does not exist"), "{screen}");
    top.keys(":pods other");
    top.press(KeyCode::Enter);
    assert!(top.screen().contains("only namespace shop is read"));
}

#[test]
fn a_server_that_never_answered_is_not_live() {
    let mut top = Fixture::new(View::Nodes, 80, 24);
    let first = |top: &mut Fixture| top.screen().lines().next().unwrap().to_owned();
    assert!(first(&mut top).ends_with("unix:/run/apiserver.sock connecting"));
    top.send(Message::Nodes(Change::Failed(SourceFailure {
        message: "connection refused".into(),
        is_denied: false,
    })));
    top.wait(3);
    let line = first(&mut top);
    assert!(line.ends_with("NOT CONNECTED for 3s"), "{line}");
}

#[test]
fn a_long_error_is_shown_as_a_whole() {
    let mut top = Fixture::with_cluster(View::Pods, 60, 24);
    top.keys("t");
    let Some(Effect::Load(detail)) = top.effects.pop() else {
        panic!("{:?}", top.effects);
    };
    let words: Vec<String> = (0..40).map(|n| format!("word{n}")).collect();
    top.send(Message::Loaded(detail, Err(words.join(" "))));
    let screen = top.screen();
    assert!(
        words.iter().all(|word| screen.contains(word.as_str())),
        "{screen}"
    );
    top.press(KeyCode::Esc);
    let message = words.get(..20).unwrap().join(" ");
    top.send(Message::Nodes(Change::Failed(SourceFailure {
        message,
        is_denied: false,
    })));
    let screen = top.screen();
    assert!(
        screen.contains("word0") && screen.contains("word19"),
        "{screen}"
    );
}

#[test]
fn narrow_terminals_keep_names_and_the_order() {
    let mut top = Fixture::with_cluster(View::Nodes, 40, 24);
    for (columns, hidden) in [
        (77, "AGE"),
        (70, "FILL"),
        (60, "PODS"),
        (55, "ORPH"),
        (40, "BLOCKS"),
    ] {
        top.resize(columns, 24);
        let screen = top.screen();
        let head = screen.lines().nth(3).unwrap();
        assert!(
            head.starts_with("NAME↑") && head.contains("USED"),
            "{screen}"
        );
        assert!(!head.contains(hidden), "{columns}: {screen}");
        assert!(screen.contains("node-0"), "{screen}");
    }
    top.keys("A");
    assert!(top.screen().starts_with("nodes (all) 3  by AGE↑"));
    // The title has the whole width of its column.
    top.resize(60, 24);
    top.keys("2M");
    let screen = top.screen();
    assert!(screen.lines().nth(3).unwrap().contains('↓'), "{screen}");
}

#[test]
fn pages_follow_their_subject_and_nodes_have_no_trace() {
    let mut top = Fixture::with_cluster(View::Pods, 80, 24);
    let asked = |top: &mut Fixture| match top.effects.pop() {
        Some(Effect::Load(detail)) => detail.to_string(),
        other => panic!("{other:?}"),
    };
    top.keys("t");
    assert_eq!(asked(&mut top), "trace pod default/api-0");
    top.keys("x");
    assert_eq!(asked(&mut top), "explain pod default/api-0");
    top.keys("y");
    assert_eq!(asked(&mut top), "yaml pod default/api-0");
    top.press(KeyCode::Esc);
    assert!(top.screen().starts_with("pods (all)"), "one page at a time");
    top.keys("1t");
    assert!(
        top.screen()
            .contains("only pods have a trace and an explanation")
    );
}

#[test]
fn waiting_pods_open_by_reason() {
    let mut top = Fixture::with_cluster(View::Waiting, 80, 24);
    let row = top.selected();
    assert!(
        row.starts_with("2      20s     Insufficient pod IPs, node(s) had"),
        "{row}"
    );
    top.press(KeyCode::Enter);
    let screen = top.screen();
    assert!(
        screen.starts_with("pods (waiting: Insufficient pod IPs, node(s)"),
        "{screen}"
    );
    assert!(screen.contains("late-0") && screen.contains("late-1"));
    assert!(!screen.contains("web-0"));
}

#[test]
fn blocks_count_the_addresses_of_their_pods() {
    let mut top = Fixture::with_cluster(View::Blocks, 100, 24);
    let block =
        |cidr: &str, state, node| NodeBlock::new(cidr.parse().unwrap(), state, node).unwrap();
    let records = vec![
        block("10.244.0.0/29", BlockState::Assigned, Some("node-0")),
        block("10.244.0.8/29", BlockState::Assigned, Some("node-1")),
        block("10.244.0.24/29", BlockState::Held, Some("gone")).with_details("held by i since t"),
    ];
    top.send(Message::Blocks(Ok(Some(BlockRecords {
        blocks: records,
        // The first is also that of a pod.
        held: ["10.244.0.2", "10.244.0.26", "10.244.0.27"]
            .map(|ip| ip.parse().unwrap())
            .into(),
    }))));
    let screen = top.screen();
    let row = |name: &str| screen.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("10.244.0.0/29").contains("assigned") && row("10.244.0.0/29").contains("#"));
    // node-2 has a block that no record has.
    assert!(row("10.244.0.16/29").contains("node-2"));
    assert!(row("10.244.0.24/29").contains("held") && row("10.244.0.24/29").contains("held by i"));
    let words = |name: &str| {
        row(name)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        words("10.244.0.24/29")[3],
        "2",
        "as last reported: {screen}"
    );
    assert_eq!(words("10.244.0.0/29")[3..5], ["5", "5"], "{screen}");
    top.press(KeyCode::Enter);
    assert!(top.screen().starts_with("pods (in 10.244.0.0/29) 5"));
}

#[test]
fn overlapping_blocks_have_the_numbers_of_each_node() {
    let mut top = Fixture::new(View::Nodes, 100, 24);
    top.send(Message::Nodes(Change::Listed(vec![
        node("wide", "10.244.0.0/21", 2045, true),
        node("worker", "10.244.3.0/24", 253, true),
    ])));
    top.send(Message::Pods(Change::Listed(vec![
        running("one", "worker", "10.244.3.2"),
        running("two", "wide", "10.244.5.2"),
    ])));
    top.send(Message::Blocks(Ok(None)));
    let screen = top.screen();
    assert!(
        screen.contains("10.244.0.0/21 ") && screen.contains(" 2/2045 "),
        "{screen}"
    );
    assert!(
        screen.contains("10.244.3.0/24 ") && screen.contains(" 1/253 "),
        "{screen}"
    );
    top.keys("4");
    let screen = top.screen();
    let is_row = |line: &str, row: &[&str]| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.windows(row.len()).any(|part| part == row)
    };
    for row in [["wide", "2", "2045"], ["worker", "1", "253"]] {
        assert!(screen.lines().any(|line| is_row(line, &row)), "{screen}");
    }
}

#[test]
fn small_terminals_and_control_characters_do_no_harm() {
    let mut top = Fixture::with_cluster(View::Pods, 80, 24);
    let mut odd = running("x", "node-0", "10.244.0.3");
    odd.status = "a\u{1b}[31m\u{202e}b".into();
    top.send(Message::Pods(Change::Applied(odd)));
    let screen = top.screen();
    assert!(
        !screen.contains('\u{1b}') && !screen.contains('\u{202e}'),
        "{screen}"
    );
    for (columns, rows) in [(1, 1), (10, 3), (20, 5), (79, 23), (300, 90)] {
        top.resize(columns, rows);
        for key in "123456?".chars() {
            top.keys(&key.to_string());
            top.press(KeyCode::Down);
            top.press(KeyCode::PageDown);
            top.screen();
        }
    }
}

#[test]
fn a_long_message_fits_on_a_terminal_of_any_size() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    let words: Vec<String> = (0..40).map(|n| format!("word{n}")).collect();
    top.send(Message::Nodes(Change::Failed(SourceFailure {
        message: words.join(" "),
        is_denied: false,
    })));
    for (columns, rows) in (1..=12).flat_map(|columns| (1..=6).map(move |rows| (columns, rows))) {
        top.resize(columns, rows);
        for view in "123456?".chars() {
            top.keys(&view.to_string());
            top.screen();
            for key in "Zt:".chars() {
                top.keys(&key.to_string());
                top.screen();
            }
            top.press(KeyCode::Esc);
        }
    }
    top.resize(10, 3);
    top.keys("1Z");
    let screen = top.screen();
    assert!(screen.starts_with("no column"), "{screen}");
}

#[test]
fn a_finished_pod_of_another_cluster_has_no_address() {
    let mut top = Fixture::new(View::Nodes, 80, 24);
    top.send(Message::Nodes(Change::Listed(vec![node(
        "node-0",
        "10.244.0.0/29",
        5,
        true,
    )])));
    // Its kubelet does not report the end of the sandbox.
    let status = json!({"phase": "Succeeded", "podIPs": [{"ip": "10.244.0.2"}]});
    for (control_plane, used) in [
        (ControlPlane::Podplane, " 1/5 "),
        (ControlPlane::Other, " 0/5 "),
    ] {
        let done = pod_of("done", Some("node-0"), status.clone(), control_plane);
        top.send(Message::Pods(Change::Listed(vec![done])));
        let screen = top.screen();
        assert!(screen.contains(used), "{control_plane:?}: {screen}");
    }
}

#[test]
fn nodes_count_their_pods_where_blocks_are_not_used() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 24);
    // The address is in the block of another node.
    let elsewhere = running("db-0", "node-2", "10.244.0.11");
    top.send(Message::Pods(Change::Applied(elsewhere)));
    let used = |top: &mut Fixture| {
        let screen = top.screen();
        let rows = screen.lines().filter(|line| line.starts_with("node-"));
        let used = rows.map(|line| line.split_whitespace().nth(3).unwrap().to_owned());
        used.collect::<Vec<_>>()
    };
    // The second node has the address of the third one's pod; without any in its own block, the
    // third one has the number of its pods.
    assert_eq!(used(&mut top), ["5/5", "2/5", "1/5"]);
    top.send(Message::Rule(PodRule::Anywhere));
    assert_eq!(used(&mut top), ["5/5", "1/5", "1/5"]);
}

#[test]
fn a_block_of_two_nodes_has_a_row_for_each() {
    let mut top = Fixture::new(View::Blocks, 100, 24);
    top.send(Message::Nodes(Change::Listed(vec![
        node("node-0", "10.244.0.0/29", 5, true),
        node("node-1", "10.244.0.0/29", 5, true),
    ])));
    let foreign = NodeBlock::parse("10.244.0.0/29", BlockState::Foreign, Some("node-1")).unwrap();
    top.send(Message::Blocks(Ok(Some(BlockRecords {
        blocks: vec![foreign],
        held: Vec::new(),
    }))));
    let screen = top.screen();
    let rows = screen
        .lines()
        .filter(|line| line.starts_with("10.244.0.0/29"));
    let mut rows: Vec<_> = rows
        .map(|line| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>())
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, [["assigned", "node-0"], ["foreign", "node-1"]]);
}
