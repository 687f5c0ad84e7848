//! What both sides of `BlockService` go by.

/// The most updates in one call.
pub const MAX_UPDATES: usize = 100;

/// How long the sandboxes of a node that is gone count as having addresses if its kubelet says nothing: the reference's `--node-monitor-grace-period` up to
/// 1.31, after which a silent kubelet counts as gone.
pub const HELD_SECONDS: u32 = 40;
