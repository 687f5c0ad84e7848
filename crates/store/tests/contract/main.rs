//! The contract of `Store`, kept by every engine. A new engine gets a [`Fixture`] and a line in `contract!`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model;
mod suite;

use podplane_store::{MemStore, SledStore, Store};
use tempfile::TempDir;

/// An engine under test.
trait Fixture: Sized + Send + Sync + 'static {
    type Store: Store;

    /// With an empty store.
    fn new() -> Self;

    fn store(&self) -> &Self::Store;

    /// Between two steps of a test, where an engine may do what must not matter.
    fn pause(self) -> Self {
        self
    }
}

struct Memory(MemStore);

impl Fixture for Memory {
    type Store = MemStore;

    fn new() -> Self {
        Self(MemStore::new())
    }

    fn store(&self) -> &MemStore {
        &self.0
    }
}

struct Sled {
    store: SledStore,
    dir: TempDir,
}

impl Fixture for Sled {
    type Store = SledStore;

    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
        }
    }

    fn store(&self) -> &SledStore {
        &self.store
    }
}

/// Closes and opens again at each pause.
struct SledReopened(Sled);

impl Fixture for SledReopened {
    type Store = SledStore;

    fn new() -> Self {
        Self(Sled::new())
    }

    fn store(&self) -> &SledStore {
        self.0.store()
    }

    fn pause(self) -> Self {
        let Sled { store, dir } = self.0;
        drop(store);
        Self(Sled {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
        })
    }
}

macro_rules! contract {
    ($($engine:ident: $fixture:ty;)*) => {
        $(contract!(@engine $engine: $fixture;
            a_new_store_is_empty_and_keeps_its_id,
            every_commit_takes_the_next_revision,
            an_item_knows_when_it_was_created_and_modified,
            a_commit_returns_what_was_there_before,
            a_commit_that_changes_nothing_takes_no_revision,
            each_kind_of_guard_holds_or_conflicts,
            a_commit_is_applied_whole_or_not_at_all,
            what_is_too_large_is_refused_by_name,
            large_values_are_kept_whole,
            concurrent_compare_and_set_loses_no_update,
            of_concurrent_creates_one_wins,
            a_list_is_continued_at_its_revision_while_writes_go_on,
            a_list_respects_its_prefix_and_order,
            the_future_is_refused,
            a_watch_yields_what_is_written_after_it_began,
            a_watch_from_the_past_catches_up,
            a_watch_shows_only_its_prefix_but_whole_commits,
            watchers_of_concurrent_writers_see_every_commit_once_in_order,
            the_position_of_a_watch_advances_past_what_it_does_not_show,
            a_stalled_watcher_holds_nobody_back_and_ends_when_overtaken,
            a_dropped_wait_loses_no_commit,
            a_compaction_keeps_its_revision_and_ends_what_is_before,
            a_compaction_frees_memory,
            history_can_be_kept_within_a_number_of_bytes,
            a_commit_that_lost_a_part_to_compaction_loses_no_other,
            a_watch_ends_when_the_store_does,
        );)*
    };
    (@engine $engine:ident: $fixture:ty; $($case:ident,)*) => {
        mod $engine {
            use super::*;

            $(#[tokio::test]
            async fn $case() {
                suite::within_deadline(suite::$case::<$fixture>()).await;
            })*

            #[test]
            fn behaves_like_the_model() {
                model::check::<$fixture>();
            }
        }
    };
}

contract! {
    memory: Memory;
    sled: Sled;
    sled_reopened: SledReopened;
}
