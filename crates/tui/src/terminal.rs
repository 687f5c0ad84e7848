//! The terminal: opened, drawn on, and restored however the program ends.

use std::io::{self, IsTerminal as _, stdin, stdout};

use crossterm::{
    execute,
    terminal::{EnterAlternateScreen, enable_raw_mode, size},
};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, getpid, kill_process};

/// The terminal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// Standard input or output is none.
    #[error(
        "{0} is not a terminal: this view needs one; `podplane get nodes`, `get pods -A`, `get blocks` and `map` print the same to a file or a pipe"
    )]
    NotATerminal(&'static str),
    /// It does not answer.
    #[error("failed to use the terminal")]
    Io(#[from] io::Error),
}

/// The terminal in the state for full-screen programs. Dropping it restores the terminal; a panic
/// does so before it prints its message.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(crate) fn open() -> Result<Self, TerminalError> {
        for (is_terminal, name) in [
            (stdin().is_terminal(), "standard input"),
            (stdout().is_terminal(), "standard output"),
        ] {
            if !is_terminal {
                return Err(TerminalError::NotATerminal(name));
            }
        }
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                ratatui::restore();
                Err(error.into())
            }
        }
    }

    /// Columns and rows.
    pub(crate) fn size() -> io::Result<(u16, u16)> {
        size()
    }

    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(picture).map(|_| ())
    }

    /// Stops the process, as Ctrl-Z does, until it is continued.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        ratatui::restore();
        self.terminal.show_cursor()?;
        kill_process(getpid(), Signal::TSTP)?;
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
