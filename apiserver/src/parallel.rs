//! Work on many values by all processors.

use std::{
    num::NonZeroUsize,
    panic::resume_unwind,
    thread::{available_parallelism, scope},
};

use podplane_host::task;

/// Fewer values are not worth a thread.
const FEWEST: usize = 1_000;

/// The results for all values, in their order. Blocks until they are there.
pub(crate) fn map<T: Sync, R: Send>(values: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    let part = values.len().div_ceil(processors).max(FEWEST);
    let work_on = |values: &[T]| values.iter().map(&work).collect::<Vec<R>>();
    let (own, others) = values.split_at(part.min(values.len()));
    scope(|scope| {
        let others = others.chunks(part);
        let others = others.map(|values| {
            let of_others = task::scoped_thread(scope, || work_on(values));
            (values, of_others)
        });
        // All of them begin before the own part.
        let others: Vec<_> = others.collect();
        let mut results = work_on(own);
        for (values, of_others) in others {
            results.extend(match of_others {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // There are too many threads.
                Err(_) => work_on(values),
            });
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_values() {
        for count in [0, 1, FEWEST, FEWEST + 1, 10 * FEWEST + 7] {
            let values: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = values.iter().map(|value| 2 * value).collect();
            assert_eq!(map(&values, |value| 2 * value), doubled);
        }
    }
}
