//! The console commands of a page of the docs, as printed there.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

/// A command and its printed output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleStep {
    /// The command without the prompt.
    pub command: String,
    /// The lines of its output; empty if the page does not show them.
    pub shows: Vec<String>,
}

/// The steps of all consoles in the text of a page.
///
/// # Panics
///
/// If a console begins with something other than a prompt.
pub fn page(text: &str) -> Vec<ConsoleStep> {
    let blocks = blocks(text, "console");
    blocks.iter().flat_map(|lines| steps(lines)).collect()
}

/// The lines of each block of that language in `text`.
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<Vec<&'a str>> {
    let fence = format!("```{language}");
    let mut lines = text.lines();
    let mut blocks = Vec::new();
    while lines.by_ref().any(|line| line == fence) {
        blocks.push(lines.by_ref().take_while(|line| *line != "```").collect());
    }
    blocks
}

/// The steps of a block. Each begins with `$ `, or with `# ` if the first one does, and continues
/// after a `\` at the end of a line and to the end of a here-document.
///
/// # Panics
///
/// If the block begins with something other than a prompt.
pub fn steps(lines: &[&str]) -> Vec<ConsoleStep> {
    let mut steps = Vec::<ConsoleStep>::new();
    let is_root = lines.first().is_some_and(|line| line.starts_with("# "));
    let prompt = if is_root { "# " } else { "$ " };
    for line in lines {
        match (line.strip_prefix(prompt), steps.last_mut()) {
            (Some(command), _) => steps.push(ConsoleStep {
                command: command.to_owned(),
                shows: Vec::new(),
            }),
            (None, Some(step)) if goes_on(&step.command) => {
                step.command.push('\n');
                step.command.push_str(line);
            }
            (None, Some(step)) => step.shows.push((*line).to_owned()),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    steps
}

fn goes_on(command: &str) -> bool {
    let mut lines = command.lines();
    let first = lines.next().unwrap_or_default();
    match first.ends_with("<<EOF") {
        true => lines.last() != Some("EOF"),
        false => command.ends_with('\\'),
    }
}

/// Returns true if `got` is what the page shows. A `…` in the page stands for any text in a line,
/// or as a line of its own for any number of lines.
pub fn is_shown(want: &[String], got: &[&str]) -> bool {
    match (want, got) {
        ([], rest) => rest.is_empty(),
        ([any, rest @ ..], _) if any.trim() == "…" => {
            (0..=got.len()).any(|skipped| is_shown(rest, &got[skipped..]))
        }
        ([line, rest @ ..], [first, others @ ..]) => is_line(line, first) && is_shown(rest, others),
        (_, []) => false,
    }
}

fn is_line(want: &str, got: &str) -> bool {
    let Some((before, after)) = want.split_once('…') else {
        return want == got;
    };
    let Some(rest) = got.strip_prefix(before) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|at| is_line(after, &rest[at..]))
}

/// A shell into which a reader of the page types its commands.
#[derive(Debug)]
pub struct Session {
    shell: Child,
    stdin: ChildStdin,
    shown: BufReader<io::PipeReader>,
    _alive: Sender<()>,
}

/// The outcome of a command.
#[derive(Debug)]
pub struct CommandOutcome {
    /// Its exit code.
    pub code: i32,
    /// Its output, of both streams.
    pub shown: String,
}

/// The time limit of all commands of a page together. After it the shell is killed, so that a
/// command that hangs fails its test.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
const END: &str = "--- end of the command:";

impl Session {
    /// A shell in `dir` that finds programs in `path`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(dir: &Path, path: &str) -> io::Result<Self> {
        let mut shell = Command::new("bash");
        shell.current_dir(dir).env("HOME", dir);
        Self::spawn(shell, path)
    }

    /// A shell with mounts, processes and a network of its own, which all end with it. It begins in
    /// /tmp, and /tmp, /run, /var/lib and /opt are empty.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or the mounts cannot be made.
    pub fn apart(path: &str) -> io::Result<Self> {
        let mut shell = Command::new("unshare");
        shell
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "bash"]);
        let mut session = Self::spawn(shell, path)?;
        let places = session.run(
            "for place in /tmp /run /var/lib /opt; do mount -t tmpfs tmpfs $place || exit 1; done; \
             ip link set lo up && mkdir /tmp/home && export HOME=/tmp/home && cd /tmp",
        )?;
        match places.code {
            0 => Ok(session),
            _ => Err(io::Error::other(places.shown)),
        }
    }

    fn spawn(mut shell: Command, path: &str) -> io::Result<Self> {
        let (shown, output) = io::pipe()?;
        let mut shell = shell
            .args(["--noprofile", "--norc"])
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A group of its own, so that background processes end with it.
            .process_group(0)
            .spawn()?;
        let stdin = shell.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let group = Pid::from_child(&shell);
        let (alive, ended) = channel();
        thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                _ = kill_process_group(group, Signal::KILL);
            }
        });
        Ok(Self {
            shell,
            stdin,
            shown: BufReader::new(shown),
            _alive: alive,
        })
    }

    /// Types a command and waits for its end.
    ///
    /// # Errors
    ///
    /// If the shell has ended.
    pub fn run(&mut self, command: &str) -> io::Result<CommandOutcome> {
        writeln!(self.stdin, "{command}\nprintf '\\n{END} %s\\n' $?")?;
        let mut shown = String::new();
        loop {
            let mut line = String::new();
            if self.shown.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(code) = line.strip_prefix(END) {
                let code = code.trim().parse().unwrap_or(-1);
                // The line break before the end mark is ours.
                shown.truncate(shown.trim_end_matches('\n').len());
                return Ok(CommandOutcome { code, shown });
            }
            shown += &line;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        _ = kill_process_group(Pid::from_child(&self.shell), Signal::KILL);
        _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ellipses_match_varying_output() {
        let want = ["{", "  \"uid\": \"…\",", "  …", "}"].map(str::to_owned);
        assert!(is_shown(&want, &["{", "  \"uid\": \"a-b\",", "}"]));
        assert!(is_shown(&want, &["{", "  \"uid\": \"\",", "x", "y", "}"]));
        assert!(!is_shown(&want, &["{", "  \"uid\": 7,", "}"]));
        assert!(!is_shown(&want, &["{", "  \"uid\": \"a\",", "x"]));
    }

    #[test]
    fn reads_the_steps_of_each_block() {
        let page = "x\n```console\n$ a\n1\n2\n$ b\n```\n```text\n$ c\n```\n```console\n$ d\n```\n";
        let blocks = blocks(page, "console");
        assert_eq!(blocks.len(), 2);
        let steps = steps(&blocks[0]);
        assert_eq!((steps[0].command.as_str(), steps[0].shows.len()), ("a", 2));
        assert_eq!((steps[1].command.as_str(), steps[1].shows.len()), ("b", 0));
    }

    #[test]
    fn a_command_includes_here_documents_and_continued_lines() {
        let lines = ["$ cat > a <<EOF", "1", "EOF", "$ b \\", "  c", "2", "$ d"];
        let commands = steps(&lines).into_iter().map(|step| step.command);
        let want = ["cat > a <<EOF\n1\nEOF", "b \\\n  c", "d"];
        assert_eq!(commands.collect::<Vec<_>>(), want);
        assert_eq!(steps(&lines)[1].shows, ["2"]);
        assert_eq!(steps(&["# e", "# f"]).len(), 2, "prompts of root");
    }
}
