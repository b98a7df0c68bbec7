//! Limit keys of task types.

use std::time::Duration;

use howdah_proto::v1 as proto;

use crate::{Client, Result, call::Tries, time};

impl Client {
    /// Lists the limit keys of a task type that have waiting jobs or are paused.
    pub async fn list_limit_keys(&self, task_type: impl Into<String>) -> Result<Vec<proto::LimitKey>> {
        let mut all = Vec::new();
        let mut request = proto::ListLimitKeysRequest { task_type: task_type.into(), ..Default::default() };
        loop {
            let page = self
                .call("list limit keys", Tries::EachEndpoint, request.clone(), |client, request| async move {
                    client.task_types().list_limit_keys(request).await
                })
                .await?;
            all.extend(page.limit_keys);
            // Stops if a broker repeats a page token, to avoid an endless loop.
            if page.next_page_token.is_empty() || page.next_page_token == request.page_token {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Pauses a limit key of a task type. Without a duration it is paused until it is resumed.
    pub async fn pause_limit_key(
        &self,
        task_type: impl Into<String>,
        key: impl Into<String>,
        duration: Option<Duration>,
    ) -> Result<()> {
        let request = proto::PauseLimitKeyRequest {
            task_type: task_type.into(),
            limit_key: key.into(),
            duration: duration.map(time::to_proto),
        };
        self.call("pause limit key", Tries::EachEndpoint, request, |client, request| async move {
            client.task_types().pause_limit_key(request).await
        })
        .await
        .map(drop)
    }

    /// Resumes a limit key of a task type.
    pub async fn resume_limit_key(&self, task_type: impl Into<String>, key: impl Into<String>) -> Result<()> {
        let request = proto::ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: key.into() };
        self.call("resume limit key", Tries::EachEndpoint, request, |client, request| async move {
            client.task_types().resume_limit_key(request).await
        })
        .await
        .map(drop)
    }
}
