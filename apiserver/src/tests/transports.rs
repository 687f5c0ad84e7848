//! The tests of this crate pass with a client of the REST API as with one of gRPC.

use std::{env, process::Command};

use super::*;

/// Set to `rest` for the clients of [`TestServer`]s to use the REST API.
const TRANSPORT: &str = "PODPLANE_TEST_TRANSPORT";

/// The client of a server, of the transport that the environment names.
pub(super) fn client(address: &str) -> Client {
    match env::var(TRANSPORT).as_deref() {
        Ok("rest") => {
            let url = format!("http://{address}").parse().unwrap();
            Client::over_rest(kube::Config::new(url)).unwrap()
        }
        _ => Client::connect(&address.parse::<Endpoint>().unwrap()).unwrap(),
    }
}

/// The modules whose tests are run.
const MODULES: [&str; 14] = [
    "cluster_cidrs",
    "deletes",
    "evictions",
    "fences",
    "leader",
    "lifecycle",
    "lists",
    "patches",
    "placements",
    "pods_and_nodes",
    "priorities",
    "reads",
    "watches",
    "writes",
];

/// The tests that are for gRPC alone, and why.
const EXCEPTIONS: [(&str, &str); 12] = [
    (
        "evictions::grpc_has_the_same_evictions",
        "REST answers without the pod",
    ),
    ("fences::a_fence_holds_over_a_restart", BLOCKS),
    (
        "fences::a_released_or_deleted_lease_invalidates_its_fence",
        BLOCKS,
    ),
    ("fences::only_the_newer_of_two_leaders_assigns", BLOCKS),
    (
        "leader::a_simulated_takeover_follows_the_seed",
        "kube-rs knows no simulated time",
    ),
    (
        "lists::a_list_respects_the_requested_revision",
        "by REST, a time-out counts as a missing answer",
    ),
    (
        "lists::options_that_contradict_each_other_are_refused",
        "kube-rs refuses them itself",
    ),
    (
        "pods_and_nodes::the_blocks_of_a_node_are_assigned_once",
        "a patch is not repeatable",
    ),
    (
        "watches::a_watch_begins_with_existing_objects_and_a_bookmark",
        BOOKMARKS,
    ),
    (
        "watches::a_watch_from_a_revision_gets_a_bookmark_when_it_has_caught_up",
        BOOKMARKS,
    ),
    (
        "watches::a_watch_refuses_invalid_and_future_revisions",
        FIRST_EVENT,
    ),
    (
        "writes::an_update_requires_the_revision_that_it_is_based_on",
        "REST names a field manager by the user agent",
    ),
];
const BLOCKS: &str = "the records of blocks are NodeBlocks, by REST";
const FIRST_EVENT: &str = "REST reports it as the first event";
const BOOKMARKS: &str = "REST sends bookmarks at intervals";

#[test]
fn the_suite_passes_over_rest() {
    let mut suite = Command::new(env::current_exe().unwrap());
    suite.env(TRANSPORT, "rest");
    suite.args(MODULES.map(|module| format!("tests::{module}::")));
    for (test, _) in EXCEPTIONS {
        suite.args(["--skip", test]);
    }
    let ended = suite.output().unwrap();
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{output}");
    for module in MODULES {
        assert!(
            output.contains(&format!("test tests::{module}::")),
            "no test of {module}"
        );
    }
}
