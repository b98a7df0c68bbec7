//! Simulates operators with open pages: each browser follows the live figures and loads one view after the other.

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

/// Interval at which each simulated browser loads a view.
const EVERY: Duration = Duration::from_secs(2);
/// Timeout of a view.
const WITHIN: Duration = Duration::from_secs(20);
/// Maximum size of a view in bytes.
const MOST: u64 = 4 << 20;
/// Pause before a browser reconnects to the live figures.
const AGAIN: Duration = Duration::from_millis(500);

/// Counters of all open pages.
#[derive(Debug)]
pub(crate) struct PageStats {
    /// Load times of the views, in microseconds.
    times: Mutex<Micros>,
    /// Views that failed to load.
    failed: AtomicU64,
    /// Live figures received.
    figures: AtomicU64,
}

/// Open pages, closed when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    _tasks: JoinSet<()>,
}

impl PageStats {
    /// Creates empty counters.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let times = Micros::new_with_bounds(1, 60_000_000, 3).map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Arc::new(Self { times: Mutex::new(times), failed: AtomicU64::new(0), figures: AtomicU64::new(0) }))
    }

    /// Number of views loaded.
    pub(crate) fn views(&self) -> u64 {
        self.times.lock().len()
    }

    /// A percentile of the load times, in milliseconds.
    pub(crate) fn percentile_ms(&self, percentile: f64) -> f64 {
        self.times.lock().value_at_percentile(percentile) as f64 / 1e3
    }

    /// Number of live figures received.
    pub(crate) fn figures(&self) -> u64 {
        self.figures.load(Relaxed)
    }

    /// Fails if views failed or none were loaded, which would make the measurement meaningless.
    pub(crate) fn check(&self) -> Result<()> {
        let failed = self.failed.load(Relaxed);
        if failed > 0 || self.views() == 0 || self.figures() == 0 {
            let (views, figures) = (self.views(), self.figures());
            let problem = format!("{views} views and {figures} live figures were received, {failed} views failed");
            return Err(Error::Process(format!("the open pages did not load as expected: {problem}")));
        }
        Ok(())
    }
}

impl Pages {
    /// Opens `count` pages at the HTTP address `http` of a broker. They show jobs of this type.
    pub(crate) fn open(count: usize, http: &str, task_type: &str, stats: &Arc<PageStats>) -> Self {
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
            tasks.spawn(follow(http.to_owned(), stats.clone()));
            // Spread the start of the pages, so that their requests do not coincide.
            let after = EVERY.mul_f64(number as f64 / count as f64);
            tasks.spawn(reload(http.to_owned(), views.clone(), number, after, stats.clone()));
        }
        Self { _tasks: tasks }
    }
}

/// Loads the views in turn.
async fn reload(http: String, views: [String; 7], first: usize, after: Duration, stats: Arc<PageStats>) {
    sleep(after).await;
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for view in views.iter().cycle().skip(first % views.len()) {
        tick.tick().await;
        let began = Instant::now();
        match timeout(WITHIN, load(&http, view)).await {
            Ok(Ok(true)) => stats.times.lock().saturating_record(began.elapsed().as_micros() as u64),
            _ => drop(stats.failed.fetch_add(1, Relaxed)),
        }
    }
}

/// Loads a view. Returns whether it is complete.
async fn load(http: &str, path: &str) -> io::Result<bool> {
    let mut stream = ask(http, path).await?;
    let mut answer = Vec::new();
    (&mut stream).take(MOST).read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 ") && answer.windows(7).any(|end| end == b"</html>"))
}

/// Follows the live figures, and reconnects when the stream ends.
async fn follow(http: String, stats: Arc<PageStats>) {
    loop {
        if let Ok(mut stream) = ask(&http, "/ui/live").await {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                // An event is short and arrives in one read.
                if bytes[..count].windows(6).any(|begin| begin == b"data: ") {
                    stats.figures.fetch_add(1, Relaxed);
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Sends a request on a new connection.
async fn ask(http: &str, path: &str) -> io::Result<TcpStream> {
    let address = http.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}
