//! Constants that both sides of `BlockService` share.

/// The most updates in one call.
pub const MAX_UPDATES: usize = 100;

/// The most assignments in one call.
pub const MAX_ASSIGNMENTS: usize = 1000;
