//! Bulk operations: one change of many jobs, which brokers execute in the background.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{change, pages, read},
    enqueue::new_request_key,
};

impl Client {
    /// Counts the jobs that a bulk operation would change, and returns three of them as examples.
    pub async fn preview_bulk(&self, spec: proto::BulkSpec) -> Result<proto::PreviewBulkResponse> {
        read!(self.bulks().preview_bulk(proto::PreviewBulkRequest { spec: Some(spec) }))
    }

    /// Starts a bulk operation, and returns it. If the connection breaks, the call is repeated without starting a second
    /// operation.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, proto::{BulkOperation, BulkSpec}};
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let mut spec = BulkSpec { task_type: "email.send".into(), ..BulkSpec::default() };
    /// spec.set_operation(BulkOperation::Retry);
    /// let bulk = client.start_bulk(spec).await?;
    /// println!("bulk operation {} retries about {} jobs", bulk.id, bulk.selected_count);
    /// # Ok(()) }
    /// ```
    pub async fn start_bulk(&self, spec: proto::BulkSpec) -> Result<proto::Bulk> {
        let request = proto::StartBulkRequest { spec: Some(spec), request_key: new_request_key() };
        Ok(change!(self.bulks().start_bulk(request))?.bulk.unwrap_or_default())
    }

    /// Pauses a bulk operation, and returns it.
    pub async fn pause_bulk(&self, id: i64) -> Result<proto::Bulk> {
        Ok(change!(self.bulks().pause_bulk(proto::PauseBulkRequest { id }))?.bulk.unwrap_or_default())
    }

    /// Resumes a paused bulk operation, and returns it.
    pub async fn resume_bulk(&self, id: i64) -> Result<proto::Bulk> {
        Ok(change!(self.bulks().resume_bulk(proto::ResumeBulkRequest { id }))?.bulk.unwrap_or_default())
    }

    /// Cancels a bulk operation, and returns it. Jobs that it has changed stay changed.
    pub async fn cancel_bulk(&self, id: i64) -> Result<proto::Bulk> {
        Ok(change!(self.bulks().cancel_bulk(proto::CancelBulkRequest { id }))?.bulk.unwrap_or_default())
    }

    /// Returns a bulk operation with its progress.
    pub async fn get_bulk(&self, id: i64) -> Result<proto::Bulk> {
        Ok(read!(self.bulks().get_bulk(proto::GetBulkRequest { id }))?.bulk.unwrap_or_default())
    }

    /// Lists bulk operations, newest first. Ignores `page_size` and `page_token` of the request: fetches up to `at_most`
    /// operations, in as many pages as needed.
    pub async fn list_bulks(&self, request: proto::ListBulksRequest, at_most: usize) -> Result<Vec<proto::Bulk>> {
        pages!(self.bulks().list_bulks(request).bulks, at_most)
    }
}
