//! Whole screens, compared with files. `PODPLANE_UPDATE_GOLDEN=1` writes them.

use std::path::Path;

use podplane_host::fs;

use super::*;

fn assert_golden(name: &str, screen: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/tests/golden")
        .join(format!("{name}.txt"));
    let screen = format!("{}\n", screen.trim_end());
    if std::env::var_os("PODPLANE_UPDATE_GOLDEN").is_some() {
        fs::write(&file, screen).unwrap();
        return;
    }
    let want = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(screen, want, "{}", file.display());
}

#[test]
fn every_view_has_room_on_80_by_24() {
    for view in [
        View::Nodes,
        View::Pods,
        View::Waiting,
        View::Blocks,
        View::Events,
    ] {
        let mut top = Fixture::with_cluster(view, 80, 24);
        top.send(Message::Blocks(Ok(None)));
        top.send(Message::Events(Change::Listed(vec![
            event("a", "Scheduled", "web-0"),
            event("b", "FailedScheduling", "late-0"),
        ])));
        let name = format!("{}-80x24", view.as_str());
        assert_golden(&name, &top.screen());
    }
}

#[test]
fn a_wide_terminal_shows_the_steps_of_pods() {
    let mut top = Fixture::with_cluster(View::Pods, 140, 16);
    assert_golden("pods-140x16", &top.screen());
}

#[test]
fn help_has_room() {
    let mut top = Fixture::with_cluster(View::Nodes, 80, 45);
    top.keys("?");
    assert_golden("help-80x45", &top.screen());
}
