//! The outcome of a commit whose answer was lost.

use crate::{
    history::History,
    store::{Commit, CommitResult, KeyEvent, Revision, Txn, Write},
};

/// The result of the transaction, if a commit after `since` is it: it has the same effect on the
/// same keys. Objects differ in their UIDs or times, so this is not the commit of another writer;
/// where it is, it had the same outcome.
pub(super) fn find(history: &History, since: Revision, txn: &Txn) -> Option<CommitResult> {
    let mut commits = history.commits_after(since);
    commits.find_map(|commit| is_of(commit, txn))
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
        let found = find(&history, since, &creation("ours")).expect("it was applied");
        assert_eq!(found.revision.number(), 3);
        assert_eq!(found.previous[0], None);
        let deleted = found.previous[1].as_ref().expect("/b was there");
        assert_eq!(deleted.value, Bytes::from("x"));
    }

    #[test]
    fn takes_no_commit_of_another_for_the_own() {
        let since = crate::FIRST_REVISION;
        let theirs = history([creation("theirs")]);
        assert_eq!(find(&theirs, since, &creation("ours")), None);
        let more = history([creation("ours").put(key("/c"), "x")]);
        assert_eq!(find(&more, since, &creation("ours")), None);
        let earlier = history([creation("ours")]);
        assert_eq!(find(&earlier, earlier.current(), &creation("ours")), None);
    }
}
