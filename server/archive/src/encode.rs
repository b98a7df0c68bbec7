//! Encodes columns into row groups and row groups into files, on a dedicated thread, because compression takes longer than reading
//! rows.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};

use crate::{Bounds, Error, Sums, columns::Columns, schema};

/// A finished Parquet file in memory.
pub(crate) struct Encoded {
    pub(crate) task_type: String,
    pub(crate) data: Bytes,
    pub(crate) sha256: String,
    pub(crate) min_id: i64,
    pub(crate) max_id: i64,
    pub(crate) sums: Sums,
}

/// An unfinished Parquet file in memory, which still accepts row groups.
struct Open {
    file: SerializedFileWriter<Vec<u8>>,
    min_id: i64,
    max_id: i64,
    sums: Sums,
}

impl Open {
    fn new(properties: &Arc<WriterProperties>) -> Result<Self, Error> {
        let file = SerializedFileWriter::new(Vec::new(), schema::schema()?, properties.clone())?;
        Ok(Self { file, min_id: i64::MAX, max_id: i64::MIN, sums: Sums::default() })
    }

    fn add(&mut self, columns: Columns) -> Result<(), Error> {
        if let Some((lowest, highest)) = columns.ids() {
            self.min_id = self.min_id.min(lowest);
            self.max_id = self.max_id.max(highest);
        }
        self.sums.add_all(&columns.sums());
        columns.write(&mut self.file)
    }

    fn close(self, task_type: String) -> Result<Encoded, Error> {
        let data = Bytes::from(self.file.into_inner()?);
        let digest = Sha256::digest(&data);
        Ok(Encoded {
            task_type,
            sha256: hex::encode(digest),
            data,
            min_id: self.min_id,
            max_id: self.max_id,
            sums: self.sums,
        })
    }
}

/// Starts the encoder on a dedicated thread. On Linux the thread runs at a lower scheduling priority than the broker.
pub(crate) fn start(
    bounds: Bounds,
    columns: mpsc::Receiver<Columns>,
    files: mpsc::Sender<Encoded>,
    busy: Arc<AtomicU64>,
) -> oneshot::Receiver<Result<(), Error>> {
    let (ended, end) = oneshot::channel();
    // If the thread cannot be started, `ended` is dropped, and the returned receiver reports an error.
    let _ = std::thread::Builder::new().name("archive".into()).spawn(move || {
        // Only Linux sets `nice` per thread; elsewhere it would apply to the whole process. 10 and not 19, because at the
        // lowest priority a busy machine could delay the archive of a day.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(10);
        let _ = ended.send(run(bounds, columns, &files, &busy));
    });
    end
}

/// Runs `work` and adds its duration to `busy`, in microseconds.
fn timed<T>(busy: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    busy.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    done
}

/// Encodes row groups into files until the sender of columns or the receiver of files closes its channel.
fn run(
    bounds: Bounds,
    mut columns: mpsc::Receiver<Columns>,
    files: &mpsc::Sender<Encoded>,
    busy: &AtomicU64,
) -> Result<(), Error> {
    let properties = Arc::new(schema::properties());
    let mut open: HashMap<String, Open> = HashMap::new();
    let hand_over = |open: &mut HashMap<String, Open>, task_type: &str| -> Result<(), Error> {
        let Some(file) = open.remove(task_type) else { return Ok(()) };
        let encoded = timed(busy, || file.close(task_type.to_owned()))?;
        files
            .blocking_send(encoded)
            .map_err(|_| Error::Ended("the task that uploads the archive's files has stopped".into()))
    };
    while let Some(group) = columns.blocking_recv() {
        let task_type = group.task_type().to_owned();
        if !open.contains_key(&task_type) {
            open.insert(task_type.clone(), Open::new(&properties)?);
        }
        if let Some(file) = open.get_mut(&task_type) {
            timed(busy, || file.add(group))?;
            if file.file.bytes_written() >= bounds.part_bytes {
                hand_over(&mut open, &task_type)?;
            }
        }
        while open.values().map(|file| file.file.bytes_written()).sum::<usize>() > bounds.encoded_bytes {
            let largest = open.iter().max_by_key(|(_, file)| file.file.bytes_written()).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            hand_over(&mut open, &largest)?;
        }
    }
    let mut rest: Vec<_> = open.keys().cloned().collect();
    rest.sort();
    rest.iter().try_for_each(|task_type| hand_over(&mut open, task_type))
}
