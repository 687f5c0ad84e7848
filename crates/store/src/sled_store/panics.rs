//! sled panics on some kinds of damage, and where a disk fails. Where panics unwind, [`guarded`] makes errors of them. In a program whose panics abort, as the
//! released one, they still are its last words, after what would have been done about the error.

use std::{
    error::Error,
    panic::{AssertUnwindSafe, catch_unwind},
};

#[cfg(panic = "abort")]
use self::last_words::Watched;

/// Runs what calls sled. If it panics, the error is `failure` of the panic's message. Where the process ends of it, in whichever thread, that prints the error
/// first; `failure` must have put everything in order.
pub(super) fn guarded<T, E: Error>(
    failure: impl Fn(String) -> E + Send + 'static,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    #[cfg(panic = "abort")]
    {
        let _watched = Watched::begin(failure);
        work()
    }
    #[cfg(not(panic = "abort"))]
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(failure(text.unwrap_or("without a message").to_owned()))
    })
}

/// Closes a database in an unknown state. sled's destructor flushes, and panics if that fails; where the process would end of it, the files stay open.
pub(super) fn let_go(db: sled::Db) {
    if cfg!(panic = "abort") {
        std::mem::forget(db);
    } else {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(db)));
    }
}

#[cfg(panic = "abort")]
mod last_words {
    use std::{
        error::Error,
        fmt::Write as _,
        io::{Write as _, stderr},
        panic::{self, Location, PanicHookInfo},
        process,
        sync::{Mutex, Once, PoisonError},
    };

    type Failure = Box<dyn Fn(String) -> String + Send>;

    /// What is under way, and what it means if it panics. sled works in threads of its own too, so it is not a thread's.
    static UNDER_WAY: Mutex<Vec<(u64, Failure)>> = Mutex::new(Vec::new());
    static HOOK: Once = Once::new();

    /// Until it is dropped, a panic is that of a work that is under way.
    pub(super) struct Watched(u64);

    impl Watched {
        pub(super) fn begin<E: Error>(failure: impl Fn(String) -> E + Send + 'static) -> Self {
            HOOK.call_once(|| {
                let before = panic::take_hook();
                panic::set_hook(Box::new(move |info| {
                    end(info, &before);
                }));
            });
            let told = move |text| told(&failure(text));
            let mut under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
            let id = under_way.last().map_or(0, |(last, _)| last + 1);
            under_way.push((id, Box::new(told)));
            Self(id)
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let mut under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
            under_way.retain(|(id, _)| *id != self.0);
        }
    }

    fn told(error: &dyn Error) -> String {
        let mut text = format!("error: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            _ = write!(text, "\n  {error}");
            cause = error.source();
        }
        text
    }

    #[expect(clippy::exit, reason = "instead of an abort")]
    fn end(info: &PanicHookInfo<'_>, otherwise: &dyn Fn(&PanicHookInfo<'_>)) {
        let text = info.payload_as_str().unwrap_or("without a message");
        let under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        let told: Vec<_> = under_way
            .iter()
            .map(|(_, failure)| failure(text.to_owned()))
            .collect();
        let is_sleds = |place: &Location<'_>| place.file().contains("/sled-");
        if told.is_empty() || !info.location().is_some_and(is_sleds) {
            return otherwise(info);
        }
        _ = writeln!(stderr(), "{}", told.join("\n"));
        process::exit(1);
    }
}
