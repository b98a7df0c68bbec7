//! Jobs of any types in one file of somebody's own, with the columns of the archive.

use std::{collections::HashMap, io::Write};

use parquet::file::writer::SerializedFileWriter;

use crate::{Bounds, Error, Job, columns::Columns, schema};

/// Writes one Parquet file. What waits for its row group is bounded as in the archive.
pub struct Export<W: Write + Send> {
    file: SerializedFileWriter<W>,
    gathered: HashMap<String, Columns>,
    bytes: usize,
    bounds: Bounds,
}

impl<W: Write + Send> Export<W> {
    /// Begins a file.
    pub fn to(file: W) -> Result<Self, Error> {
        let file = SerializedFileWriter::new(file, schema::schema()?, schema::properties().into())?;
        Ok(Self { file, gathered: HashMap::new(), bytes: 0, bounds: Bounds::default() })
    }

    /// Adds a job.
    pub fn push(&mut self, job: &Job<'_>) -> Result<(), Error> {
        if !self.gathered.contains_key(job.task_type) {
            self.gathered.insert(job.task_type.to_owned(), Columns::of(job.task_type));
        }
        let Some(columns) = self.gathered.get_mut(job.task_type) else { return Ok(()) };
        self.bytes += columns.push(job);
        if columns.rows() >= self.bounds.group_rows || columns.bytes() >= self.bounds.group_bytes {
            self.write(job.task_type)?;
        }
        while self.bytes > self.bounds.gathered_bytes {
            let largest = self.gathered.iter().max_by_key(|(_, columns)| columns.bytes()).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            self.write(&largest)?;
        }
        Ok(())
    }

    /// Writes what is left, and the footer; gives the file back.
    pub fn finish(mut self) -> Result<W, Error> {
        let mut left: Vec<_> = self.gathered.keys().cloned().collect();
        left.sort();
        for task_type in &left {
            self.write(task_type)?;
        }
        Ok(self.file.into_inner()?)
    }

    fn write(&mut self, task_type: &str) -> Result<(), Error> {
        let Some(columns) = self.gathered.remove(task_type) else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(columns.bytes());
        columns.write(&mut self.file)
    }
}
