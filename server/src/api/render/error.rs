//! Conversion of the error of one pipeline request. `error.rs` converts the errors of calls to a `Status`.

use howdah_core::error::Error;
use howdah_proto::v1;

use super::time::duration;

/// Converts an error to the answer to a failed pipeline request. It has the same code, text, field and reason as the `Status`
/// of a call.
pub(crate) fn request_error(error: &Error) -> v1::RequestError {
    let (code, reason) = error.code();
    v1::RequestError {
        code: code as i32,
        message: error.to_string(),
        field: error.field().unwrap_or_default().to_owned(),
        reason: reason.to_owned(),
        retry_after: error.retry_after().map(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_error_has_the_code_field_and_reason_of_the_error() {
        let error = request_error(&Error::invalid("jobs[3].task_type", "is empty"));
        assert_eq!(
            (error.code, error.field.as_str(), error.reason.as_str()),
            (3, "jobs[3].task_type", "INVALID_FIELD")
        );
        assert_eq!(error.message, "jobs[3].task_type is empty");
        let error = request_error(&Error::RequestKeyReused("k".into()));
        assert_eq!((error.code, error.field.as_str()), (6, "request_key"));
    }
}
