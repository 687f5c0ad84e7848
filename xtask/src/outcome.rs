//! A summary of all tests, parsed from the output of cargo and libtest.

use std::{collections::BTreeMap, fmt};

/// The most lines of a failed test's own output that the summary repeats, and the most characters
/// of one.
const LINES: usize = 30;
const LINE_CHARS: usize = 400;

/// The outcome of `cargo test --no-fail-fast`, parsed line by line.
#[derive(Debug, Default)]
pub(crate) struct TestOutcome {
    /// True if cargo succeeded.
    pub(crate) succeeded: bool,
    passed: u64,
    failed: u64,
    ignored: u64,
    /// The failed tests of the program that is running, with the beginning of their output.
    running: BTreeMap<String, Vec<String>>,
    /// The test whose output the next lines are.
    printed_by: Option<String>,
    failures: Vec<FailedProgram>,
}

/// A failed test program.
#[derive(Debug, PartialEq, Eq)]
struct FailedProgram {
    /// The flags with which cargo runs it alone.
    flags: String,
    /// The failed tests, with the beginning of their output; empty if the program ended by a
    /// signal, or was not started.
    tests: BTreeMap<String, Vec<String>>,
}

impl TestOutcome {
    /// Adds the outcome of other tests.
    pub(crate) fn add(&mut self, other: Self) {
        self.succeeded &= other.succeeded;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
    }

    /// Parses one line.
    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(name) = failed_test(line) {
            self.running.entry(name.to_owned()).or_default();
        } else if let Some(name) = output_of(line) {
            self.printed_by = Some(name.to_owned());
        } else if line == "failures:" {
            self.printed_by = None;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            self.ignored += count(counts, "ignored");
        } else if let Some(flags) = failed_target(line) {
            self.printed_by = None;
            self.failures.push(FailedProgram {
                flags: flags.to_owned(),
                tests: std::mem::take(&mut self.running),
            });
        } else if let Some(test) = &self.printed_by {
            let output = self.running.entry(test.clone()).or_default();
            if output.len() < LINES && !line.is_empty() && !is_of_a_backtrace(line) {
                output.push(line.chars().take(LINE_CHARS).collect());
            }
        }
    }
}

/// The name in libtest's `---- NAME stdout ----`.
fn output_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Returns true for `  12: function`, `             at file:1:2`, and the lines around them.
fn is_of_a_backtrace(line: &str) -> bool {
    let text = line.trim_start();
    let number = text.split_once(": ").map(|(number, _)| number);
    line == "stack backtrace:"
        || line.starts_with("note: ")
        || text.starts_with("at ")
        || line.starts_with(' ') && number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The name in libtest's `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?;
    Some(name.split_once(" ... FAILED")?.0)
}

/// The flags in cargo's ``error: test failed, to rerun pass `FLAGS` ``, which has `doctest` for doc
/// tests.
fn failed_target(line: &str) -> Option<&str> {
    let error = line.strip_prefix("error: ")?;
    let (what, flags) = error.split_once(" failed, to rerun pass `")?;
    ["test", "doctest"].contains(&what).then_some(())?;
    flags.strip_suffix('`')
}

/// The number before a word, as in `3 passed`.
fn count(counts: &str, word: &str) -> u64 {
    let each = counts.split([';', '.']).map(str::trim);
    each.filter_map(|part| part.strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

impl fmt::Display for TestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            succeeded,
            passed,
            failed,
            ignored,
            failures,
            ..
        } = self;
        if !failures.is_empty() {
            writeln!(f, "\nfailures of all test programs:")?;
        }
        for FailedProgram { flags, tests } in failures {
            writeln!(f, "    cargo test {flags}")?;
            if tests.is_empty() {
                writeln!(
                    f,
                    "        the program ended without naming a test: see above"
                )?;
            }
            for (test, output) in tests {
                writeln!(f, "        {test}")?;
                for line in output {
                    writeln!(f, "            {line}")?;
                }
            }
        }
        let verdict = if *succeeded { "ok" } else { "FAILED" };
        writeln!(
            f,
            "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; all test programs"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
     Running tests/cidr_change.rs (target/debug/deps/cidr_change-2f5d5b9d38a3c0f5)

running 3 tests
test story_b_without_the_fault ... ok
test the_demo_plays_story_b_with_its_fault ... FAILED
test chaos::a_panic - should panic ... FAILED

failures:

---- the_demo_plays_story_b_with_its_fault stdout ----
NOT: the 28 that waited get a block each

thread 'main' (7) panicked at tests/cidr_change.rs:12:3:
it stopped
stack backtrace:
   0: std::panicking::begin_panic_handler
             at ./library/std/src/panicking.rs:664:5
note: Some details are omitted
  in all: 1 of 2

failures:
    the_demo_plays_story_b_with_its_fault

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 190.09s

error: test failed, to rerun pass `-p podplane-tests --test cidr_change`
     Running tests/up.rs (target/debug/deps/up-0000000000000000)

running 1 test
error: test failed, to rerun pass `-p podplane-tests --test up`

Caused by:
  process didn't exit successfully: `/a/up-0000000000000000` (signal: 6, SIGABRT: process abort signal)
   Doc-tests podplane_api

test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s; merged doctests compilation took 0.5s

error: 2 targets failed:
    `-p podplane-tests --test cidr_change`
    `-p podplane-tests --test up`
";

    fn read(text: &str) -> TestOutcome {
        let mut outcome = TestOutcome::default();
        for line in text.lines() {
            outcome.line(line);
        }
        outcome
    }

    #[test]
    fn repeats_why_each_test_failed_and_names_each_program_that_ended_early() {
        assert_eq!(
            read(PRINTED).to_string(),
            "
failures of all test programs:
    cargo test -p podplane-tests --test cidr_change
        chaos::a_panic - should panic
        the_demo_plays_story_b_with_its_fault
            NOT: the 28 that waited get a block each
            thread 'main' (7) panicked at tests/cidr_change.rs:12:3:
            it stopped
              in all: 1 of 2
    cargo test -p podplane-tests --test up
        the program ended without naming a test: see above

test result: FAILED. 5 passed; 2 failed; 1 ignored; all test programs
"
        );
    }

    #[test]
    fn sums_up_passed_tests() {
        let mut outcome = read(
            "test a ... ok\ntest result: ok. 2 passed; 0 failed; 3 ignored; 0 measured; 9 filtered out; finished in 0.00s",
        );
        outcome.succeeded = true;
        assert_eq!(
            outcome.to_string(),
            "\ntest result: ok. 2 passed; 0 failed; 3 ignored; all test programs\n"
        );
    }
}
