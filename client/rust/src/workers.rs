//! Workers of all brokers.

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::Tries};

impl Client {
    /// Lists the workers of all brokers. Ignores `page_size` and `page_token` of the request: fetches all pages.
    pub async fn list_workers(&self, mut request: proto::ListWorkersRequest) -> Result<Vec<proto::Worker>> {
        let mut all = Vec::new();
        (request.page_size, request.page_token) = (1_000, String::new());
        loop {
            let page = self.worker_page(request.clone()).await?;
            all.extend(page.workers);
            // Stops if a broker repeats a page token, to avoid an endless loop.
            if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// One page of the workers of all brokers.
    pub async fn worker_page(&self, request: proto::ListWorkersRequest) -> Result<proto::ListWorkersResponse> {
        self.call("list workers", Tries::EachEndpoint, request, |client, request| async move {
            client.workers().list_workers(request).await
        })
        .await
    }
}
