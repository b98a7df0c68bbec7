//! Runs the real `howdah` program, for tests that kill it.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout},
    task::JoinHandle,
};

use tempfile::NamedTempFile;

use super::{Service, TestDatabase, stores, with_timeout};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/system is a folder of the checkout")
}

/// Path of the program `howdah`: from `HOWDAH_BIN`, or built once with the features and profile of this test run.
pub fn howdah() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(given) = std::env::var_os("HOWDAH_BIN") {
            return given.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--bin", "howdah", "--quiet", "--message-format=json"]);
        if cfg!(feature = "archive") {
            build.args(["--features", "archive"]);
        }
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let output = build.current_dir(root()).stderr(Stdio::inherit()).output().expect("cargo");
        assert!(output.status.success(), "building howdah failed");
        let text = String::from_utf8_lossy(&output.stdout);
        let executables = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        executables
            .filter(|message| message["target"]["name"] == "howdah")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .expect("cargo names the executable")
    })
    .clone()
}

/// A running `howdah` process; killed when dropped.
pub struct Program {
    pub child: Child,
    pub stdout: Lines<BufReader<ChildStdout>>,
    /// File with the standard error of the program; `None` if standard error is inherited or read by the test.
    log: Option<std::fs::File>,
    /// The program's configuration file, if it serves several stores.
    _config: Option<NamedTempFile>,
}

impl Program {
    /// Starts `howdah` with these arguments.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// Starts `howdah` with these arguments and environment variables.
    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        if std::env::var_os("HOWDAH_TEST_LOGS").is_some() {
            return Self::spawn(args, env, Stdio::inherit());
        }
        Self::noted(args, env)
    }

    /// Starts `howdah` for a test that reads its errors with `last_words` while it runs.
    pub fn noted(args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = tempfile::tempfile().expect("a file");
        let stderr = log.try_clone().expect("a file").into();
        Self { log: Some(log), ..Self::spawn(args, env, stderr) }
    }

    fn spawn(args: &[&str], env: &[(&str, &str)], stderr: Stdio) -> Self {
        let mut command = tokio::process::Command::new(howdah());
        command.args(args).envs(env.iter().copied()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("start howdah");
        let stdout = BufReader::new(child.stdout.take().expect("stdout")).lines();
        Self { child, stdout, log: None, _config: None }
    }

    /// Starts a broker on free ports and waits until it is ready.
    pub async fn serve(database: &TestDatabase, more: &[&str]) -> ServingProgram {
        let config = stores::file(database).await;
        let program = Self::start(&serve_args(database, config.as_ref(), more));
        Self { _config: config, ..program }.ready(database).await
    }

    /// Starts a broker on several named stores.
    pub async fn serve_stores(stores: &[(&str, &TestDatabase)]) -> ServingProgram {
        let pairs: Vec<String> = stores.iter().map(|(name, database)| format!("{name}={}", database.url)).collect();
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        pairs.iter().for_each(|pair| args.extend(["--store", pair]));
        Self::start(&args).ready(stores[0].1).await
    }

    /// Starts a broker with this configuration file, in which `first` is the first store.
    pub async fn serve_file(file: NamedTempFile, first: &TestDatabase) -> ServingProgram {
        let path = file.path().to_str().expect("a path").to_owned();
        let program = Self::start(&["serve", "--config", &path, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        Self { _config: Some(file), ..program }.ready(first).await
    }

    /// Starts a broker with these environment variables and waits until it is ready.
    pub async fn serve_with(database: &TestDatabase, env: &[(&str, String)]) -> ServingProgram {
        let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let config = stores::file(database).await;
        let program = Self::start_with(&serve_args(database, config.as_ref(), &[]), &env);
        Self { _config: config, ..program }.ready(database).await
    }

    /// Starts a broker and collects its log. The log is complete when the program has ended.
    pub async fn serve_logged(database: &TestDatabase, more: &[&str]) -> (ServingProgram, JoinHandle<String>) {
        let config = stores::file(database).await;
        let program = Self::spawn(&serve_args(database, config.as_ref(), more), &[], Stdio::piped());
        let mut program = Self { _config: config, ..program };
        let mut log = program.child.stderr.take().expect("stderr");
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes).await.expect("read");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        (program.ready(database).await, reading)
    }

    async fn ready(mut self, database: &TestDatabase) -> ServingProgram {
        let ready = self.line().await;
        let address = |name: &str| {
            let address = ready.split_whitespace().find_map(|word| word.strip_prefix(name)).expect(&ready);
            format!("http://{address}")
        };
        let service = Service::at(address("grpc="), address("http="), database.clone());
        ServingProgram { program: self, service }
    }

    /// Resident memory of the process, in bytes.
    pub fn resident(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id().expect("it runs"));
        let status = std::fs::read_to_string(status).expect("status");
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        kib.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Reads the next line of the program's standard output.
    pub async fn line(&mut self) -> String {
        let line = with_timeout("a line of output", self.stdout.next_line()).await.expect("read");
        line.unwrap_or_else(|| panic!("the program ended: {}", self.last_words()))
    }

    /// Returns the end of the program's standard error.
    pub fn last_words(&self) -> String {
        use std::os::unix::fs::FileExt as _;
        let Some(log) = &self.log else { return String::new() };
        let bytes = log.metadata().expect("a size").len();
        let mut words = vec![0; bytes.min(4_096) as usize];
        let begin = bytes - words.len() as u64;
        log.read_exact_at(&mut words, begin).expect("read");
        String::from_utf8_lossy(&words).into_owned()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.id().expect("it runs") as i32;
        let pid = rustix::process::Pid::from_raw(pid).expect("pid");
        rustix::process::kill_process(pid, signal).expect("kill");
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        with_timeout("the end of the program", self.child.wait()).await.expect("wait")
    }
}

fn serve_args<'a>(database: &'a TestDatabase, config: Option<&'a NamedTempFile>, more: &[&'a str]) -> Vec<&'a str> {
    let stores = match config {
        Some(file) => ["--config", file.path().to_str().expect("a path")],
        None => ["--database-url", &database.url],
    };
    [&["serve"][..], &stores, &["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], more].concat()
}

/// A broker in a separate process.
pub struct ServingProgram {
    pub program: Program,
    service: Service,
}

impl ServingProgram {
    /// Kills the process with SIGKILL and waits for its end.
    pub async fn kill(&mut self) {
        self.program.signal(rustix::process::Signal::KILL);
        self.program.ended().await;
    }
}

impl Deref for ServingProgram {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

/// Creates a temporary directory that other users can enter, because Postgres and similar programs do not run as root.
pub fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

/// Id of a job or other object in the output of a command with `--json`.
pub fn id_of(object: &serde_json::Value) -> i64 {
    object["id"].as_str().and_then(|id| id.parse().ok()).expect("an id")
}

/// Runs `howdah` until it ends. Returns exit status, standard output and standard error.
pub async fn run(args: &[&str], stdin: &[u8]) -> (std::process::ExitStatus, String, String) {
    use tokio::io::AsyncWriteExt as _;
    let mut command = tokio::process::Command::new(howdah());
    command.args(args).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start howdah");
    let mut input = child.stdin.take().expect("stdin");
    // Ignore a write error, because the program may end without reading all input.
    let _ = input.write_all(stdin).await;
    drop(input);
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) = (child.stdout.take().expect("stdout"), child.stderr.take().expect("stderr"));
    let reading = async { tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
    let _ = with_timeout("the program's output", reading).await;
    let status = with_timeout("the end of the program", child.wait()).await.expect("wait");
    (status, out, err)
}

/// Whether to test the examples in a language. Tests skip a language that is not installed or whose `HOWDAH_SKIP_…` is set.
pub fn has_language(program: &str, skip: &str) -> bool {
    let skipped = std::env::var_os(skip).is_some_and(|value| value == "1");
    let found = std::process::Command::new(program).arg("--version").output().is_ok();
    if skipped || !found {
        eprintln!("left out: {}", if found { skip } else { program });
    }
    found && !skipped
}
