//! The outcome of a commit whose answer was lost.

use crate::{
    StoreError,
    history::History,
    store::{Commit, CommitResult, KeyEvent, Revision, Txn, Write},
};

/// The results of the commits after `since` that may be the transaction: each has the same effect
/// on the same keys. A written object differs from all others in its UID or times, so there is no
/// more than one; what is deleted may have been deleted by another writer, and later again.
pub(super) fn candidates(history: &History, since: Revision, txn: &Txn) -> Vec<CommitResult> {
    let commits = history.commits_after(since);
    commits.filter_map(|commit| is_of(commit, txn)).collect()
}

/// Checks that all commits after `since` are retained: if none of the candidates is the transaction,
/// it was not applied.
///
/// # Errors
///
/// [`StoreError::UnknownOutcome`].
pub(super) fn retained(history: &History, since: Revision) -> Result<(), StoreError> {
    match history.oldest() > since {
        true => Err(compacted()),
        false => Ok(()),
    }
}

pub(super) fn compacted() -> StoreError {
    StoreError::UnknownOutcome {
        message: "its time is compacted".to_owned(),
    }
}

fn is_of(commit: &Commit, txn: &Txn) -> Option<CommitResult> {
    let mut events = commit.events.iter().peekable();
    let mut previous = Vec::with_capacity(txn.writes.len());
    for write in &txn.writes {
        let event = events.next_if(|event| event.key() == write.key());
        previous.push(match (write, event) {
            (Write::Put { value, .. }, Some(KeyEvent::Put { item, previous })) => {
                (*item.value() == **value).then_some(())?;
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
        retained(&history, since).expect("all is retained");
        let found = candidates(&history, since, &creation("ours"));
        let [found] = found.try_into().expect("it was applied once");
        assert_eq!(found.revision.number(), 3);
        assert_eq!(found.previous[0], None);
        let deleted = found.previous[1].as_ref().expect("/b was there");
        assert_eq!(&*deleted.value(), b"x");
    }

    #[test]
    fn takes_no_commit_of_another_for_the_own() {
        let since = crate::FIRST_REVISION;
        let theirs = history([creation("theirs")]);
        let found = |history, since| {
            let found = candidates(history, since, &creation("ours"));
            retained(history, since).map(|()| found.len())
        };
        assert!(matches!(found(&theirs, since), Ok(0)));
        let more = history([creation("ours").put(key("/c"), "x")]);
        assert!(matches!(found(&more, since), Ok(0)));
        let earlier = history([creation("ours")]);
        assert!(matches!(found(&earlier, earlier.current()), Ok(0)));
    }

    #[test]
    fn does_not_know_what_is_compacted() {
        let mut history = history([creation("ours"), Txn::new().put(key("/a"), "theirs")]);
        history.compact(history.current());
        let found = candidates(&history, crate::FIRST_REVISION, &creation("ours"));
        assert_eq!(found, []);
        let found = retained(&history, crate::FIRST_REVISION);
        assert!(matches!(found, Err(StoreError::UnknownOutcome { .. })));
    }
}
