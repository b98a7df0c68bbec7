//! A job by its id, or a task type by its name.

use axum::response::{IntoResponse as _, Redirect, Response};

use crate::{
    error::Error,
    page::{Trouble, Visit, params::query},
};

/// Goes to what was asked for.
pub(in crate::page) async fn view(visit: Visit) -> Result<Response, Trouble> {
    let asked = visit.params.get("q");
    if asked.is_empty() {
        return Ok(Redirect::to(&visit.link("/jobs", "")).into_response());
    }
    if asked.parse::<i64>().is_ok() {
        return job_of(&visit, asked);
    }
    let types = visit.calls().counted_types(&visit.by).await?.types;
    let (path, name) = if types.iter().any(|view| view.name == asked) { ("/type", "name") } else { ("/types", "q") };
    Ok(Redirect::to(&visit.link(path, &query([(name, asked)]))).into_response())
}

/// Goes to the job of this id.
pub(super) fn job_of(visit: &Visit, id: &str) -> Result<Response, Trouble> {
    let id: i64 = id.parse().map_err(|_| Error::invalid("id", "is no id of a job"))?;
    Ok(Redirect::to(&visit.link("/job", &format!("id={id}"))).into_response())
}
