//! The jobs of a file that somebody wants, row group by row group.

use tokio::sync::mpsc;

use crate::{
    Error, OpenFile, Row,
    schema::{FINISHED, KEY},
};

/// Which jobs are wanted: those that all of it fits.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// That ended at this time or later, in microseconds since 1970.
    pub since: Option<i64>,
    /// That ended before this time.
    pub until: Option<i64>,
    /// That have this key.
    pub key: Option<String>,
    /// That ended like this: `succeeded`, `cancelled`, `expired` or `discarded`.
    pub outcome: Option<String>,
}

impl Wanted {
    /// Whether rows of a group have to be looked at one by one.
    fn chooses(&self, (first, last): (i64, i64)) -> bool {
        self.key.is_some()
            || self.outcome.is_some()
            || self.since.is_some_and(|since| first < since)
            || self.until.is_some_and(|until| last >= until)
    }

    /// Whether this job is wanted.
    pub fn fits_row(&self, row: &Row) -> bool {
        self.fits(row.finished, row.outcome.as_bytes(), row.key.as_deref().map(str::as_bytes))
    }

    fn fits(&self, finished: i64, outcome: &[u8], key: Option<&[u8]>) -> bool {
        self.since.is_none_or(|since| finished >= since)
            && self.until.is_none_or(|until| finished < until)
            && self.outcome.as_ref().is_none_or(|wanted| wanted.as_bytes() == outcome)
            && self.key.as_ref().is_none_or(|wanted| Some(wanted.as_bytes()) == key)
    }
}

impl OpenFile {
    /// How many row groups it has.
    pub fn group_count(&self) -> usize {
        self.groups().len()
    }

    /// The wanted jobs of a row group, which has up to 65,536 of them. What can be told from the footer and the Bloom filter is
    /// not read, and payloads and results only if they are wanted too.
    pub async fn select(&self, group: usize, wanted: &Wanted, payloads: bool) -> Result<Vec<Row>, Error> {
        let rows = self.chosen(group, wanted).await?;
        if rows.is_empty() { Ok(Vec::new()) } else { self.rows(group, rows, payloads).await }
    }

    /// The same, piece by piece; false: nobody takes them any more.
    pub async fn select_to(
        &self,
        group: usize,
        wanted: &Wanted,
        payloads: bool,
        to: &mpsc::Sender<Vec<Row>>,
    ) -> Result<bool, Error> {
        let rows = self.chosen(group, wanted).await?;
        if rows.is_empty() { Ok(!to.is_closed()) } else { self.send_rows(group, rows, payloads, to.clone()).await }
    }

    /// The numbers of the wanted rows.
    async fn chosen(&self, group: usize, wanted: &Wanted) -> Result<Vec<usize>, Error> {
        let (first, last) = self.range(group, FINISHED);
        if wanted.until.is_some_and(|until| first >= until) || wanted.since.is_some_and(|since| last < since) {
            return Ok(Vec::new());
        }
        if let Some(key) = &wanted.key
            && !self.may_have(group, KEY, key.as_bytes()).await?
        {
            return Ok(Vec::new());
        }
        Ok(if wanted.chooses((first, last)) {
            let seen = self.seen(group).await?;
            let fits = |row: &usize| {
                let key = seen.keys[*row].as_ref().map(parquet::data_type::ByteArray::data);
                wanted.fits(seen.finished[*row], seen.outcomes[*row].data(), key)
            };
            (0..seen.finished.len()).filter(fits).collect()
        } else {
            (0..self.rows_of(group)).collect()
        })
    }
}
