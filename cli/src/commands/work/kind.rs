//! Kinds of built-in workers, and their flags.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use howdah_client::{CancellationToken, Client, Outcome};
use howdah_core::config::UrlFile;
use reqwest::{
    Method, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};

use crate::{
    commands::{failure::Failure, input, values},
    secrets,
    workers::{
        attempt::{Attempt, MAX_RESULT_BYTES},
        exec::Exec,
        lines::{Lines, Replace},
        post::{Post, Secret, Target},
        process::Program,
        sql::{Database, Sql},
        watchman::Watchman,
    },
};

/// Kind of a built-in worker.
pub(super) enum Kind {
    /// Runs one process per job.
    Exec(Exec),
    /// Sends one line of JSON per job to a process that serves many jobs.
    Lines(Lines),
    /// Sends one HTTP request per job.
    Post(Box<Post>),
    /// Runs the SQL statements of each job in one transaction in a database.
    Sql(Box<Sql>),
}

impl Kind {
    /// Whether the worker passes the results of dependencies on, as a file.
    pub(super) fn takes_results(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Lines(_))
    }

    /// Runs an attempt of a job that this client has received.
    pub(super) async fn run(&self, client: &Client, attempt: &Attempt) -> Outcome {
        match self {
            Self::Exec(exec) => exec.run(attempt).await,
            Self::Lines(lines) => lines.run(attempt).await,
            Self::Post(post) => post.run(attempt).await,
            Self::Sql(sql) => sql.run(client, attempt).await,
        }
    }

    /// Releases resources. Called after the last job.
    pub(super) async fn close(&self) {
        match self {
            Self::Exec(_) | Self::Post(_) => {}
            Self::Lines(lines) => lines.close().await,
            Self::Sql(sql) => sql.close().await,
        }
    }
}

/// Flags that conflict with --exec and --argv. Options of these two flags list the conflicts too, because clap does not enforce
/// `requires` if the required flag conflicts with a given one.
const NOT_PROCESS: [&str; 2] = ["post", "sql"];
/// Flags that conflict with the options of --lines: the flags in `NOT_PROCESS`, and --max-output, which conflicts with --lines.
const NO_LINES: [&str; 3] = ["post", "sql", "max_output"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Processes")]
pub(super) struct ProcessArgs {
    /// Run this command for each job, with sh -c
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Run this program for each job, without a shell; the rest of the command line is its arguments
    #[arg(long, value_name = "PROGRAM [ARG]", num_args = 1.., allow_hyphen_values = true)]
    argv: Vec<String>,
    /// Let one process of --exec or --argv serve many jobs, as lines of JSON on its stdin and stdout
    #[arg(long, requires = "program", conflicts_with_all = ["post", "sql", "max_output"])]
    lines: bool,
    /// With --lines: run at most this many processes at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    processes: u32,
    /// With --lines: replace a process after this many jobs
    #[arg(long, value_name = "N", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = clap::value_parser!(u64).range(1..))]
    process_jobs: Option<u64>,
    /// With --lines: replace a process after this time
    #[arg(long, value_name = "DURATION", requires = "lines", conflicts_with_all = NO_LINES,
          value_parser = values::duration)]
    process_age: Option<Duration>,
    /// Pass only these variables and PATH to the command [default: all variables]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = variable, requires = "program",
          conflicts_with_all = NOT_PROCESS)]
    env: Option<Vec<String>>,
    /// Run the command in this directory
    #[arg(long, value_name = "DIR", requires = "program", conflicts_with_all = NOT_PROCESS)]
    dir: Option<PathBuf>,
    /// Maximum size of a result in bytes; with more, the command is killed or the statement is cancelled, and the job fails for
    /// good
    #[arg(long, value_name = "BYTES", default_value_t = MAX_RESULT_BYTES as u64, requires = "bounded", conflicts_with = "post",
          value_parser = clap::value_parser!(u64).range(1..=64 << 20))]
    pub(super) max_output: u64,
    /// Show the command's stderr
    #[arg(long, short, requires = "program", conflicts_with_all = NOT_PROCESS)]
    verbose: bool,
}

/// Checks a value of --env, the name of a variable. An empty name is accepted: `--env ''` passes no variable except PATH.
fn variable(name: &str) -> Result<String, String> {
    let is_bad = |c: char| c == '=' || c.is_control() || c.is_whitespace();
    match name.chars().find(|&c| is_bad(c)) {
        Some(bad) => {
            Err(format!("use only the variable's name, without {bad:?}; the worker's environment has its value"))
        }
        None => Ok(name.to_owned()),
    }
}

impl ProcessArgs {
    /// Creates the worker for processes, or returns `None` without `--exec` and `--argv`. `kill` kills the processes.
    pub(super) fn kind(&self, kill: &CancellationToken) -> Result<Option<Kind>, Failure> {
        let program = match &self.exec {
            Some(command) => Program::shell(command),
            None if !self.argv.is_empty() => Program::new(self.argv.clone()),
            None => return Ok(None),
        };
        if let Some(dir) = self.dir.as_deref()
            && !dir.is_dir()
        {
            return Err(Failure::usage(format!("--dir {} is not a directory", dir.display())));
        }
        let watchman = Watchman::start()
            .map_err(|error| Failure::failed(format!("cannot start the process that watches this worker: {error}")))?;
        let (env, dir, verbose) = (self.env.clone(), self.dir.clone(), self.verbose);
        let program = Program { env, dir, verbose, watchman: Some(watchman), ..program };
        if self.lines {
            let replace = Replace { after_jobs: self.process_jobs, after: self.process_age };
            return Ok(Some(Kind::Lines(Lines::new(program, self.processes as usize, replace, kill.clone()))));
        }
        Ok(Some(Kind::Exec(Exec { program, max_result: self.max_output as usize })))
    }
}

/// Environment variable with the secret that signs requests.
const SECRET: &str = "HOWDAH_POST_SECRET";

/// Default timeout of an HTTP request, including its answer.
const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags that conflict with --post. Options of --post list the conflicts too, because clap does not enforce `requires` if the
/// required flag conflicts with a given one.
const NOT_POST: [&str; 3] = ["exec", "argv", "sql"];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub(super) struct PostArgs {
    /// Send each job to this URL, with its payload as the body
    #[arg(long, value_name = "URL")]
    post: Option<Url>,
    /// Use this HTTP method
    #[arg(long, value_name = "METHOD", default_value = "POST", requires = "post",
          conflicts_with_all = NOT_POST)]
    method: Method,
    /// Add this header to each request; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "post", conflicts_with_all = NOT_POST, value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// Sign each request with the secret in this file, or in the variable HOWDAH_POST_SECRET
    #[arg(long, value_name = "FILE", requires = "post", conflicts_with_all = NOT_POST)]
    secret_file: Option<PathBuf>,
    /// Allow private, loopback and link-local addresses
    #[arg(long, requires = "post", conflicts_with_all = NOT_POST)]
    allow_private: bool,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write a header as NAME: VALUE")?;
    let name =
        HeaderName::try_from(name.trim()).map_err(|_| "the header's name has a character that is not allowed")?;
    let mut value =
        HeaderValue::try_from(value.trim()).map_err(|_| "the header's value has a character that is not allowed")?;
    // Marks the header value as sensitive, because it may be a credential.
    value.set_sensitive(true);
    Ok((name, value))
}

impl PostArgs {
    /// Creates the HTTP worker, or returns `None` without `--post`.
    pub(super) fn kind(&self, jobs: usize, timeout: Option<Duration>) -> Result<Option<Kind>, Failure> {
        let Some(url) = self.post.clone() else { return Ok(None) };
        let target = Target {
            url,
            method: self.method.clone(),
            headers: self.header.iter().cloned().collect::<HeaderMap>(),
            secret: self.secret()?,
            timeout: timeout.unwrap_or(POST_TIMEOUT),
            allow_private: self.allow_private,
            idle_connections: jobs,
        };
        let post = Post::new(target).map_err(|problem| Failure::usage(format!("--post {problem}")))?;
        Ok(Some(Kind::Post(Box::new(post))))
    }

    fn secret(&self) -> Result<Option<Secret>, Failure> {
        let (bytes, name) = match &self.secret_file {
            Some(file) => {
                let name = format!("--secret-file {}", file.display());
                let bytes = std::fs::read(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
                (bytes, name)
            }
            // An empty variable counts as unset.
            None => match secrets::var(SECRET) {
                Some(value) if !value.is_empty() => (value.into_bytes(), SECRET.to_owned()),
                _ => return Ok(None),
            },
        };
        let secret = Secret::new(bytes);
        secret
            .map(Some)
            .ok_or_else(|| Failure::usage(format!("{name} is empty: set a secret, preferably of 32 random bytes")))
    }
}

/// Default task type of SQL jobs.
pub(super) const SQL_TASK_TYPE: &str = "sql";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "SQL")]
pub(super) struct SqlArgs {
    /// Run each job as SQL in this database: a connection string, or env:NAME or file:PATH to read it from there, which keeps the
    /// password secret
    #[arg(long, value_name = "DSN")]
    sql: Option<String>,
    /// Add a database for jobs with the header sql-database NAME, and for jobs of the store NAME without that header;
    /// repeatable. With this flag, if the broker serves several stores, the token needs read:*
    #[arg(long, value_name = "NAME=DSN", requires = "sql",
          conflicts_with_all = ["exec", "argv", "post"], value_parser = named)]
    name: Vec<(String, String)>,
}

/// Parses `NAME=DSN`. Errors do not contain the DSN.
fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, dsn)) if is_database_name(name) && !dsn.is_empty() => Ok((name.to_owned(), dsn.to_owned())),
        _ => Err("write NAME=DSN, with a NAME of letters, digits and . _ -".into()),
    }
}

/// Returns whether the text is a valid name of a database.
pub(in crate::commands) fn is_database_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=200).contains(&name.len()) && name.bytes().all(fits)
}

impl SqlArgs {
    /// Creates the SQL worker, or returns `None` without `--sql`.
    pub(super) fn kind(&self, max_result: usize, timeout: Option<Duration>) -> Result<Option<Kind>, Failure> {
        let Some(given) = &self.sql else { return Ok(None) };
        let database = database("--sql", given, max_result)?;
        let mut others = BTreeMap::new();
        for (name, given) in &self.name {
            let flag = format!("--name {name}");
            if others.insert(name.clone(), self::database(&flag, given, max_result)?).is_some() {
                return Err(Failure::usage(format!("{flag} is given twice")));
            }
        }
        Ok(Some(Kind::Sql(Box::new(Sql::new(database, others, max_result, timeout)))))
    }
}

fn database(flag: &str, given: &str, max_result: usize) -> Result<Database, Failure> {
    let text = input::connection_string(flag, given)?;
    let file = given.strip_prefix("file:").map(|path| UrlFile::without_store(path.as_ref(), &text));
    Database::new(&text, file, max_result).map_err(|problem| Failure::usage(format!("{flag}: {problem}")))
}
