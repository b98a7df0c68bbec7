//! Writes rows to files with bounded memory. Rows wait for their row group, row groups for their file, files for their upload; each
//! stage applies backpressure to the stage before it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    Error, Job, Layout, Location, PartFile,
    columns::Columns,
    encode::{self, Encoded},
    schema::GROUP_ROWS,
};

/// Limits for the memory of [`Writer`] and [`crate::Export`], and for file sizes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Rows per row group, at most 65,536.
    pub group_rows: usize,
    /// Uncompressed bytes per row group.
    pub group_bytes: usize,
    /// Bytes of buffered rows, of all task types together.
    pub buffered_bytes: usize,
    /// Bytes per file.
    pub part_bytes: usize,
    /// Bytes of unfinished files, of all task types together.
    pub encoded_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            group_rows: GROUP_ROWS,
            group_bytes: 16 << 20,
            buffered_bytes: 32 << 20,
            part_bytes: 32 << 20,
            encoded_bytes: 48 << 20,
        }
    }
}

/// Called after each file that was written to its staging path.
pub type OnPart = Arc<dyn Fn() + Send + Sync>;

/// Writes the jobs of a day to staging paths. If dropped before [`Self::finish`], it leaves staged files, which the next run
/// deletes.
pub struct Writer {
    bounds: Bounds,
    buffered: HashMap<String, Columns>,
    bytes: usize,
    columns: mpsc::Sender<Columns>,
    encoder: oneshot::Receiver<Result<(), Error>>,
    uploader: JoinHandle<Result<Vec<PartFile>, Error>>,
    /// Bytes written so far, for progress reports.
    written: Arc<AtomicU64>,
    /// Busy time of the encoder, in microseconds.
    encoding: Arc<AtomicU64>,
}

impl Writer {
    /// Starts writing a day. `run` must be unique per archive run.
    pub fn begin(
        location: Location,
        layout: &Layout,
        day: &str,
        run: &str,
        bounds: Bounds,
        on_part: Option<OnPart>,
    ) -> Self {
        let (columns, to_encode) = mpsc::channel(1);
        let (encoded, files) = mpsc::channel(1);
        let encoding = Arc::<AtomicU64>::default();
        let encoder = encode::start(bounds, to_encode, encoded, encoding.clone());
        let written = Arc::<AtomicU64>::default();
        let names = Names { layout: layout.clone(), day: day.to_owned(), run: run.to_owned() };
        let uploader = tokio::spawn(upload(location, names, files, written.clone(), on_part));
        Self { bounds, buffered: HashMap::new(), bytes: 0, columns, encoder, uploader, written, encoding }
    }

    /// Adds a job. Jobs must arrive in ascending order of id.
    pub async fn push(&mut self, job: &Job<'_>) -> Result<(), Error> {
        if !self.buffered.contains_key(job.task_type) {
            self.buffered.insert(job.task_type.to_owned(), Columns::new(job.task_type));
        }
        let Some(columns) = self.buffered.get_mut(job.task_type) else { return Ok(()) };
        self.bytes += columns.push(job);
        if columns.rows() >= self.bounds.group_rows || columns.bytes() >= self.bounds.group_bytes {
            self.hand_over(job.task_type.to_owned()).await?;
        }
        while self.bytes > self.bounds.buffered_bytes {
            let largest = self.buffered.iter().max_by_key(|(_, columns)| columns.bytes()).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            self.hand_over(largest).await?;
        }
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Busy time of the encoder thread.
    pub fn encoding(&self) -> Duration {
        Duration::from_micros(self.encoding.load(Ordering::Relaxed))
    }

    async fn hand_over(&mut self, task_type: String) -> Result<(), Error> {
        let Some(columns) = self.buffered.remove(&task_type) else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(columns.bytes());
        if self.columns.send(columns).await.is_err() {
            // The channel is closed because the encoder or the upload failed. `why_ended` returns that error.
            return Err(Error::Ended("the thread that encodes the archive's files has ended".into()));
        }
        Ok(())
    }

    /// Writes the remaining rows, and returns the manifest entries of all files.
    pub async fn finish(mut self) -> Result<Vec<PartFile>, Error> {
        let mut left: Vec<_> = self.buffered.keys().cloned().collect();
        left.sort();
        let mut handed_over = Ok(());
        for task_type in left {
            handed_over = handed_over.and(self.hand_over(task_type).await);
        }
        self.why_ended(handed_over).await
    }

    /// Ends the writer after an error of [`Self::push`], and returns the cause: the error of the encoder or of the upload.
    pub async fn failed(self, error: Error) -> Error {
        self.why_ended(Err(error)).await.err().unwrap_or_else(|| {
            Error::Ended("bug: the archive writer failed, but neither its encoder nor its upload did".into())
        })
    }

    async fn why_ended(self, so_far: Result<(), Error>) -> Result<Vec<PartFile>, Error> {
        drop(self.columns);
        let ended = |error: tokio::task::JoinError| Error::Ended(error.to_string());
        // Return an error of the uploader first: if the upload fails, the encoder only reports a closed channel.
        let uploaded = self.uploader.await.map_err(ended)?;
        let encoded = self.encoder.await.map_err(|_| {
            Error::Ended("the thread that encodes the archive's files did not start, or panicked".into())
        })?;
        let files = uploaded?;
        encoded?;
        so_far.map(|()| files)
    }
}

struct Names {
    layout: Layout,
    day: String,
    run: String,
}

async fn upload(
    location: Location,
    names: Names,
    mut files: mpsc::Receiver<Encoded>,
    written: Arc<AtomicU64>,
    on_part: Option<OnPart>,
) -> Result<Vec<PartFile>, Error> {
    let mut parts: Vec<PartFile> = Vec::new();
    while let Some(file) = files.recv().await {
        let staged = names.layout.staged(&names.day, &names.run, parts.len());
        let number = parts.iter().filter(|part| part.task_type == file.task_type).count();
        let bytes = file.data.len() as u64;
        location.put(&staged, file.data).await?;
        written.fetch_add(bytes, Ordering::Relaxed);
        parts.push(PartFile {
            path: names.layout.part(&names.day, &file.task_type, &names.run, number),
            staged,
            task_type: file.task_type,
            bytes,
            sha256: file.sha256,
            min_id: file.min_id,
            max_id: file.max_id,
            sums: file.sums,
        });
        if let Some(on_part) = &on_part {
            on_part();
        }
    }
    Ok(parts)
}
