//! The backups of a log: their names, and those that are no longer kept.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// The form of the time in the name of a backup, in UTC: `audit-2026-11-23T16-30-00.123.log`. It is
/// that of kube-apiserver's.
const TIME: &str = "%Y-%m-%dT%H-%M-%S.%3f";

/// The path of the backup that is made at this time.
pub(super) fn path(log: &Path, at: Timestamp) -> PathBuf {
    let (stem, extension) = parts(log);
    let time = at.to_zoned(TimeZone::UTC).strftime(TIME);
    log.with_file_name(format!("{stem}-{time}{extension}"))
}

/// The time at which the backup of this name was made; `None` for other files.
pub(super) fn time(log: &Path, name: &OsStr) -> Option<Timestamp> {
    let (stem, extension) = parts(log);
    let text = name.to_str()?;
    let text = text.strip_prefix(&stem)?.strip_prefix('-')?;
    let text = text.strip_suffix(&extension)?;
    let time = DateTime::strptime(TIME, text).ok()?;
    let at = time.to_zoned(TimeZone::UTC).ok()?.timestamp();
    // Nothing but what `path` makes: strptime is lenient.
    (path(log, at).file_name() == Some(name)).then_some(at)
}

/// The name before its extension, and the extension with its dot.
fn parts(log: &Path) -> (String, String) {
    let text = |part: Option<&OsStr>| {
        let text = part.map(OsStr::to_string_lossy);
        text.unwrap_or_default().into_owned()
    };
    let extension = match log.extension() {
        None => String::new(),
        some => format!(".{}", text(some)),
    };
    (text(log.file_stem()), extension)
}

/// The backups to remove: those beyond the number, and those above the age. `backups` are in no
/// order.
pub(super) fn expired(
    mut backups: Vec<Timestamp>,
    now: Timestamp,
    keep: Option<usize>,
    max_age: Option<Duration>,
) -> Vec<Timestamp> {
    backups.sort_unstable_by(|a, b| b.cmp(a));
    let too_old = |at: Timestamp| {
        max_age.is_some_and(|max| {
            Duration::try_from(now.duration_since(at)).is_ok_and(|age| age > max)
        })
    };
    let numbered = backups.into_iter().enumerate();
    numbered
        .filter(|(index, at)| keep.is_some_and(|keep| *index >= keep) || too_old(*at))
        .map(|(_, at)| at)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn names_have_the_time() {
        let made = at("2026-11-23T16:30:00.123Z");
        for (log, backup) in [
            ("/v/audit.log", "/v/audit-2026-11-23T16-30-00.123.log"),
            ("audit", "audit-2026-11-23T16-30-00.123"),
            ("a.b.json", "a.b-2026-11-23T16-30-00.123.json"),
        ] {
            let log = Path::new(log);
            let found = path(log, made);
            assert_eq!(found, Path::new(backup));
            assert_eq!(time(log, found.file_name().unwrap()), Some(made));
        }
        let log = Path::new("/v/audit.log");
        for other in [
            "audit.log",
            "audit-.log",
            "audit-2026-11-23.log",
            "audit-2026-11-23T16-30-00.123.log.gz",
            "other-2026-11-23T16-30-00.123.log",
            "audit-2026-11-23T16-30-00.123456.log",
        ] {
            assert_eq!(time(log, OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn old_and_surplus_backups_expire() {
        let now = at("2026-11-23T00:00:00Z");
        let day = |day: u8| at(&format!("2026-11-{day:02}T00:00:00Z"));
        let backups = || vec![day(20), day(22), day(1), day(21)];
        let days = |days: u64| Some(Duration::from_secs(days * 24 * 60 * 60));
        assert_eq!(expired(backups(), now, None, None), []);
        assert_eq!(expired(backups(), now, Some(2), None), [day(20), day(1)]);
        assert_eq!(expired(backups(), now, None, days(2)), [day(20), day(1)]);
        assert_eq!(expired(backups(), now, Some(1), days(9)).len(), 3);
        // A clock that was set back makes nothing old.
        assert_eq!(expired(backups(), day(1), None, days(1)), []);
    }
}
