//! The progress of long work: a changing line on a terminal, plain lines for slow work without
//! one, and nothing of it in the output.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podplane_tests::programs::podplane;
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// A node and a pod: enough for an audit.
const DUMP: &str = r#"{"kind": "List", "items": [
    {"kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}},
    {"kind": "Pod", "metadata": {"namespace": "default", "name": "web"}, "spec": {"nodeName": "a"}, "status": {"podIP": "10.0.0.2"}}
]}"#;
const AUDIT: &[&str] = &["audit", "-"];
const DEADLINE: Duration = Duration::from_secs(60);
/// The time between two pieces of the slow input.
const PIECE: Duration = Duration::from_millis(20);

/// A pseudo-terminal: our side, and that of a program.
fn terminal() -> Result<(File, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let size = Winsize {
        ws_row: 24,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&ours, size)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
    Ok((ours.into(), theirs))
}

/// A command that reads standard input, and gets it slowly.
struct SlowReader {
    child: Child,
    input: ChildStdin,
    shown: Receiver<Vec<u8>>,
    errors: String,
}

impl SlowReader {
    /// Starts it; standard error is the terminal, if there is one.
    fn start(args: &[&str], terminal: Option<(File, OwnedFd)>) -> Result<Self> {
        let mut command = podplane(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let (ours, theirs) = match terminal {
            Some((ours, theirs)) => (Some(ours), Stdio::from(theirs)),
            None => (None, Stdio::piped()),
        };
        let mut child = command.stderr(theirs).spawn()?;
        // The command keeps the program's side of a terminal, whose end would never come.
        drop(command);
        let input = child.stdin.take().context("a pipe")?;
        let (sender, shown) = mpsc::channel();
        let mut from: Box<dyn std::io::Read + Send> = match ours {
            Some(ours) => Box::new(ours),
            None => Box::new(child.stderr.take().context("a pipe")?),
        };
        // A terminal ends with an error when its program does.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            input,
            shown,
            errors: String::new(),
        })
    }

    /// Sends blanks until standard error has the text.
    fn until(&mut self, text: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.errors.contains(text) {
            ensure!(
                begun.elapsed() < DEADLINE,
                "not {text:?}: {:?}",
                self.errors
            );
            self.input.write_all(b" ")?;
            if let Ok(more) = self.shown.recv_timeout(PIECE) {
                self.errors.push_str(&String::from_utf8_lossy(&more));
            }
        }
        Ok(())
    }

    /// Sends nothing until standard error has the text.
    fn silently_until(&mut self, text: &str) -> Result<()> {
        while !self.errors.contains(text) {
            let more = self.shown.recv_timeout(DEADLINE);
            let more = more.with_context(|| format!("not {text:?}: {:?}", self.errors))?;
            self.errors.push_str(&String::from_utf8_lossy(&more));
        }
        Ok(())
    }

    /// Sends blanks for that long.
    fn slowly(&mut self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.input.write_all(b" ")?;
            if let Ok(more) = self.shown.recv_timeout(PIECE) {
                self.errors.push_str(&String::from_utf8_lossy(&more));
            }
        }
        Ok(())
    }

    /// Sends the rest, and returns standard output and error.
    fn end(mut self, rest: &str) -> Result<(String, String)> {
        self.input.write_all(rest.as_bytes())?;
        drop(self.input);
        let mut output = String::new();
        let mut stdout = self.child.stdout.take().context("a pipe")?;
        stdout.read_to_string(&mut output)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}: {output}{}", self.errors);
        for more in self.shown {
            self.errors.push_str(&String::from_utf8_lossy(&more));
        }
        Ok((output, self.errors))
    }
}

#[test]
fn a_terminal_shows_a_changing_line_and_clears_it() -> Result<()> {
    for args in [AUDIT, &["audit", "-", "-o", "json"]] {
        let mut audit = SlowReader::start(args, Some(terminal()?))?;
        audit.until("reading standard input: ")?;
        let (output, shown) = audit.end(DUMP)?;
        assert!(!output.contains("reading"), "{output}");
        let last = shown.rfind("reading").context("the last line")?;
        assert!(shown[last..].contains("\u{1b}[2K"), "cleared: {shown:?}");
    }
    Ok(())
}

#[test]
fn slow_work_without_a_terminal_writes_plain_lines() -> Result<()> {
    let mut audit = SlowReader::start(AUDIT, None)?;
    audit.until("reading standard input: ")?;
    let (output, shown) = audit.end(DUMP)?;
    assert!(!output.contains("reading"), "{output}");
    assert!(
        !shown.contains('\u{1b}') && shown.ends_with('\n'),
        "{shown:?}"
    );
    Ok(())
}

#[test]
fn nothing_is_written_beside_json_without_a_terminal() -> Result<()> {
    let mut audit = SlowReader::start(&["audit", "-", "-o", "json"], None)?;
    // Longer than the second after which slow work writes lines.
    audit.slowly(Duration::from_secs(2))?;
    let (output, shown) = audit.end(DUMP)?;
    serde_json::from_str::<serde_json::Value>(&output)?;
    assert_eq!(shown, "");
    Ok(())
}

#[test]
fn short_work_without_a_terminal_writes_no_line() -> Result<()> {
    let (_, shown) = SlowReader::start(AUDIT, None)?.end(DUMP)?;
    assert_eq!(shown, "");
    Ok(())
}

#[test]
fn short_work_draws_nothing_on_a_terminal() -> Result<()> {
    let (output, shown) = SlowReader::start(AUDIT, Some(terminal()?))?.end(DUMP)?;
    assert!(!output.is_empty());
    assert_eq!(shown, "");
    Ok(())
}

#[test]
fn work_that_says_nothing_is_shown_when_it_is_slow() -> Result<()> {
    for terminal in [None, Some(terminal()?)] {
        let mut audit = SlowReader::start(AUDIT, terminal)?;
        audit.silently_until("reading standard input")?;
        audit.end(DUMP)?;
    }
    Ok(())
}

/// An entry of a recording.
const ENTRY: &str = r#"{"at": 0.1, "step": 1, "kind": "step", "name": "one"}"#;

#[test]
fn a_recording_that_is_read_slowly_has_a_line_too() -> Result<()> {
    for command in [
        &["replay", "/dev/stdin"][..],
        &[
            "map",
            "--recording",
            "/dev/stdin",
            "--cluster-cidr",
            "10.0.0.0/24",
        ],
    ] {
        let mut reader = SlowReader::start(command, Some(terminal()?))?;
        reader.until("reading /dev/stdin: ")?;
        let (output, shown) = reader.end(&format!("{ENTRY}\n"))?;
        assert!(
            !output.is_empty() && !output.contains("reading"),
            "{output}"
        );
        let last = shown.rfind("reading").context("the last line")?;
        assert!(shown[last..].contains("\u{1b}[2K"), "cleared: {shown:?}");
    }
    Ok(())
}
