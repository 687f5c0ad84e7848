//! The decisions of one priority level: which request is executed next. Pure: time enters only as
//! the time that a request took.
//!
//! A level has seats, and a request occupies one or more of them while it is executed. Each flow,
//! which is a user, has a queue of its own, and the flow that has been served least is next. A
//! flow that was idle begins with the service of the least served one, so that it neither saves up
//! turns nor has to catch up.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// The bounds of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelLimits {
    /// The most seats that are occupied at once; at least 1.
    pub(crate) seats: u32,
    /// The most of them that one flow occupies; at least 1.
    pub(crate) seats_of_flow: u32,
    /// The most requests of a flow that wait.
    pub(crate) queue_of_flow: usize,
    /// The most requests that wait.
    pub(crate) queue: usize,
}

/// The service that a request is expected to take, for each seat, in microseconds. It is corrected
/// once the request has ended.
const EXPECTED: u64 = 5_000;

/// A waiting request, by the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The reception of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is executed at once, on this number of seats.
    Executed(u32),
    /// It waits.
    Waits(Ticket),
    /// Too many wait.
    Full,
}

/// A request that is executed now, after it has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dispatched {
    pub(crate) ticket: Ticket,
    pub(crate) seats: u32,
}

/// A priority level, with flows that are told apart by `F`.
#[derive(Debug)]
pub(crate) struct PriorityLevel<F> {
    limits: LevelLimits,
    occupied: u32,
    waiting: usize,
    arrived: u64,
    /// Those that execute or wait.
    flows: BTreeMap<F, FlowState>,
}

#[derive(Debug, Default)]
struct FlowState {
    occupied: u32,
    executing: u32,
    /// The service that it had, in microseconds of seats.
    served: u64,
    queue: VecDeque<WaitingRequest>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    ticket: Ticket,
    seats: u32,
}

impl FlowState {
    fn is_idle(&self) -> bool {
        self.executing == 0 && self.queue.is_empty()
    }

    fn occupies(&mut self, seats: u32) {
        self.occupied += seats;
        self.executing += 1;
        self.served = self.served.saturating_add(EXPECTED * u64::from(seats));
    }
}

impl<F: Clone + Ord> PriorityLevel<F> {
    pub(crate) fn new(limits: LevelLimits) -> Self {
        Self {
            limits,
            occupied: 0,
            waiting: 0,
            arrived: 0,
            flows: BTreeMap::new(),
        }
    }

    /// The occupied seats.
    #[cfg(test)]
    pub(crate) fn occupied(&self) -> u32 {
        self.occupied
    }

    /// The number of requests that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Receives a request of `flow` that wants this number of seats. It gets at most those that a
    /// flow may occupy.
    pub(crate) fn arrive(&mut self, flow: &F, seats: u32) -> Arrival {
        let seats = seats.clamp(1, self.limits.seats_of_flow);
        self.activate(flow);
        let Some(state) = self.flows.get_mut(flow) else {
            return Arrival::Full;
        };
        if self.waiting == 0
            && self.occupied + seats <= self.limits.seats
            && state.occupied + seats <= self.limits.seats_of_flow
        {
            self.occupied += seats;
            state.occupies(seats);
            return Arrival::Executed(seats);
        }
        let ticket = Ticket(self.arrived);
        self.arrived += 1;
        state.queue.push_back(WaitingRequest { ticket, seats });
        self.waiting += 1;
        // Others may wait only for seats of their own flow.
        if self.dispatch().iter().any(|one| one.ticket == ticket) {
            return Arrival::Executed(seats);
        }
        let too_many = self.waiting > self.limits.queue
            || self
                .flows
                .get(flow)
                .is_some_and(|state| state.queue.len() > self.limits.queue_of_flow);
        if too_many {
            self.leave(flow, ticket);
            return Arrival::Full;
        }
        Arrival::Waits(ticket)
    }

    /// Ends a request of `flow` that was executed on this number of seats for `took`. Returns the
    /// requests that are executed now.
    pub(crate) fn finish(&mut self, flow: &F, seats: u32, took: Duration) -> Vec<Dispatched> {
        self.occupied = self.occupied.saturating_sub(seats);
        if let Some(state) = self.flows.get_mut(flow) {
            state.occupied = state.occupied.saturating_sub(seats);
            state.executing = state.executing.saturating_sub(1);
            let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let (expected, actual) = (
                EXPECTED * u64::from(seats),
                took.saturating_mul(seats.into()),
            );
            state.served = state.served.saturating_sub(expected).saturating_add(actual);
        }
        self.forget_idle(flow);
        self.dispatch()
    }

    /// Takes back a request of `flow` that waits. Returns the requests that are executed now.
    pub(crate) fn give_up(&mut self, flow: &F, ticket: Ticket) -> Vec<Dispatched> {
        self.leave(flow, ticket);
        self.dispatch()
    }

    fn leave(&mut self, flow: &F, ticket: Ticket) {
        if let Some(state) = self.flows.get_mut(flow) {
            let before = state.queue.len();
            state.queue.retain(|one| one.ticket != ticket);
            self.waiting -= before - state.queue.len();
        }
        self.forget_idle(flow);
    }

    /// Adds a flow that was idle.
    fn activate(&mut self, flow: &F) {
        if self.flows.contains_key(flow) {
            return;
        }
        let least = self.flows.values().map(|state| state.served).min();
        let state = FlowState {
            served: least.unwrap_or_default(),
            ..FlowState::default()
        };
        self.flows.insert(flow.clone(), state);
    }

    fn forget_idle(&mut self, flow: &F) {
        if self.flows.get(flow).is_some_and(FlowState::is_idle) {
            self.flows.remove(flow);
        }
    }

    /// Executes waiting requests as long as there are seats. The next one is never passed over for
    /// one that needs fewer seats, or a wide request would wait for ever.
    fn dispatch(&mut self) -> Vec<Dispatched> {
        let mut dispatched = Vec::new();
        while self.waiting > 0 {
            let most = self.limits.seats_of_flow;
            let next = self
                .flows
                .values_mut()
                .filter_map(|state| {
                    let first = *state.queue.front()?;
                    (state.occupied + first.seats <= most).then_some((state, first))
                })
                .min_by_key(|(state, first)| (state.served, state.occupied, first.ticket));
            let Some((state, WaitingRequest { ticket, seats })) = next else {
                break;
            };
            if self.occupied + seats > self.limits.seats {
                break;
            }
            state.queue.pop_front();
            state.occupies(seats);
            self.waiting -= 1;
            self.occupied += seats;
            dispatched.push(Dispatched { ticket, seats });
        }
        dispatched
    }
}

#[cfg(test)]
mod tests;
