//! Rows in, files out. Memory is bounded whatever comes: rows that wait for their row group, row groups that wait for their
//! file, files that wait to be written. Each of them holds up the one before when it is full.

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
    Error, Job, Layout, PartFile, Place,
    columns::Columns,
    encode::{self, Encoded},
    schema::GROUP_ROWS,
};

/// How much is held in memory, and how large files become.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Rows in a row group; at most 65,536.
    pub group_rows: usize,
    /// Bytes of a row group before it is compressed.
    pub group_bytes: usize,
    /// Bytes of all rows that wait for their row groups, of all types.
    pub gathered_bytes: usize,
    /// Bytes of a file.
    pub part_bytes: usize,
    /// Bytes of all files that are not finished, of all types.
    pub encoded_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            group_rows: GROUP_ROWS,
            group_bytes: 16 << 20,
            gathered_bytes: 32 << 20,
            part_bytes: 32 << 20,
            encoded_bytes: 48 << 20,
        }
    }
}

/// Called when a file was written.
pub type OnPart = Arc<dyn Fn() + Send + Sync>;

/// Writes the jobs of a day under names that no reader looks for. Dropped before the end it leaves files, which the next run
/// deletes.
pub struct Writer {
    bounds: Bounds,
    gathered: HashMap<String, Columns>,
    bytes: usize,
    columns: mpsc::Sender<Columns>,
    encoder: oneshot::Receiver<Result<(), Error>>,
    uploader: JoinHandle<Result<Vec<PartFile>, Error>>,
    /// Bytes written so far, for people who look on.
    written: Arc<AtomicU64>,
    /// Microseconds that the encoder has worked.
    encoding: Arc<AtomicU64>,
}

impl Writer {
    /// Begins to write a day. `run` is a name that no other run has.
    pub fn begin(place: Place, layout: &Layout, day: &str, run: &str, bounds: Bounds, on_part: Option<OnPart>) -> Self {
        let (columns, to_encode) = mpsc::channel(1);
        let (encoded, files) = mpsc::channel(1);
        let encoding = Arc::<AtomicU64>::default();
        let encoder = encode::start(bounds, to_encode, encoded, encoding.clone());
        let written = Arc::<AtomicU64>::default();
        let names = Names { layout: layout.clone(), day: day.to_owned(), run: run.to_owned() };
        let uploader = tokio::spawn(upload(place, names, files, written.clone(), on_part));
        Self { bounds, gathered: HashMap::new(), bytes: 0, columns, encoder, uploader, written, encoding }
    }

    /// Adds a job. Jobs come in the order of their ids.
    pub async fn push(&mut self, job: &Job<'_>) -> Result<(), Error> {
        if !self.gathered.contains_key(job.task_type) {
            self.gathered.insert(job.task_type.to_owned(), Columns::of(job.task_type));
        }
        let Some(columns) = self.gathered.get_mut(job.task_type) else { return Ok(()) };
        self.bytes += columns.push(job);
        if columns.rows() >= self.bounds.group_rows || columns.bytes() >= self.bounds.group_bytes {
            self.hand_over(job.task_type.to_owned()).await?;
        }
        while self.bytes > self.bounds.gathered_bytes {
            let largest = self.gathered.iter().max_by_key(|(_, columns)| columns.bytes()).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            self.hand_over(largest).await?;
        }
        Ok(())
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// How long the encoder has worked so far, on its own thread.
    pub fn encoding(&self) -> Duration {
        Duration::from_micros(self.encoding.load(Ordering::Relaxed))
    }

    async fn hand_over(&mut self, task_type: String) -> Result<(), Error> {
        let Some(columns) = self.gathered.remove(&task_type) else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(columns.bytes());
        if self.columns.send(columns).await.is_err() {
            // Whoever has ended says why.
            return Err(Error::Ended("the encoder has ended".into()));
        }
        Ok(())
    }

    /// Writes what is left; returns all files.
    pub async fn finish(mut self) -> Result<Vec<PartFile>, Error> {
        let mut left: Vec<_> = self.gathered.keys().cloned().collect();
        left.sort();
        let mut handed_over = Ok(());
        for task_type in left {
            handed_over = handed_over.and(self.hand_over(task_type).await);
        }
        self.why_ended(handed_over).await
    }

    /// After an error of [`Self::push`]: what was behind it.
    pub async fn failed(self, error: Error) -> Error {
        self.why_ended(Err(error)).await.err().unwrap_or_else(|| Error::Ended("files were not written".into()))
    }

    async fn why_ended(self, so_far: Result<(), Error>) -> Result<Vec<PartFile>, Error> {
        drop(self.columns);
        let ended = |error: tokio::task::JoinError| Error::Ended(error.to_string());
        // The uploader first: if it fails, the encoder only notices that.
        let uploaded = self.uploader.await.map_err(ended)?;
        let encoded = self
            .encoder
            .await
            .map_err(|_| Error::Ended("there is no thread for the encoder, or it has ended without a word".into()))?;
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
    place: Place,
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
        place.put(&staged, file.data).await?;
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
