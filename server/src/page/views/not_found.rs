//! View for unknown paths of the page.

use axum::response::Response;
use howdah_core::error::Error;

use crate::page::{PageError, PageRequest};

/// Shows an error with links to the existing views.
pub(in crate::page) async fn view(_: PageRequest) -> Result<Response, PageError> {
    let problem = "the page has no view at this address; pass ids and names in the query, such as /job?id=1";
    Err(Error::NotFound(problem.into()).into())
}
