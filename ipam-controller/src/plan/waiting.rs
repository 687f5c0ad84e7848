//! The queue of nodes that wait for a block.

use std::collections::BTreeMap;

/// Nodes for which no block was left. They are woken in the order in which they began to wait, and
/// only if a block was freed since their last refusal: however many wait, none polls for a block.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    by_name: BTreeMap<String, WaitingNode>,
    order: BTreeMap<u64, String>,
    begun: u64,
    freed: u64,
    woken: u64,
}

#[derive(Debug)]
struct WaitingNode {
    order: u64,
    /// The value of `freed` at the last refusal.
    refused_at: u64,
    woken: bool,
}

impl WaitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The waiting nodes, the longest wait first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.order.values().map(String::as_str)
    }

    /// Returns whether another attempt would fail.
    pub(super) fn sleeps(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|entry| !entry.woken)
    }

    /// Records that no block was left for the node. Returns whether it did not wait before.
    pub(super) fn refuse(&mut self, name: &str) -> bool {
        if let Some(entry) = self.by_name.get_mut(name) {
            self.woken -= u64::from(entry.woken);
            entry.woken = false;
            entry.refused_at = self.freed;
            return false;
        }
        let entry = WaitingNode {
            order: self.begun,
            refused_at: self.freed,
            woken: false,
        };
        self.order.insert(self.begun, name.to_owned());
        self.by_name.insert(name.to_owned(), entry);
        self.begun += 1;
        true
    }

    /// Removes a node that has a block, or needs none any more.
    pub(super) fn remove(&mut self, name: &str) {
        if let Some(entry) = self.by_name.remove(name) {
            self.order.remove(&entry.order);
            self.woken -= u64::from(entry.woken);
        }
    }

    /// Records that a block was freed.
    pub(super) fn freed(&mut self) {
        self.freed += 1;
    }

    /// Wakes nodes that should try again, no more of them than blocks are `free`, and returns their
    /// names.
    pub(super) fn wake(&mut self, free: u64) -> Vec<String> {
        let mut names = Vec::new();
        if self.woken >= free {
            return names;
        }
        for name in self.order.values() {
            let Some(entry) = self.by_name.get_mut(name) else {
                continue;
            };
            if !entry.woken && entry.refused_at < self.freed {
                entry.woken = true;
                self.woken += 1;
                names.push(name.clone());
                if self.woken >= free {
                    break;
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_one_node_per_free_block_and_the_longest_waiting_first() {
        let mut waiting = WaitQueue::default();
        for name in ["c", "a", "b"] {
            assert!(waiting.refuse(name));
        }
        assert_eq!(waiting.wake(5), [""; 0], "nothing was freed");
        waiting.freed();
        assert_eq!(waiting.wake(0), [""; 0]);
        assert_eq!(waiting.wake(1), ["c"]);
        assert_eq!(waiting.wake(1), [""; 0], "c is on its way to it");
        assert!(!waiting.sleeps("c") && waiting.sleeps("a"));
        assert!(!waiting.refuse("c"), "somebody was faster; c waits on");
        assert_eq!(
            waiting.wake(1),
            ["a"],
            "it was freed before a, but after c was refused last"
        );
        waiting.remove("a");
        assert_eq!(waiting.wake(1), ["b"]);
        waiting.freed();
        assert_eq!(waiting.wake(2), ["c"]);
    }
}
