//! The rules for the calls of a link at the moment.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::Code;

use super::{CallFault, Cut, RuleEffect, method::Method};

/// The rules of one link. Calls that are under way see changes of cuts and delays at once.
#[derive(Debug, Default)]
pub(super) struct LinkRules {
    state: watch::Sender<LinkState>,
    seen: Mutex<BTreeMap<String, u64>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LinkState {
    cuts: Vec<(u64, Cut)>,
    rules: Vec<LinkRule>,
    last_id: u64,
}

#[derive(Clone, Debug)]
struct LinkRule {
    id: u64,
    fault: CallFault,
    /// The number of calls to which it still applies; `None` for all.
    left: Option<Arc<AtomicU32>>,
}

/// The effects of the rules on one call.
#[derive(Clone, Debug, Default)]
pub(super) struct CallEffects {
    method: Method,
    /// The number of earlier calls of the method.
    number: u64,
    /// The rules with a limited number of calls that count this one.
    ids: Vec<u64>,
    pub(super) ending: Option<CallEnding>,
}

/// The end of a call that does not get the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnding {
    /// The call fails before the server sees it.
    Before(Code),
    /// The call fails after the server has carried it out.
    After(Code),
}

impl LinkState {
    /// Returns the cut of the link. `Silent` takes precedence over `Refused`.
    pub(super) fn cut(&self) -> Option<Cut> {
        let has = |cut| self.cuts.iter().any(|(_, each)| *each == cut);
        [Cut::Silent, Cut::Refused]
            .into_iter()
            .find(|cut| has(*cut))
    }

    fn add(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn delay(&self, call: &CallEffects) -> Option<Duration> {
        let of_call = self.rules.iter().filter(|rule| match rule.fault.times {
            Some(_) => call.ids.contains(&rule.id),
            None => call.method.is(rule.fault.method.as_deref()),
        });
        let delays = of_call.filter_map(|rule| match rule.fault.effect {
            RuleEffect::Delay(delay) => Some(delay.of(call.number)),
            RuleEffect::Fail(_) | RuleEffect::Lose(_) => None,
        });
        delays.reduce(Duration::saturating_add)
    }
}

impl LinkRules {
    pub(super) fn watch(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    pub(super) fn cut(&self, cut: Cut) -> u64 {
        self.change(|state| {
            let id = state.add();
            state.cuts.push((id, cut));
            id
        })
    }

    pub(super) fn mend(&self, id: u64) {
        self.change(|state| state.cuts.retain(|(other, _)| *other != id));
    }

    pub(super) fn add(&self, fault: CallFault, left: Option<Arc<AtomicU32>>) -> u64 {
        self.change(|state| {
            let id = state.add();
            state.rules.push(LinkRule { id, fault, left });
            id
        })
    }

    pub(super) fn remove(&self, id: u64) {
        self.change(|state| state.rules.retain(|rule| rule.id != id));
    }

    pub(super) fn seen(&self, method: &str) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let of_method = seen
            .iter()
            .filter(|(path, _)| Method::of(path).is(Some(method)));
        of_method.map(|(_, calls)| calls).sum()
    }

    /// Counts a call that begins, and returns the effects of the rules on it.
    pub(super) fn take(&self, method: &Method) -> CallEffects {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen_of_it = seen.entry(method.path().into()).or_default();
        let number = *seen_of_it;
        *seen_of_it += 1;
        drop(seen);
        let mut taken = CallEffects {
            method: method.clone(),
            number,
            ..CallEffects::default()
        };
        for rule in &self.state.borrow().rules {
            if !method.is(rule.fault.method.as_deref()) {
                continue;
            }
            // A call that fails already is not counted by other rules that fail calls.
            if taken.ending.is_some() && !matches!(rule.fault.effect, RuleEffect::Delay(_)) {
                continue;
            }
            if let Some(left) = &rule.left {
                let one_less = |left: u32| left.checked_sub(1);
                if left.fetch_update(Relaxed, Relaxed, one_less).is_err() {
                    continue;
                }
                taken.ids.push(rule.id);
            }
            match rule.fault.effect {
                RuleEffect::Delay(_) => {}
                RuleEffect::Fail(code) => taken.ending = Some(CallEnding::Before(code)),
                RuleEffect::Lose(code) => taken.ending = Some(CallEnding::After(code)),
            }
        }
        taken
    }

    /// Delays a part of the call that came at `since`, or less if the delay is healed meanwhile.
    /// Then waits as [`LinkRules::pass`] does.
    pub(super) async fn hold(&self, call: &CallEffects, since: Instant) {
        let mut state = self.watch();
        loop {
            let delay = state.borrow_and_update().delay(call);
            let until = match delay {
                Some(delay) if since + delay > Instant::now() => since + delay,
                _ => return self.pass().await,
            };
            // Dropping either wait loses nothing.
            tokio::select! {
                () = sleep_until(until) => {}
                changed = state.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Waits while the link is cut, so that nothing passes from the moment of the cut.
    pub(super) async fn pass(&self) {
        // An error means that the link is gone, with all its connections.
        _ = self.watch().wait_for(|state| state.cut().is_none()).await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut LinkState) -> T) -> T {
        let mut change = Some(change);
        let mut changed = None;
        self.state.send_modify(|state| {
            changed = change.take().map(|change| change(state));
        });
        changed.expect("send_modify calls its argument once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delays of four successive calls.
    fn delays(seed: u64) -> [Duration; 4] {
        let rules = LinkRules::default();
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(3));
        rules.add(
            CallFault::delay_between(least..=most, seed).of("BindPod"),
            None,
        );
        let method = Method::of("/podplane.core.v1.PodService/BindPod");
        [(); 4].map(|()| {
            let call = rules.take(&method);
            let delay = rules.watch().borrow().delay(&call).unwrap();
            assert!((least..=most).contains(&delay), "{delay:?}");
            delay
        })
    }

    #[test]
    fn delays_differ_per_call_and_follow_from_the_seed() {
        let first = delays(7);
        assert_eq!(first, delays(7));
        assert_ne!(first, delays(8));
        assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "{first:?}");
    }
}
