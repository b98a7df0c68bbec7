//! A client's adapter: a process that receives commands and returns answers and events.

use std::{
    collections::{BTreeMap, HashMap},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot, watch},
};

use crate::{dynamic, log::Log};

/// Time within which the adapter must answer `hello`. Long, because some languages compile or warm up first.
const START: Duration = Duration::from_secs(60);

/// A running adapter. It is killed when dropped.
pub(crate) struct Adapter {
    pub(crate) events: Log,
    pub(crate) name: String,
    pid: i32,
    commands: mpsc::UnboundedSender<String>,
    waiting: Arc<Mutex<Waiting>>,
    next: AtomicU64,
    stderr: Arc<Mutex<String>>,
    ended: watch::Receiver<Option<String>>,
    _child: Arc<tokio::sync::Mutex<Child>>,
}

#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    /// Lines on standard output that are neither answers nor events.
    other_lines: Vec<String>,
    closed: bool,
}

impl Adapter {
    pub(crate) async fn start(command: &str, environment: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start the adapter: {error}"))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err("bug: the adapter was started without pipes".to_owned());
        };
        let (commands, mut lines) = mpsc::unbounded_channel::<String>();
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let (events, waiting, text) = (Log::default(), Arc::<Mutex<Waiting>>::default(), Arc::default());
        tokio::spawn(read_answers(stdout, events.clone(), waiting.clone()));
        tokio::spawn(read_log(stderr, Arc::clone(&text)));
        let pid = child.id().unwrap_or_default() as i32;
        let child = Arc::new(tokio::sync::Mutex::new(child));
        let ended = watch_end(&child);
        let next = AtomicU64::new(1);
        let name = String::new();
        let mut adapter = Self { events, name, pid, commands, waiting, next, stderr: text, ended, _child: child };
        let hello = adapter.command("hello", Map::new(), START).await;
        let hello = hello.and_then(|answer| answer.get("ok").cloned().ok_or_else(|| format!("hello: {answer}")));
        let hello = hello.map_err(|why| format!("{why}; its standard error ends with: {}", adapter.log_tail()))?;
        if hello.get("protocol") != Some(&json!(1)) {
            return Err(format!("the answer to hello must have protocol 1, got {hello}"));
        }
        hello.get("client").and_then(Value::as_str).unwrap_or("a client").clone_into(&mut adapter.name);
        adapter.pid = hello.get("pid").and_then(Value::as_i64).map_or(pid, |pid| pid as i32);
        Ok(adapter)
    }

    /// Sends a command to the adapter and waits for the answer.
    pub(crate) async fn command(
        &self,
        verb: &str,
        fields: Map<String, Value>,
        within: Duration,
    ) -> Result<Value, String> {
        self.answer(verb, self.send(verb, fields)?, within).await
    }

    /// Sends a command to the adapter. The returned receiver gets the answer.
    pub(crate) fn send(&self, verb: &str, fields: Map<String, Value>) -> Result<oneshot::Receiver<Value>, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = fields;
        command.insert("id".to_owned(), json!(id));
        command.insert("do".to_owned(), json!(verb));
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                return Err(self.ended_error(verb));
            }
            waiting.answers.insert(id, sender);
        }
        let line = format!("{}\n", Value::Object(command));
        self.commands.send(line).map_err(|_| self.ended_error(verb))?;
        Ok(answer)
    }

    pub(crate) async fn answer(
        &self,
        verb: &str,
        answer: oneshot::Receiver<Value>,
        within: Duration,
    ) -> Result<Value, String> {
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(self.ended_error(verb)),
            Err(_) => Err(format!("no answer to {verb} within {within:?}")),
        }
    }

    fn ended_error(&self, verb: &str) -> String {
        format!("the adapter ended before it answered {verb}: {}", self.log_tail())
    }

    /// Sends a signal to the process whose id the adapter reported in `hello`.
    pub(crate) fn signal(&self, name: &str) -> Result<(), String> {
        let signal = match name {
            "TERM" => rustix::process::Signal::TERM,
            "KILL" => rustix::process::Signal::KILL,
            _ => return Err(format!("unknown signal {name}: expected TERM or KILL")),
        };
        let pid = rustix::process::Pid::from_raw(self.pid)
            .ok_or("cannot send a signal: the adapter's answer to hello has no valid pid")?;
        rustix::process::kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Waits until the adapter's process has ended, and returns its status, such as `exit status: 0`. Returns `None`
    /// after the timeout.
    pub(crate) async fn exit(&self, within: Duration) -> Option<String> {
        let mut ended = self.ended.clone();
        let wait = ended.wait_for(Option::is_some);
        tokio::time::timeout(within, wait).await.ok()?.ok()?.clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.waiting.lock().closed
    }

    /// Returns the standard error of the adapter so far.
    pub(crate) fn logged(&self) -> String {
        self.stderr.lock().clone()
    }

    /// Takes the lines on standard output that are neither answers nor events.
    pub(crate) fn other_lines(&self) -> Vec<String> {
        std::mem::take(&mut self.waiting.lock().other_lines)
    }

    pub(crate) fn log_tail(&self) -> String {
        let text = self.stderr.lock();
        let start = text.floor_char_boundary(text.len().saturating_sub(1_500));
        text[start..].trim().to_owned()
    }
}

fn watch_end(child: &Arc<tokio::sync::Mutex<Child>>) -> watch::Receiver<Option<String>> {
    let (sender, ended) = watch::channel(None);
    let child = Arc::downgrade(child);
    tokio::spawn(async move {
        // Hold only a weak reference to the process, so that dropping the adapter kills it.
        while let Some(child) = child.upgrade() {
            let status =
                tokio::time::timeout(Duration::from_millis(50), async { child.lock().await.wait().await }).await;
            if let Ok(status) = status {
                sender.send_replace(Some(status.map_or_else(|error| error.to_string(), |status| status.to_string())));
                return;
            }
        }
    });
    ended
}

async fn read_answers(stdout: impl AsyncRead + Unpin, events: Log, waiting: Arc<Mutex<Waiting>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(mut value) = serde_json::from_str::<Value>(&line) else {
            waiting.lock().other_lines.push(line);
            continue;
        };
        if value.get("event").is_some() {
            if value["event"] == "started" {
                dynamic::normalize("howdah.v1.LeasedJob", value.get_mut("job"));
            }
            events.push(value);
        } else if let Some(sender) =
            value.get("id").and_then(Value::as_u64).and_then(|id| waiting.lock().answers.remove(&id))
        {
            // Sending fails if the runner no longer waits for this answer, for example after a timeout.
            let _ = sender.send(value);
        } else {
            waiting.lock().other_lines.push(line);
        }
    }
    let mut waiting = waiting.lock();
    waiting.closed = true;
    waiting.answers.clear();
}

async fn read_log(stderr: impl AsyncRead + Unpin, text: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut text = text.lock();
        text.push_str(&line);
        text.push('\n');
    }
}
