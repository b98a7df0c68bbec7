//! Exports jobs of any task types to a single Parquet file, with the columns of the archive.

use std::{collections::HashMap, io::Write};

use parquet::file::writer::SerializedFileWriter;

use crate::{Bounds, Error, Job, columns::Columns, schema};

/// Writes one Parquet file. Memory for buffered rows has the same bounds as in the archive.
pub struct Export<W: Write + Send> {
    file: SerializedFileWriter<W>,
    buffered: HashMap<String, Columns>,
    bytes: usize,
    bounds: Bounds,
}

impl<W: Write + Send> Export<W> {
    /// Starts a file.
    pub fn new(file: W) -> Result<Self, Error> {
        let file = SerializedFileWriter::new(file, schema::schema()?, schema::properties().into())?;
        Ok(Self { file, buffered: HashMap::new(), bytes: 0, bounds: Bounds::default() })
    }

    /// Adds a job.
    pub fn push(&mut self, job: &Job<'_>) -> Result<(), Error> {
        if !self.buffered.contains_key(job.task_type) {
            self.buffered.insert(job.task_type.to_owned(), Columns::new(job.task_type));
        }
        let Some(columns) = self.buffered.get_mut(job.task_type) else { return Ok(()) };
        self.bytes += columns.push(job);
        if columns.rows() >= self.bounds.group_rows || columns.bytes() >= self.bounds.group_bytes {
            self.write(job.task_type)?;
        }
        while self.bytes > self.bounds.buffered_bytes {
            let largest = self.buffered.iter().max_by_key(|(_, columns)| columns.bytes()).map(|(name, _)| name.clone());
            let Some(largest) = largest else { break };
            self.write(&largest)?;
        }
        Ok(())
    }

    /// Writes the remaining rows and the footer, and returns the file.
    pub fn finish(mut self) -> Result<W, Error> {
        let mut left: Vec<_> = self.buffered.keys().cloned().collect();
        left.sort();
        for task_type in &left {
            self.write(task_type)?;
        }
        Ok(self.file.into_inner()?)
    }

    fn write(&mut self, task_type: &str) -> Result<(), Error> {
        let Some(columns) = self.buffered.remove(task_type) else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(columns.bytes());
        columns.write(&mut self.file)
    }
}
