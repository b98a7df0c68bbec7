//! Selects the jobs of a file that match a filter, one row group at a time.

use tokio::sync::mpsc;

use crate::{
    Error, OpenFile, Row,
    schema::{FINISHED, ID, KEY},
};

/// Filter of archived jobs. A job must match all conditions that are set.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Earliest end of the job, inclusive, in microseconds since 1970.
    pub since: Option<i64>,
    /// Latest end of the job, exclusive, in microseconds since 1970.
    pub until: Option<i64>,
    /// Key of the job.
    pub key: Option<String>,
    /// Outcome: `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: Option<String>,
}

impl JobFilter {
    /// Whether the filter must be applied row by row, given the earliest and latest `finished` time of a row group.
    fn needs_rows(&self, (first, last): (i64, i64)) -> bool {
        self.key.is_some()
            || self.outcome.is_some()
            || self.since.is_some_and(|since| first < since)
            || self.until.is_some_and(|until| last >= until)
    }

    /// Whether the filter matches a row.
    pub fn matches_row(&self, row: &Row) -> bool {
        self.matches(row.finished, row.outcome.as_bytes(), row.key.as_deref().map(str::as_bytes))
    }

    fn matches(&self, finished: i64, outcome: &[u8], key: Option<&[u8]>) -> bool {
        self.since.is_none_or(|since| finished >= since)
            && self.until.is_none_or(|until| finished < until)
            && self.outcome.as_ref().is_none_or(|wanted| wanted.as_bytes() == outcome)
            && self.key.as_ref().is_none_or(|wanted| Some(wanted.as_bytes()) == key)
    }
}

impl OpenFile {
    /// Number of row groups.
    pub fn group_count(&self) -> usize {
        self.groups().len()
    }

    /// Returns the matching jobs of a row group of at most 65,536 rows. Skips the row group without reading it if the statistics in
    /// the footer or the Bloom filter rule out a match. Payloads and results are read if `payloads` is set.
    pub async fn select(&self, group: usize, filter: &JobFilter, payloads: bool) -> Result<Vec<Row>, Error> {
        let rows = self.matching_rows(group, filter).await?;
        if rows.is_empty() { Ok(Vec::new()) } else { self.rows(group, rows, payloads).await }
    }

    /// Sends the matching jobs of a row group to a channel in pieces. Returns false if the receiver has closed the channel.
    pub async fn select_to(
        &self,
        group: usize,
        filter: &JobFilter,
        payloads: bool,
        to: &mpsc::Sender<Vec<Row>>,
    ) -> Result<bool, Error> {
        let rows = self.matching_rows(group, filter).await?;
        if rows.is_empty() { Ok(!to.is_closed()) } else { self.send_rows(group, rows, payloads, to.clone()).await }
    }

    /// Returns the ids of the matching jobs with an id below `before`, highest first, at most `at_most`.
    pub async fn newest_ids(&self, filter: &JobFilter, before: i64, at_most: usize) -> Result<Vec<i64>, Error> {
        let mut found = Vec::new();
        for group in self.groups() {
            if self.range(group, ID).0 >= before {
                continue;
            }
            let rows = self.matching_rows(group, filter).await?;
            if !rows.is_empty() {
                let ids = self.ids(group).await?;
                found.extend(rows.into_iter().map(|row| ids[row]).filter(|id| *id < before));
            }
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.truncate(at_most);
        Ok(found)
    }

    /// Positions, in a row group, of the rows that match the filter.
    async fn matching_rows(&self, group: usize, filter: &JobFilter) -> Result<Vec<usize>, Error> {
        let (first, last) = self.range(group, FINISHED);
        if filter.until.is_some_and(|until| first >= until) || filter.since.is_some_and(|since| last < since) {
            return Ok(Vec::new());
        }
        if let Some(key) = &filter.key
            && !self.may_have(group, KEY, key.as_bytes()).await?
        {
            return Ok(Vec::new());
        }
        Ok(if filter.needs_rows((first, last)) {
            let columns = self.filter_columns(group).await?;
            let fits = |row: &usize| {
                let key = columns.keys[*row].as_ref().map(parquet::data_type::ByteArray::data);
                filter.matches(columns.finished[*row], columns.outcomes[*row].data(), key)
            };
            (0..columns.finished.len()).filter(fits).collect()
        } else {
            (0..self.rows_of(group)).collect()
        })
    }
}
