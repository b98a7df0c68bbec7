//! People who look at the page for operators: each browser follows the live figures, and loads another view again and again.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::Micros;
use crate::error::{Error, Result};

/// How often a browser loads a view.
const EVERY: Duration = Duration::from_secs(2);
/// How long a view may take.
const WITHIN: Duration = Duration::from_secs(20);
/// The most bytes of a view.
const MOST: u64 = 4 << 20;
/// How long a browser waits until it follows the figures again.
const AGAIN: Duration = Duration::from_millis(500);

/// What they have seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Times of the views, in microseconds.
    times: Mutex<Micros>,
    /// Views that were not shown.
    failed: AtomicU64,
    /// Live figures that have come.
    figures: AtomicU64,
}

/// Open pages, until this is dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    _tasks: JoinSet<()>,
}

impl Seen {
    /// Nothing yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let times = Micros::new_with_bounds(1, 60_000_000, 3).map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Arc::new(Self { times: Mutex::new(times), failed: AtomicU64::new(0), figures: AtomicU64::new(0) }))
    }

    /// How many views were shown.
    pub(crate) fn views(&self) -> u64 {
        self.times.lock().len()
    }

    /// A percentile of their times, in milliseconds.
    pub(crate) fn percentile_ms(&self, percentile: f64) -> f64 {
        self.times.lock().value_at_percentile(percentile) as f64 / 1e3
    }

    /// How many live figures have come.
    pub(crate) fn figures(&self) -> u64 {
        self.figures.load(Relaxed)
    }

    /// An error if nobody has looked: then nothing was measured.
    pub(crate) fn check(&self) -> Result<()> {
        let failed = self.failed.load(Relaxed);
        if failed > 0 || self.views() == 0 || self.figures() == 0 {
            let (views, figures) = (self.views(), self.figures());
            let problem = format!("{views} views and {figures} live figures came, {failed} views failed");
            return Err(Error::Process(format!("the page was not looked at: {problem}")));
        }
        Ok(())
    }
}

impl Pages {
    /// Opens so many, of a broker whose HTTP port is at this address. They look at the jobs of this type.
    pub(crate) fn open(count: usize, http: &str, task_type: &str, seen: &Arc<Seen>) -> Self {
        let mut tasks = JoinSet::new();
        let views = [
            "/ui/".to_owned(),
            "/ui/types".to_owned(),
            format!("/ui/type?name={task_type}"),
            format!("/ui/jobs?type={task_type}&state=ready"),
            format!("/ui/statistics?type={task_type}&over=2h"),
            "/ui/workers".to_owned(),
            "/ui/failures".to_owned(),
        ];
        for number in 0..count {
            tasks.spawn(follow(http.to_owned(), seen.clone()));
            // One after the other, so that they do not all ask at once.
            let after = EVERY.mul_f64(number as f64 / count as f64);
            tasks.spawn(reload(http.to_owned(), views.clone(), number, after, seen.clone()));
        }
        Self { _tasks: tasks }
    }
}

/// Loads the views in turn.
async fn reload(http: String, views: [String; 7], first: usize, after: Duration, seen: Arc<Seen>) {
    sleep(after).await;
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for view in views.iter().cycle().skip(first % views.len()) {
        tick.tick().await;
        let began = Instant::now();
        match timeout(WITHIN, load(&http, view)).await {
            Ok(Ok(true)) => seen.times.lock().saturating_record(began.elapsed().as_micros() as u64),
            _ => drop(seen.failed.fetch_add(1, Relaxed)),
        }
    }
}

/// Whether a view is shown.
async fn load(http: &str, path: &str) -> io::Result<bool> {
    let mut stream = ask(http, path).await?;
    let mut answer = Vec::new();
    (&mut stream).take(MOST).read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 ") && answer.windows(7).any(|end| end == b"</html>"))
}

/// Follows the live figures, and begins again when a stream ends.
async fn follow(http: String, seen: Arc<Seen>) {
    loop {
        if let Ok(mut stream) = ask(&http, "/ui/live").await {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                // An event is short, and comes at once.
                if bytes[..count].windows(6).any(|begin| begin == b"data: ") {
                    seen.figures.fetch_add(1, Relaxed);
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Asks for a path, as a browser does whose connection is new.
async fn ask(http: &str, path: &str) -> io::Result<TcpStream> {
    let address = http.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}
