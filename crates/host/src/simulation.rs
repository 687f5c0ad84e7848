//! For tests: a wall clock that follows tokio's clock, numbers from a seed, and a network in memory,
//! for all that runs on one thread.

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
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct World {
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
    WORLD.set(Some(World {
        begun: Instant::now(),
        wall,
        random: StdRng::seed_from_u64(seed),
        listeners: BTreeMap::new(),
    }));
    Simulation(())
}

impl Drop for Simulation {
    fn drop(&mut self) {
        WORLD.set(None);
    }
}

pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

pub(crate) fn timestamp() -> Option<Timestamp> {
    WORLD.with_borrow(|world| {
        let world = world.as_ref()?;
        Some(world.wall + world.begun.elapsed())
    })
}

pub(crate) fn with_random<T>(draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
    with(|world| draw(&mut world.random))
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
    with(|world| {
        let taken = world.listeners.get(address);
        if taken.is_some_and(|queue| !queue.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (queue, accepted) = mpsc::unbounded_channel();
        world.listeners.insert(address.to_owned(), queue);
        Ok(Accepted(Mutex::new(accepted)))
    })
}

pub(crate) fn connect(address: &str) -> io::Result<DuplexStream> {
    with(|world| {
        let queue = world.listeners.get(address);
        let queue = queue.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let sent = queue.send(far);
        sent.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(near)
    })
}

fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| act(world.as_mut().expect("a simulation is on")))
}
