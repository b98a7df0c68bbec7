//! Workers of all brokers.

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{all_pages, rpc},
};

impl Client {
    /// Lists the workers of all brokers. Ignores `page_size` and `page_token` of the request: fetches all pages.
    pub async fn list_workers(&self, request: proto::ListWorkersRequest) -> Result<Vec<proto::Worker>> {
        all_pages(|page_token| {
            let request = proto::ListWorkersRequest { page_size: 1_000, page_token, ..request.clone() };
            async move {
                let page = self.worker_page(request).await?;
                Ok((page.workers, page.next_page_token))
            }
        })
        .await
    }

    /// One page of the workers of all brokers.
    pub async fn worker_page(&self, request: proto::ListWorkersRequest) -> Result<proto::ListWorkersResponse> {
        rpc!(self.workers().list_workers(request))
    }
}
