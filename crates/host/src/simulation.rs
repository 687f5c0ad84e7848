//! For tests: a wall clock that follows tokio's, numbers from a seed, and a network in memory, for
//! all that runs on one thread.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};

use jiff::Timestamp;
use rand::{Rng, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::DuplexStream,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};

use crate::clock::Instant;

/// The bytes that a connection holds before its writer waits.
const PIPE_BYTES: usize = 64 * 1024;

thread_local! {
    static HOST: RefCell<Option<SimulatedHost>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct SimulatedHost {
    begun: Instant,
    wall: Timestamp,
    random: StdRng,
    listeners: BTreeMap<String, UnboundedSender<DuplexStream>>,
}

/// A simulation on the thread that began it, until this is dropped.
#[derive(Debug)]
pub struct Simulation(());

/// Begins a simulation. The wall clock is at `wall` and goes with tokio's clock, which the caller
/// pauses; every random value comes from `seed`; connections are pipes.
#[must_use]
pub fn begin(seed: u64, wall: Timestamp) -> Simulation {
    HOST.set(Some(SimulatedHost {
        begun: Instant::now(),
        wall,
        random: StdRng::seed_from_u64(seed),
        listeners: BTreeMap::new(),
    }));
    Simulation(())
}

impl Drop for Simulation {
    fn drop(&mut self) {
        HOST.set(None);
    }
}

pub(crate) fn is_on() -> bool {
    HOST.with_borrow(Option::is_some)
}

pub(crate) fn timestamp() -> Option<Timestamp> {
    HOST.with_borrow(|host| {
        let host = host.as_ref()?;
        Some(host.wall + host.begun.elapsed())
    })
}

pub(crate) fn with_random<T>(draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
    with(|host| draw(&mut host.random))
}

/// The connections that a listener accepts.
#[derive(Debug)]
pub(crate) struct Accepted(Mutex<UnboundedReceiver<DuplexStream>>);

impl Accepted {
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<DuplexStream> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match queue.poll_recv(context) {
            Poll::Ready(Some(pipe)) => Poll::Ready(pipe),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

pub(crate) fn listen(address: &str) -> io::Result<Accepted> {
    with(|host| {
        let taken = host.listeners.get(address);
        if taken.is_some_and(|queue| !queue.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (queue, accepted) = mpsc::unbounded_channel();
        host.listeners.insert(address.to_owned(), queue);
        Ok(Accepted(Mutex::new(accepted)))
    })
}

pub(crate) fn connect(address: &str) -> io::Result<DuplexStream> {
    with(|host| {
        let queue = host.listeners.get(address);
        let queue = queue.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let sent = queue.send(far);
        sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    })
}

fn with<T>(act: impl FnOnce(&mut SimulatedHost) -> T) -> T {
    HOST.with_borrow_mut(|host| act(host.as_mut().expect("a simulation is on")))
}
