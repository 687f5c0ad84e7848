//! The monotonic clock, the wall clock, and waiting.

use std::{
    ops::{Add, AddAssign, Sub},
    time::{Duration, SystemTime},
};

#[cfg(feature = "async")]
use jiff::Timestamp;
#[cfg(feature = "async")]
use tokio::time::{Interval, Sleep, Timeout};

/// A moment of the monotonic clock. In tests with tokio's paused clock it is a moment of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(std::time::Instant);

impl Instant {
    /// The present.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        #[cfg(feature = "async")]
        return Self(tokio::time::Instant::now().into_std());
        #[cfg(not(feature = "async"))]
        Self(std::time::Instant::now())
    }

    /// The time since this moment.
    #[inline]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    /// The time since an earlier moment; zero if it is a later one.
    #[inline]
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.duration_since(earlier.0)
    }

    /// The moment after a time; `None` if no `Instant` is so late.
    #[inline]
    #[must_use]
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// The moment before a time; `None` if no `Instant` is so early.
    #[inline]
    #[must_use]
    pub fn checked_sub(self, time: Duration) -> Option<Self> {
        self.0.checked_sub(time).map(Self)
    }

    /// The time since an earlier moment; zero if it is a later one.
    #[inline]
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    #[inline]
    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    #[inline]
    fn sub(self, time: Duration) -> Self {
        Self(self.0 - time)
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// The time since an earlier moment; zero if it is a later one.
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

impl From<std::time::Instant> for Instant {
    #[inline]
    fn from(moment: std::time::Instant) -> Self {
        Self(moment)
    }
}

#[cfg(feature = "async")]
impl From<Instant> for tokio::time::Instant {
    #[inline]
    fn from(moment: Instant) -> Self {
        Self::from_std(moment.0)
    }
}

/// The wall clock's present, in std's type.
#[inline]
#[must_use]
pub fn system_time() -> SystemTime {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::timestamp() {
        return now.into();
    }
    SystemTime::now()
}

/// The wall clock's present.
#[cfg(feature = "async")]
#[inline]
#[must_use]
pub fn timestamp() -> Timestamp {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::timestamp() {
        return now;
    }
    Timestamp::now()
}

/// Waits for a time.
#[cfg(feature = "async")]
#[inline]
pub fn sleep(time: Duration) -> Sleep {
    tokio::time::sleep(time)
}

/// Waits until a moment.
#[cfg(feature = "async")]
#[inline]
pub fn sleep_until(moment: Instant) -> Sleep {
    tokio::time::sleep_until(moment.into())
}

/// Bounds the time that a future may take.
#[cfg(feature = "async")]
#[inline]
pub fn timeout<F: IntoFuture>(time: Duration, future: F) -> Timeout<F::IntoFuture> {
    tokio::time::timeout(time, future)
}

/// Bounds a future by a moment.
#[cfg(feature = "async")]
#[inline]
pub fn timeout_at<F: IntoFuture>(moment: Instant, future: F) -> Timeout<F::IntoFuture> {
    tokio::time::timeout_at(moment.into(), future)
}

/// Ticks, the first at once.
#[cfg(feature = "async")]
#[inline]
pub fn interval(period: Duration) -> Interval {
    tokio::time::interval(period)
}

/// Ticks, the first at `start`.
#[cfg(feature = "async")]
#[inline]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    tokio::time::interval_at(start.into(), period)
}
