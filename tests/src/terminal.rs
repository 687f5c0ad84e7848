//! A program on a terminal of its own, whose screen is read as text.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use vt100::Parser;

use crate::eventually;

/// A program that runs on a pseudo-terminal, which is its controlling one.
#[derive(Debug)]
pub struct TerminalProgram {
    child: Child,
    keyboard: File,
    terminal: OwnedFd,
    screen: Screen,
}

/// A terminal emulator that shows what the program writes.
#[derive(Clone)]
struct Screen(Arc<Mutex<Parser>>);

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lock().screen().contents())
    }
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, Parser> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl TerminalProgram {
    /// Starts a command on a terminal of this size.
    ///
    /// # Errors
    ///
    /// If there is no pseudo-terminal, or the program cannot be started. Needs `setsid` of
    /// util-linux.
    pub fn start(command: &Command, columns: u16, rows: u16) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, size(columns, rows))?;
        let terminal = ioctl_tiocgptpeer(&master, flags)?;
        // Only the leader of a new session gets a controlling terminal, whose changes of size are
        // signalled.
        let mut leader = Command::new("setsid");
        leader
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        let child = leader
            .env("TERM", "xterm-256color")
            .stdin(terminal.try_clone()?)
            .stdout(terminal.try_clone()?)
            .stderr(terminal.try_clone()?)
            .spawn()?;
        let keyboard = File::from(master);
        let screen = Screen(Arc::new(Mutex::new(Parser::new(rows, columns, 0))));
        let (mut output, shown) = (keyboard.try_clone()?, screen.clone());
        // Ends with the terminal, when the program and this value are gone.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().process(&bytes[..length]);
            }
        });
        Ok(Self {
            child,
            keyboard,
            terminal,
            screen,
        })
    }

    /// Types keys. Escape is `\u{1b}`, Enter `\r`.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn keys(&mut self, keys: &str) -> io::Result<()> {
        self.keyboard.write_all(keys.as_bytes())
    }

    /// The screen as text.
    pub fn text(&self) -> String {
        self.screen.lock().screen().contents()
    }

    /// Waits until the screen satisfies `enough`; returns its text.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub async fn until(&self, what: &str, enough: impl Fn(&str) -> bool) -> String {
        let text = || async { self.text() };
        eventually(what, text, |text| enough(text)).await
    }

    /// Changes the size of the terminal.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        self.screen.lock().screen_mut().set_size(rows, columns);
        Ok(tcsetwinsize(&self.keyboard, size(columns, rows))?)
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the terminal is as a shell expects it: echo, lines, the main screen, a
    /// cursor.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn is_restored(&self) -> io::Result<bool> {
        let modes = tcgetattr(&self.terminal)?.local_modes;
        let is_cooked = modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        let parser = self.screen.lock();
        let screen = parser.screen();
        Ok(is_cooked && !screen.alternate_screen() && !screen.hide_cursor())
    }

    /// Waits until the terminal [is restored](Self::is_restored): what a program has written last
    /// may be read after its end.
    ///
    /// # Panics
    ///
    /// If it is not in time.
    pub async fn until_restored(&self) {
        let restored = || async { self.is_restored().map_err(|error| error.to_string()) };
        let is_true = |restored: &Result<bool, String>| *restored == Ok(true);
        let _seen = eventually(&format!("{self:?} is restored"), restored, is_true).await;
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    ///
    /// If it does not end in time.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = Mutex::new(&mut self.child);
        let status = || async {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            child.try_wait().ok().flatten()
        };
        let status = eventually("the program ends", status, Option::is_some).await;
        status.unwrap_or_default()
    }
}

impl Drop for TerminalProgram {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
