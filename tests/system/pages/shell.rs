//! Runs one bash process per documentation page, in a separate directory, with this build's `howdah` first in its PATH.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{markdown::Block, root};
use crate::support::*;

/// Script that replaces `cargo run`, which would rebuild the program.
const CARGO: &str = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec howdah \"$@\"\n";

/// Exit status and output of a command.
pub(super) struct Came {
    pub(super) status: i32,
    pub(super) output: String,
}

pub(super) struct Shell {
    bash: Child,
    group: Pid,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    outputs: usize,
    directory: TempDir,
    /// Pairs of an address that the page shows and the address that this run uses.
    real: Vec<(String, String)>,
    /// A broker, if the page does not start one.
    _broker: Option<ServingProgram>,
}

impl Shell {
    /// Starts bash, and also a broker if the page expects a running one.
    pub(super) async fn start(blocks: &[Block]) -> Self {
        let directory = open_directory();
        let path = |name: &str| directory.path().join(name);
        prepare(directory.path());
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc"]).current_dir(path("root")).kill_on_drop(true).process_group(0);
        bash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let first = [path("bin")].into_iter().chain(std::env::var_os("HOWDAH_PG_BIN").map(PathBuf::from));
        // Adds the program directory of the tests' Postgres at the end of PATH, for machines whose only psql was
        // downloaded with Postgres.
        let all = first.chain(std::env::split_paths(&inherited)).chain([postgres_programs().await]);
        let all = std::env::join_paths(all).expect("a path");
        bash.env("PATH", all).env("HOME", directory.path()).env("no_proxy", "*").env("PSQLRC", "/dev/null");
        // Gives the page's brokers free ports and a data directory by environment variables, so that commands can run as they
        // are shown.
        bash.env("HOWDAH_LISTEN", "127.0.0.1:0").env("HOWDAH_HTTP", "127.0.0.1:0").env("HOWDAH_DATA_DIR", path("data"));
        let secret = path("secret");
        let mut real = vec![
            ("8080".to_owned(), unused_address().port().to_string()),
            ("/run/secrets/howdah".to_owned(), secret.display().to_string()),
        ];
        let mut broker = None;
        // Pages with `howdah dev` need no database, because `howdah dev` starts Postgres itself.
        if !blocks.iter().any(|block| block.has(is_dev)) {
            let database = database().await;
            bash.env("DSN", &database.url).env("URL", &database.url);
            fs::write(secret, &database.url).expect("a secret");
            if !blocks.iter().any(|block| block.has(is_broker)) {
                let serving = Program::serve(&database, &["--http-enqueue"]).await;
                bash.env("HOWDAH_SERVER", serving.address());
                real.extend(addresses(serving.address(), serving.http.trim_start_matches("http://")));
                broker = Some(serving);
            }
        }
        let mut bash = bash.spawn().expect("bash");
        let group = Pid::from_raw(bash.id().expect("it runs") as i32).expect("a pid");
        let (input, answers) = (bash.stdin.take().expect("stdin"), bash.stdout.take().expect("stdout"));
        let answers = BufReader::new(answers).lines();
        Self { bash, group, input, answers, outputs: 0, directory, real, _broker: broker }
    }

    /// Runs a command to its end. If the command is a broker, or a worker without an end, it keeps running, and the call
    /// returns when the broker is ready.
    pub(super) async fn command(&mut self, command: &str) -> Came {
        let command = self.real(command);
        let (broker, worker) = (is_broker(&command), is_endless_worker(&command));
        let output = self.directory.path().join(format!("output/{}", self.outputs));
        self.outputs += 1;
        let to = format!(">'{}' 2>&1 </dev/null", output.display());
        let script = if broker || worker {
            format!("{{ exec env {command}\n}} {to} &\n{}+=($!)\n", if broker { "brokers" } else { "workers" })
        } else {
            format!("{{\n{command}\n}} {to}\n")
        };
        self.input.write_all(format!("{script}echo $? >&1\n").as_bytes()).await.expect("bash");
        let event = format!("the end of {command}");
        let status = with_timeout(&event, self.answers.next_line()).await.expect("read").expect("bash is there");
        let read = || fs::read_to_string(&output).unwrap_or_default();
        if broker {
            eventually("a ready broker", async || read().lines().any(|line| line.starts_with("ready "))).await;
        }
        // Pages show only the `ready` line of a broker's output. For other commands, the filter removes lines about killed
        // programs, which bash prints at unpredictable times.
        let is_shown = |line: &&str| if broker { line.starts_with("ready ") } else { !is_obituary(line) };
        let output = read().lines().filter(is_shown).map(|line| format!("{line}\n")).collect();
        Came { status: status.parse().expect("a status"), output }
    }

    /// Starts an interactive command. Returns the files for its input and its output.
    pub(super) async fn typed(&mut self, command: &str) -> (PathBuf, PathBuf) {
        let [input, output] =
            ["in", "out"].map(|end| self.directory.path().join(format!("output/{}.{end}", self.outputs)));
        self.outputs += 1;
        let (from, to, command) = (input.display(), output.display(), self.real(command));
        let script = format!("mkfifo '{from}'\n{{ exec env {command}\n}} <'{from}' >'{to}' 2>&1 &\necho $? >&1\n");
        self.input.write_all(script.as_bytes()).await.expect("bash");
        with_timeout("the start of a command", self.answers.next_line()).await.expect("read").expect("bash is there");
        (input, output)
    }

    /// From now on, replaces a text that the page shows by its real value.
    pub(super) fn put(&mut self, shown: &str, real: &str) {
        self.real.push((shown.to_owned(), real.to_owned()));
    }

    /// Runs SQL statements with psql.
    pub(super) async fn sql(&mut self, statements: &str) -> Came {
        let file = self.directory.path().join("block.sql");
        fs::write(&file, self.real(statements)).expect("a file");
        self.command(&format!("psql \"$DSN\" -qAtX -v ON_ERROR_STOP=1 -f '{}'", file.display())).await
    }

    /// Replaces the example addresses in a documentation page by the addresses of the running broker.
    pub(super) fn real(&self, text: &str) -> String {
        self.real.iter().fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    /// Learns the real addresses of the page's broker by comparing the shown and the actual `ready` line.
    pub(super) async fn learn(&mut self, shown: &str, came: &str) {
        let word = |line: &str, name: &str| {
            line.split_whitespace().find_map(|word| word.strip_prefix(name)).map(str::to_owned)
        };
        let Some(came) = came.lines().find(|line| line.starts_with("ready ")) else { return };
        let (grpc, http) = (word(came, "grpc=").expect("grpc"), word(came, "http=").expect("http"));
        self.real.extend(addresses(&grpc, &http));
        if let (Some(shown), Some(came)) = (word(shown, "postgres="), word(came, "postgres=")) {
            self.real.push((shown, came));
        }
        self.input.write_all(format!("export HOWDAH_SERVER={grpc}\n").as_bytes()).await.expect("bash");
    }

    /// Stops all running programs: workers first, because brokers would wait for workers to drain.
    pub(super) async fn end(mut self) {
        let script = "[ -z \"$workers\" ] || kill -9 \"${workers[@]}\" || echo a worker has ended
                      [ -z \"$brokers\" ] || kill \"${brokers[@]}\" || echo a broker has ended
                      [ -z \"$brokers\" ] || wait \"${brokers[@]}\"
                      echo over; exit\n";
        self.input.write_all(script.as_bytes()).await.expect("bash");
        let answer = with_timeout("the end of the page", self.answers.next_line()).await.expect("read");
        assert_eq!(answer.as_deref(), Some("over"), "a background program ended before the page did");
        with_timeout("the end of the page", self.bash.wait()).await.expect("wait");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Kills all remaining processes that bash started.
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

/// Returns a program that the page uses and that is missing on this machine. (Postgres programs are downloaded together with
/// Postgres.)
pub(super) fn missing_program(blocks: &[Block]) -> Option<&'static str> {
    type IsUsed = fn(&str) -> bool;
    const USES: [(&str, IsUsed); 6] = [
        ("buf", |command| command.contains("buf curl ")),
        ("grpcurl", |command| command.starts_with("grpcurl ")),
        ("curl", |command| command.contains("curl ")),
        ("openssl", |command| command.contains("openssl ")),
        ("python3", |command| command.contains("python3 ")),
        ("rev", |command| command.contains("rev")),
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    let used = USES.iter().filter(|(_, uses)| blocks.iter().any(|block| block.has(*uses)));
    used.map(|(program, _)| *program).find(|program| !is_there(program))
}

/// Fills the page's directory with the `howdah` program and the examples of the repository.
fn prepare(directory: &Path) {
    for name in ["bin", "output", "root"] {
        fs::create_dir(directory.join(name)).expect("a directory");
    }
    symlink(howdah(), directory.join("bin/howdah")).expect("howdah");
    symlink(root().join("examples"), directory.join("root/examples")).expect("examples");
    let cargo = directory.join("bin/cargo");
    fs::write(&cargo, CARGO).expect("cargo");
    // Silences curl, which shows a progress meter when its output goes to a file.
    fs::write(directory.join(".curlrc"), "silent\nshow-error\n").expect(".curlrc");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Pairs of an address in the pages and the real address of this run.
fn addresses(grpc: &str, http: &str) -> [(String, String); 2] {
    [("127.0.0.1:7432".into(), grpc.into()), ("127.0.0.1:7433".into(), http.into())]
}

fn has_words(command: &str, words: &[&str]) -> bool {
    let all: Vec<&str> = command.split_whitespace().collect();
    all.windows(words.len()).any(|window| window == words)
}

/// Whether a line is bash's message about a killed process, such as `bash: line 7: 4711 Killed …`.
fn is_obituary(line: &str) -> bool {
    line.starts_with("bash: line ") && line.contains(" Killed ")
}

fn is_dev(command: &str) -> bool {
    has_words(command, &["howdah", "dev"]) || has_words(command, &["cargo", "run", "--", "dev"])
}

fn is_broker(command: &str) -> bool {
    is_dev(command) || has_words(command, &["howdah", "serve"])
}

fn is_endless_worker(command: &str) -> bool {
    let ends = |word: &str| word.starts_with("--drain") || ["--max-jobs", "--max-age", "&"].contains(&word);
    let works = has_words(command, &["howdah", "work"]) || has_words(command, &["howdah", "--log", "off", "work"]);
    works && !command.split_whitespace().any(ends)
}
