//! What both sides of `BlockService` go by.

/// The most updates in one call.
pub const MAX_UPDATES: usize = 100;
