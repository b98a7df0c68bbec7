//! A pseudo-terminal in which a test runs a program.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::Stdio,
    sync::{Arc, Mutex},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};
use tokio::{process::Child, sync::watch};

use crate::support::*;

/// A `howdah` process in a terminal of 80x24 characters; killed when dropped.
pub struct Terminal {
    pub child: Child,
    master: File,
    slave: File,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
    changed: watch::Receiver<usize>,
}

impl Terminal {
    pub fn start(args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("grant");
        unlockpt(&master).expect("unlock");
        let path = ptsname(&master, Vec::new()).expect("its name");
        let slave = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end");
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("its size");
        let before = tcgetattr(&slave).expect("its modes");
        let (master, slave) = (File::from(master), File::from(slave));
        let end = || Stdio::from(slave.try_clone().expect("a copy"));
        let mut command = tokio::process::Command::new(howdah());
        command.args(args).env("TERM", "xterm").kill_on_drop(true).stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("start howdah");
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (change, changed) = watch::channel(0);
        let (mut reader, into) = (master.try_clone().expect("a copy"), shown.clone());
        // The reading thread ends when both ends of the terminal are closed.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..read]);
                change.send_modify(|count| *count += read);
            }
        });
        Self { child, master, slave, before, shown, changed }
    }

    /// Waits until the program has written this text, after the text of the previous call.
    pub async fn shows(&mut self, words: &str) {
        let shown = self.shown.clone();
        let found = move |_: &usize| {
            let mut bytes = shown.lock().unwrap();
            let at = bytes.windows(words.len()).position(|window| window == words.as_bytes());
            at.is_some_and(|at| bytes.drain(..at + words.len()).count() > 0)
        };
        with_timeout(words, self.changed.wait_for(found)).await.expect("the terminal is open");
    }

    pub fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("a key");
    }

    /// Waits until the program has ended. The program must restore the terminal.
    pub async fn ended(mut self) -> std::process::ExitStatus {
        self.shows("\x1b[?1049l").await; // leaves the alternate screen
        let status = with_timeout("the end", self.child.wait()).await.expect("wait");
        let after = tcgetattr(&self.slave).expect("its modes");
        let modes =
            |termios: &Termios| (termios.input_modes, termios.output_modes, termios.control_modes, termios.local_modes);
        assert_eq!(modes(&after), modes(&self.before));
        status
    }
}
