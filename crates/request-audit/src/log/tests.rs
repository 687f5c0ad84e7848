use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    sync::mpsc::Sender,
};

use podplane_host::fs;
use tempfile::TempDir;

use super::*;

const LONG: Duration = Duration::from_secs(30);

fn options(dir: &TempDir) -> LogOptions {
    LogOptions {
        path: dir.path().join("audit.log"),
        max_bytes: None,
        max_backups: None,
        max_age: None,
    }
}

fn write(options: &LogOptions, lines: &[String]) -> AuditMetrics {
    let metrics = AuditMetrics::default();
    let (log, thread) = AuditLog::open(options.clone(), metrics.clone()).unwrap();
    for line in lines {
        log.write(format!("{line}\n").into_bytes());
    }
    drop(log);
    assert!(thread.finish(LONG));
    metrics
}

fn numbers(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{{\"n\":{number:05}}}"))
        .collect()
}

/// The files by name: backups first, since their times come before the extension.
fn files(dir: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn lines_are_appended_to_a_file_that_only_its_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    fs::write(&options.path, "before\n").unwrap();
    fs::set_permissions(&options.path, fs::Permissions::from_mode(0o644)).unwrap();
    write(&options, &numbers(3));
    let metrics = write(&options, &["last".to_owned()]);
    let text = fs::read_to_string(&options.path).unwrap();
    assert_eq!(
        text,
        "before\n{\"n\":00000}\n{\"n\":00001}\n{\"n\":00002}\nlast\n"
    );
    assert_eq!(fs::metadata(&options.path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(metrics.lost_lines(), 0);
}

#[test]
fn an_incomplete_last_line_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    for (before, after) in [
        ("whole\n{\"torn".to_owned(), "whole\nnew\n".to_owned()),
        ("{\"torn".to_owned(), "new\n".to_owned()),
        (
            format!("whole\n{}", "x".repeat(200_000)),
            "whole\nnew\n".to_owned(),
        ),
        (String::new(), "new\n".to_owned()),
    ] {
        fs::write(&options.path, before).unwrap();
        write(&options, &["new".to_owned()]);
        assert_eq!(fs::read_to_string(&options.path).unwrap(), after);
    }
}

#[test]
fn a_full_file_becomes_a_backup_and_no_line_is_lost_or_split() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        max_bytes: Some(300_000),
        ..options(&dir)
    };
    let lines: Vec<_> = (0..9000)
        .map(|number| format!("{number:05}{}", "x".repeat(100)))
        .collect();
    let metrics = write(&options, &lines);
    let names = files(&dir);
    assert!(names.len() >= 3, "{names:?}");
    let mut found = String::new();
    for name in &names {
        let path = dir.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 300_000 && text.ends_with('\n'), "{name}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        found.push_str(&text);
    }
    assert!(found.lines().eq(lines.iter().map(String::as_str)));
    assert_eq!(metrics.lost_lines(), 0);
}

#[test]
fn surplus_backups_are_removed_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        max_backups: Some(1),
        max_age: Some(Duration::from_secs(24 * 60 * 60)),
        ..options(&dir)
    };
    for name in [
        "audit-2020-01-01T00-00-00.000.log",
        "audit-2020-01-02T00-00-00.000.log",
        "audit-2999-01-02T00-00-00.000.log",
        "audit-2020-01-02.log",
        "other.log",
    ] {
        fs::write(dir.path().join(name), "x\n").unwrap();
    }
    write(&options, &numbers(1));
    let left = [
        "audit-2020-01-02.log",
        "audit-2999-01-02T00-00-00.000.log",
        "audit.log",
        "other.log",
    ];
    assert_eq!(files(&dir), left);
}

#[test]
fn a_log_has_one_writer_and_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir);
    let open = |options: &LogOptions| AuditLog::open(options.clone(), AuditMetrics::default());
    let first = open(&options).unwrap();
    assert!(matches!(open(&options), Err(OpenLogError::InUse(_))));
    drop(first);
    let at = |path: &str| LogOptions {
        path: path.into(),
        ..options.clone()
    };
    assert!(matches!(
        open(&at("/dev/full")),
        Err(OpenLogError::NotAFile(_))
    ));
    assert!(matches!(
        open(&at("/nowhere/audit.log")),
        Err(OpenLogError::Io { .. })
    ));
}

/// A disk that stands still until it is told to go on, and then fails `failures` times.
struct SlowDisk {
    go: Receiver<()>,
    failures: usize,
    written: Sender<usize>,
}

impl Sink for SlowDisk {
    fn write(&mut self, lines: &[Vec<u8>]) -> Result<(), LostLines> {
        let _ = self.go.recv();
        if self.failures > 0 {
            self.failures -= 1;
            return Err(LostLines {
                lines: lines.len(),
                cause: io::ErrorKind::StorageFull.into(),
            });
        }
        let _ = self.written.send(lines.len());
        Ok(())
    }
}

fn slow(failures: usize) -> (AuditLog, LogThread, mpsc::Sender<()>, Receiver<usize>) {
    let (go, gate) = mpsc::channel();
    let (written, report) = mpsc::channel();
    let disk = SlowDisk {
        go: gate,
        failures,
        written,
    };
    let (log, thread) = AuditLog::start(Box::new(disk), AuditMetrics::default()).unwrap();
    (log, thread, go, report)
}

#[test]
fn a_disk_that_stands_still_costs_lines_and_not_time() {
    let (log, thread, go, report) = slow(0);
    let queued = MAX_QUEUED_LINES * 3;
    for _ in 0..queued {
        log.write(b"line\n".to_vec());
    }
    let lost = log.metrics().lost_lines();
    assert!(lost > 0);
    // Drains without the gate: the sender is gone.
    drop((go, log));
    assert!(thread.finish(LONG));
    let written: usize = report.try_iter().sum();
    assert_eq!(written, queued - usize::try_from(lost).unwrap());
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let (log, thread, go, report) = slow(0);
    let line = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        log.write(line.clone());
    }
    let lost = usize::try_from(log.metrics().lost_lines()).unwrap();
    assert_eq!(lost, 100 - (MAX_QUEUED_BYTES >> 20));
    drop((go, log));
    assert!(thread.finish(LONG));
    assert_eq!(report.try_iter().sum::<usize>(), 100 - lost);
}

#[test]
fn a_thread_that_hangs_does_not_hold_up_the_end() {
    let (log, thread, _go, _report) = slow(0);
    log.write(b"line\n".to_vec());
    drop(log);
    assert!(!thread.finish(Duration::from_millis(10)));
}

#[test]
fn failed_writes_are_counted_and_later_ones_succeed() {
    let (log, thread, go, report) = slow(1);
    log.write(b"first\n".to_vec());
    go.send(()).unwrap();
    while log.metrics().lost_lines() == 0 {
        std::thread::yield_now();
    }
    log.write(b"second\n".to_vec());
    go.send(()).unwrap();
    assert_eq!(report.recv_timeout(LONG), Ok(1));
    drop(log);
    assert!(thread.finish(LONG));
}
