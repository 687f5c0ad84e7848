//! Random numbers and identifiers.

use std::ops::RangeInclusive;

use rand::{
    Rng, RngExt as _,
    distr::{Distribution, StandardUniform},
};

/// A random value: any value of an integer, a float from 0 to below 1, an array of such.
#[inline]
#[must_use]
pub fn value<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    with(|source| source.random())
}

/// A random number in a range.
#[inline]
#[must_use]
pub fn within(range: RangeInclusive<u64>) -> u64 {
    with(|source| source.random_range(range))
}

/// A random UUID, of version 4.
#[cfg(feature = "async")]
#[must_use]
pub fn uuid() -> uuid::Uuid {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        return uuid::Builder::from_random_bytes(value()).into_uuid();
    }
    uuid::Uuid::new_v4()
}

#[inline]
fn with<T>(draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
    #[cfg(feature = "simulation")]
    if crate::simulation::is_on() {
        return crate::simulation::with_random(draw);
    }
    draw(&mut rand::rng())
}
