//! Finds a job by its id, or a task type by its name; the view of unknown paths.

use axum::response::{IntoResponse as _, Redirect, Response};
use howdah_core::error::Error;

use crate::page::{PageError, PageRequest, params::query};

/// Redirects to the job or the task type that the user looks for.
pub(in crate::page) async fn view(req: PageRequest) -> Result<Response, PageError> {
    let text = req.params.get("q");
    if text.is_empty() {
        return Ok(Redirect::to(&req.link("/jobs", "")).into_response());
    }
    if text.parse::<i64>().is_ok() {
        return job_of(&req, text);
    }
    let types = req.calls().counted_types(&req.by).await?.types;
    let (path, name) = if types.iter().any(|view| view.name == text) { ("/type", "name") } else { ("/types", "q") };
    Ok(Redirect::to(&req.link(path, &query([(name, text)]))).into_response())
}

/// Redirects to the job with this id.
pub(super) fn job_of(req: &PageRequest, id: &str) -> Result<Response, PageError> {
    let id: i64 = id.parse().map_err(|_| Error::invalid("id", "is not a job id"))?;
    Ok(Redirect::to(&req.link("/job", &format!("id={id}"))).into_response())
}

/// Shows an error with links to the existing views.
pub(in crate::page) async fn not_found(_: PageRequest) -> Result<Response, PageError> {
    let problem = "the page has no view at this address; pass ids and names in the query, such as /job?id=1";
    Err(Error::NotFound(problem.into()).into())
}
