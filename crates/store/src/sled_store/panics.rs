//! Handling of panics in sled and in the committer.
//!
//! sled panics on some kinds of damage, and where a disk fails. [`guarded`] turns a panic in the
//! calling thread into an error. A panic in another thread, one of sled's own or the committer's,
//! leaves inconsistent state, and callers that wait for that thread forever; in a program that
//! called [`end_process_on_panic`] it ends the process, which starts again from the content of the
//! disk.

use std::{
    cell::Cell,
    error::Error,
    io::{Write as _, stderr},
    panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind},
    process,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
};

/// The name of the committer thread.
pub(super) const COMMITTER: &str = "store-committer";

/// Cleans up, and returns the error text for a panic with the given message.
type PanicCleanup = Box<dyn Fn(String) -> String + Send>;

/// The calls of sled that are in progress. Not per thread, because sled works in threads of its own
/// too.
static SLED_CALLS: Mutex<Vec<(u64, PanicCleanup)>> = Mutex::new(Vec::new());

thread_local! {
    /// True while this thread catches its panics.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Ends the process when a thread of sled or the committer panics and nothing in that thread
/// catches it. For programs only: in a test it would end all other tests of the process.
pub fn end_process_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| on_panic(info, &before)));
    });
}

/// Runs `work`, which calls sled. If it panics, the error is `failure` of the panic's message. If a
/// thread of sled panics meanwhile and that ends the process, `put_in_order` is called first, and
/// the same error is printed.
pub(super) fn guarded<T, E: Error + 'static>(
    failure: impl Fn(String) -> E + Clone + Send + 'static,
    put_in_order: impl Fn() + Send + 'static,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let in_words = failure.clone();
    let _call = SledCall::begin(Box::new(move |text| {
        put_in_order();
        chain(&in_words(text))
    }));
    caught(work).unwrap_or_else(|text| Err(failure(text)))
}

/// Closes a database in an unknown state. sled's destructor flushes, and panics if that fails.
pub(super) fn let_go(db: sled::Db) {
    if let Err(text) = caught(|| drop(db)) {
        tracing::warn!(error = text, "failed to close the database");
    }
}

/// Runs `work` and returns the message of a panic as the error.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = CATCHES.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(before);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("without a message").to_owned()
    })
}

/// A registered call of sled; it is removed when this is dropped.
struct SledCall(u64);

impl SledCall {
    fn begin(cleanup: PanicCleanup) -> Self {
        let mut all = sled_calls();
        let id = all.last().map_or(0, |(last, _)| last + 1);
        all.push((id, cleanup));
        Self(id)
    }
}

impl Drop for SledCall {
    fn drop(&mut self) {
        sled_calls().retain(|(id, _)| *id != self.0);
    }
}

fn sled_calls() -> MutexGuard<'static, Vec<(u64, PanicCleanup)>> {
    SLED_CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of an error and its sources, one on each line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<_> = podplane_error_chain::causes(error)
        .map(ToString::to_string)
        .collect();
    format!("error: {}", causes.join("\n  "))
}

#[expect(clippy::exit, reason = "the rest of the process cannot go on")]
fn on_panic(info: &PanicHookInfo<'_>, before: &dyn Fn(&PanicHookInfo<'_>)) {
    let place = info.location();
    let is_sleds = place.is_some_and(|place| place.file().contains("/sled-"));
    let is_below = is_sleds || thread::current().name() == Some(COMMITTER);
    match (is_below, CATCHES.get()) {
        (false, _) => before(info),
        // The caller gets an error. Damage of files is not a programming error whose location is
        // worth printing.
        (true, true) if is_sleds => {}
        (true, true) => before(info),
        (true, false) => {
            let text = info.payload_as_str().unwrap_or("without a message");
            let errors: Vec<_> = sled_calls()
                .iter()
                .map(|(_, cleanup)| cleanup(text.to_owned()))
                .collect();
            if errors.is_empty() {
                before(info);
            }
            let last = "a panic below the store's interface ends the process";
            _ = writeln!(
                stderr(),
                "{}",
                [&errors[..], &[last.to_owned()]].concat().join("\n")
            );
            process::exit(1);
        }
    }
}
