//! Sequential calls by several concurrent callers.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use bytes::Bytes;
use futures::future::try_join_all;

use crate::call::Connection;

/// The target of calls, with their messages. Each call gets a unique number.
pub(crate) struct LoadTarget {
    connections: Vec<Connection>,
    path: String,
    message: Box<dyn Fn(u32) -> Bytes>,
    next: AtomicU32,
}

impl LoadTarget {
    pub(crate) fn new(
        connections: Vec<Connection>,
        path: impl Into<String>,
        message: impl Fn(u32) -> Bytes + 'static,
    ) -> Self {
        Self {
            connections,
            path: path.into(),
            message: Box::new(message),
            next: AtomicU32::new(0),
        }
    }

    /// Makes calls for the given time; returns the calls per second. The first tenth of the time is
    /// not counted.
    pub(crate) async fn rate(&self, callers: usize, lasting: Duration) -> Result<f64> {
        let begin = Instant::now() + lasting / 10;
        let end = begin + lasting;
        let caller = |caller: usize| async move {
            let mut connection = self.connection(caller);
            let mut counted = 0_u32;
            loop {
                self.call(&mut connection).await?;
                let now = Instant::now();
                if now >= end {
                    return anyhow::Ok(counted);
                }
                counted += u32::from(now >= begin);
            }
        };
        let counted = try_join_all((0..callers).map(caller)).await?;
        let counted: u32 = counted.iter().sum();
        Ok(f64::from(counted) / lasting.as_secs_f64())
    }

    /// The rates of several targets, measured by turns: who begins changes from round to round.
    pub(crate) async fn rates<const N: usize>(
        targets: &[Self; N],
        callers: usize,
        lasting: Duration,
        rounds: usize,
    ) -> Result<[Vec<f64>; N]> {
        let mut rates = [const { Vec::new() }; N];
        for round in 0..rounds {
            for turn in 0..N {
                let who = (round + turn) % N;
                rates[who].push(targets[who].rate(callers, lasting).await?);
            }
        }
        Ok(rates)
    }

    /// Makes this many calls, and returns the seconds that they took.
    pub(crate) async fn times(&self, callers: usize, calls: u32) -> Result<f64> {
        let begin = Instant::now();
        let last = self.next.load(Ordering::Relaxed).saturating_add(calls);
        let caller = |caller: usize| async move {
            let mut connection = self.connection(caller);
            while self.next.load(Ordering::Relaxed) < last {
                self.call(&mut connection).await?;
            }
            anyhow::Ok(())
        };
        try_join_all((0..callers).map(caller)).await?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Makes exactly this many calls, by at most this many callers at once.
    pub(crate) async fn exactly(&self, callers: usize, calls: u32) -> Result<()> {
        let end = self.next.load(Ordering::Relaxed).saturating_add(calls);
        let caller = |caller: usize| async move {
            let mut connection = self.connection(caller);
            loop {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return anyhow::Ok(());
                }
                connection.unary(&self.path, (self.message)(number)).await?;
            }
        };
        try_join_all((0..callers).map(caller)).await?;
        Ok(())
    }

    /// Leaves out the numbers below `number`, which another target has used.
    pub(crate) fn skip(&self, number: u32) {
        self.next.store(number, Ordering::Relaxed);
    }

    /// The number of calls made so far.
    pub(crate) fn call_count(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    async fn call(&self, connection: &mut Connection) -> Result<usize> {
        // Everything runs on one thread.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        connection.unary(&self.path, (self.message)(number)).await
    }

    fn connection(&self, caller: usize) -> Connection {
        self.connections[caller % self.connections.len()].clone()
    }
}
