//! Error for a task type that does not exist, for all commands with a task type.

use howdah_client::{Client, proto::ListTaskTypesRequest};

use super::failure::Failure;

/// Error for a missing task type.
pub(super) fn unknown(name: &str) -> Failure {
    Failure::failed(format!("there is no task type {name:?}; `howdah types` lists those that exist"))
}

/// Fails if the task type does not exist. Commands call it only after an empty result, which saves a request in most cases.
pub(super) async fn must_exist(client: &Client, name: impl Into<Option<&str>>) -> Result<(), Failure> {
    let Some(name) = name.into() else { return Ok(()) };
    // With `last_count`, the broker does not count the jobs of the type.
    let request = ListTaskTypesRequest { task_type: name.into(), last_count: true, ..ListTaskTypesRequest::default() };
    match client.task_type_page(request).await {
        Ok(page) if page.task_types.is_empty() => Err(unknown(name)),
        // An error, such as a missing right to read types, is ignored.
        _ => Ok(()),
    }
}
