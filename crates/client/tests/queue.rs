//! Delays that come from objects, which may have any length.

use std::time::Duration;

use podplane_client::WorkQueue;

#[tokio::test]
async fn accepts_the_longest_delays() {
    let queue = WorkQueue::default();
    for delay in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
        queue.add_after("later", delay);
    }
    queue.add_after("now", Duration::ZERO);
    assert_eq!(queue.get().await, "now");
}
