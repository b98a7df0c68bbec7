//! A task type that does not exist: all commands that take one say so, instead of showing nothing.

use howdah_client::{Client, proto::ListTaskTypesRequest};

use super::failure::Failure;

/// There is no such task type.
pub(super) fn unknown(name: &str) -> Failure {
    Failure::failed(format!("there is no task type {name:?}; `howdah types` lists those that exist"))
}

/// Fails if there is no such task type. Ask after a command has found nothing: usually no call is needed then.
pub(super) async fn must_exist(client: &Client, name: impl Into<Option<&str>>) -> Result<(), Failure> {
    let Some(name) = name.into() else { return Ok(()) };
    // Its jobs are not counted for this.
    let request = ListTaskTypesRequest { task_type: name.into(), last_count: true, ..ListTaskTypesRequest::default() };
    match client.task_type_page(request).await {
        Ok(page) if page.task_types.is_empty() => Err(unknown(name)),
        // Whoever may not read types is not told.
        _ => Ok(()),
    }
}
