//! The work queue, as controllers use it with what objects say.

use std::time::Duration;

use podplane_client::WorkQueue;

#[tokio::test]
async fn a_delay_of_any_length_is_taken() {
    let queue = WorkQueue::default();
    for delay in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
        queue.add_after("later", delay);
    }
    queue.add_after("now", Duration::ZERO);
    assert_eq!(queue.get().await, "now");
}
