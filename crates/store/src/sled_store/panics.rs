//! Panics below the store's interface.
//!
//! sled panics on some kinds of damage, and where a disk fails. [`guarded`] makes an error of a panic in the thread that called
//! sled. A panic in another thread, one of sled's own or the committer's, leaves something half-changed, and callers that wait
//! for that thread; in a program that called [`end_process_on_panic`] it ends the process, which begins anew with what the
//! disk has.

use std::{
    cell::Cell,
    error::Error,
    fmt::Write as _,
    io::{Write as _, stderr},
    panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind},
    process,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
};

/// The name of the thread that writes.
pub(super) const COMMITTER: &str = "store-committer";

/// Puts everything in order and returns the error of a panic with this message, in words.
type LastAct = Box<dyn Fn(String) -> String + Send>;

/// The calls of sled that are under way. sled works in threads of its own too, so they are not a thread's.
static UNDER_WAY: Mutex<Vec<(u64, LastAct)>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread catches its panics.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Ends the process when a thread below the store's interface panics and nobody in that thread catches it. For programs; a
/// test would end with all others of its process.
pub fn end_process_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| on_panic(info, &before)));
    });
}

/// Runs what calls sled. If it panics, the error is `failure` of the panic's message. If a thread of sled's panics meanwhile and
/// the process ends of it, `put_in_order` is called first, and the same error printed.
pub(super) fn guarded<T, E: Error>(
    failure: impl Fn(String) -> E + Clone + Send + 'static,
    put_in_order: impl Fn() + Send + 'static,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let in_words = failure.clone();
    let _under_way = UnderWay::begin(Box::new(move |text| {
        put_in_order();
        chain(&in_words(text))
    }));
    caught(work).unwrap_or_else(|text| Err(failure(text)))
}

/// Closes a database in an unknown state. sled's destructor flushes, and panics if that fails.
pub(super) fn let_go(db: sled::Db) {
    if let Err(text) = caught(|| drop(db)) {
        tracing::warn!(error = text, "the database was not closed in order");
    }
}

/// The message of the panic, if there was one.
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

/// A call of sled, until it is dropped.
struct UnderWay(u64);

impl UnderWay {
    fn begin(last_act: LastAct) -> Self {
        let mut all = under_way();
        let id = all.last().map_or(0, |(last, _)| last + 1);
        all.push((id, last_act));
        Self(id)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        under_way().retain(|(id, _)| *id != self.0);
    }
}

fn under_way() -> MutexGuard<'static, Vec<(u64, LastAct)>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error and its sources, one on each line.
fn chain(error: &dyn Error) -> String {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        _ = write!(text, "\n  {error}");
        cause = error.source();
    }
    text
}

#[expect(clippy::exit, reason = "the rest of the process cannot go on")]
fn on_panic(info: &PanicHookInfo<'_>, before: &dyn Fn(&PanicHookInfo<'_>)) {
    let place = info.location();
    let is_sleds = place.is_some_and(|place| place.file().contains("/sled-"));
    let is_below = is_sleds || thread::current().name() == Some(COMMITTER);
    match (is_below, CATCHES.get()) {
        (false, _) => before(info),
        // The caller is told, in an error; damage of files is not a fault to print a place in the code for.
        (true, true) if is_sleds => {}
        (true, true) => before(info),
        (true, false) => {
            let text = info.payload_as_str().unwrap_or("without a message");
            let told: Vec<_> = under_way()
                .iter()
                .map(|(_, last_act)| last_act(text.to_owned()))
                .collect();
            if told.is_empty() {
                before(info);
            }
            let last = "a panic below the store's interface ends the process";
            _ = writeln!(
                stderr(),
                "{}",
                [&told[..], &[last.to_owned()]].concat().join("\n")
            );
            process::exit(1);
        }
    }
}
