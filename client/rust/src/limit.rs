//! Limit keys of task types.

use std::time::Duration;

use howdah_proto::v1 as proto;

use crate::{
    Client, Result,
    call::{all_pages, rpc},
    time,
};

impl Client {
    /// Lists the limit keys of a task type that have waiting jobs or are paused.
    pub async fn list_limit_keys(&self, task_type: impl Into<String>) -> Result<Vec<proto::LimitKey>> {
        let task_type = &task_type.into();
        all_pages(|page_token| async move {
            let request =
                proto::ListLimitKeysRequest { task_type: task_type.clone(), page_token, ..Default::default() };
            let page = rpc!(self.task_types().list_limit_keys(request))?;
            Ok((page.limit_keys, page.next_page_token))
        })
        .await
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
        rpc!(self.task_types().pause_limit_key(request)).map(drop)
    }

    /// Resumes a limit key of a task type.
    pub async fn resume_limit_key(&self, task_type: impl Into<String>, key: impl Into<String>) -> Result<()> {
        rpc!(
            self.task_types()
                .resume_limit_key(proto::ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: key.into() })
        )
        .map(drop)
    }
}
