//! The outcome of a commit whose answer was lost.

use crate::{
    StoreError,
    history::History,
    store::{Commit, CommitResult, KeyEvent, Revision, Txn, Write},
};

/// The result of the transaction, if a commit after `since` is it: it has the same effect on the
/// same keys. Objects differ in their UIDs or times, so this is not the commit of another writer;
/// where it is, it had the same outcome.
///
/// # Errors
///
/// [`StoreError::UnknownOutcome`] if not all commits since are retained.
pub(super) fn find(
    history: &History,
    since: Revision,
    txn: &Txn,
) -> Result<Option<CommitResult>, StoreError> {
    let found = history
        .commits_after(since)
        .find_map(|commit| is_of(commit, txn));
    match found {
        None if history.oldest() > since => Err(StoreError::UnknownOutcome {
            message: "its time is compacted".to_owned(),
        }),
        found => Ok(found),
    }
}

fn is_of(commit: &Commit, txn: &Txn) -> Option<CommitResult> {
    let mut events = commit.events.iter().peekable();
    let mut previous = Vec::with_capacity(txn.writes.len());
    for write in &txn.writes {
        let event = events.next_if(|event| event.key() == write.key());
        previous.push(match (write, event) {
            (Write::Put { value, .. }, Some(KeyEvent::Put { item, previous })) => {
                (item.value == *value).then_some(())?;
                previous.clone()
            }
            (Write::Delete { .. }, Some(KeyEvent::Delete { previous })) => Some(previous.clone()),
            // There was nothing to delete.
            (Write::Delete { .. }, None) => None,
            _ => return None,
        });
    }
    events.next().is_none().then_some(CommitResult {
        revision: commit.revision,
        previous,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        history::StagedCommits,
        store::{Guard, Key},
    };

    fn key(name: &str) -> Key {
        Key::try_from(name).expect("a key")
    }

    fn history(txns: impl IntoIterator<Item = Txn>) -> History {
        let mut history = History::new(uuid::Uuid::nil());
        for txn in txns {
            let mut staged = StagedCommits::on(&history);
            staged.commit(txn).expect("it is applied");
            for commit in staged.into_commits() {
                history.apply(commit);
            }
        }
        history
    }

    fn creation(value: &'static str) -> Txn {
        Txn::new()
            .guard(Guard::Absent(key("/a")))
            .put(key("/a"), value)
            .delete(key("/b"))
    }

    #[test]
    fn finds_the_own_commit_also_below_a_later_one() {
        let history = history([
            Txn::new().put(key("/b"), "x"),
            creation("ours"),
            Txn::new().put(key("/a"), "theirs"),
        ]);
        let since = Revision::new(2).expect("a revision");
        let found = find(&history, since, &creation("ours")).expect("all is retained");
        let found = found.expect("it was applied");
        assert_eq!(found.revision.number(), 3);
        assert_eq!(found.previous[0], None);
        let deleted = found.previous[1].as_ref().expect("/b was there");
        assert_eq!(deleted.value, Bytes::from("x"));
    }

    #[test]
    fn takes_no_commit_of_another_for_the_own() {
        let since = crate::FIRST_REVISION;
        let theirs = history([creation("theirs")]);
        let found = |history, since| find(history, since, &creation("ours"));
        assert!(matches!(found(&theirs, since), Ok(None)));
        let more = history([creation("ours").put(key("/c"), "x")]);
        assert!(matches!(found(&more, since), Ok(None)));
        let earlier = history([creation("ours")]);
        assert!(matches!(found(&earlier, earlier.current()), Ok(None)));
    }

    #[test]
    fn does_not_know_what_is_compacted() {
        let mut history = history([creation("ours"), Txn::new().put(key("/a"), "theirs")]);
        history.compact(history.current());
        let found = find(&history, crate::FIRST_REVISION, &creation("ours"));
        assert!(matches!(found, Err(StoreError::UnknownOutcome { .. })));
    }
}
