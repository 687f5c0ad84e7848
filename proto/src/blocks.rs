//! Constants that both sides of `BlockService` share.

/// The most updates in one call.
pub const MAX_UPDATES: usize = 100;
