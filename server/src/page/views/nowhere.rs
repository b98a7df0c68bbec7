//! Where no view is.

use axum::response::Response;

use crate::{
    error::Error,
    page::{Trouble, Visit},
};

/// Says so, with the links to those that there are.
pub(in crate::page) async fn view(_: Visit) -> Result<Response, Trouble> {
    let problem = "the page has no view at this address; what it shows is named in the query, such as /job?id=1";
    Err(Error::NotFound(problem.into()).into())
}
