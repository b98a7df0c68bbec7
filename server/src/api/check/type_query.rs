//! Task types to look at, and their settings.

use howdah_proto::v1;

use super::{fallback, numbers, retry, task_type};
use crate::{
    api::page_token,
    error::Error,
    job::{HistoryMode, TaskTypeName, TypeSettings},
};

const MAX_PAGE: usize = 1000;

/// Which task types.
#[derive(Clone, Debug)]
pub(crate) struct TypesQuery {
    /// Those after this name.
    pub(crate) after: String,
    /// Types at most.
    pub(crate) page_size: usize,
    /// Only this one.
    pub(crate) only: Option<TaskTypeName>,
}

/// A page of task types.
pub(crate) fn list_task_types(request: &v1::ListTaskTypesRequest) -> Result<TypesQuery, Error> {
    let name = Some(&request.task_type).filter(|name| !name.is_empty());
    Ok(TypesQuery {
        after: page_token::name(&request.page_token)?,
        page_size: numbers::page_size(request.page_size, MAX_PAGE, MAX_PAGE)?,
        only: name.map(|name| task_type("task_type", name)).transpose()?,
    })
}

/// A type and all of its settings.
pub(crate) fn update_task_type(request: &v1::UpdateTaskTypeRequest) -> Result<(TaskTypeName, TypeSettings), Error> {
    let name = task_type("task_type", &request.task_type)?;
    // Without this a forgotten field would undo all settings.
    let Some(settings) = &request.settings else {
        let problem = "is not set; set an empty one to go back to the broker's defaults";
        return Err(Error::invalid("settings", problem));
    };
    let settings = self::settings(settings, &name).map_err(|error| error.within("settings"))?;
    Ok((name, settings))
}

fn settings(settings: &v1::TaskTypeSettings, of: &TaskTypeName) -> Result<TypeSettings, Error> {
    Ok(TypeSettings {
        max_attempts: retry::max_attempts(settings.max_attempts)?,
        retry: retry::retry_policy(settings.retry_policy.as_ref())?,
        history: history(settings.history)?,
        fallback: fallback("fallback", &settings.fallback, of)?,
    })
}

fn history(number: i32) -> Result<Option<HistoryMode>, Error> {
    match v1::HistoryMode::try_from(number) {
        Ok(v1::HistoryMode::Unspecified) => Ok(None),
        Ok(v1::HistoryMode::Full) => Ok(Some(HistoryMode::Full)),
        Ok(v1::HistoryMode::Failures) => Ok(Some(HistoryMode::Failures)),
        Ok(v1::HistoryMode::None) => Ok(Some(HistoryMode::None)),
        Err(_) => Err(Error::invalid("history", format!("{number} is no history mode that this broker knows"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_a_thousand_types_from_the_first() {
        let query = list_task_types(&v1::ListTaskTypesRequest::default()).unwrap();
        assert_eq!((query.after.as_str(), query.page_size, query.only), ("", 1000, None));
    }

    #[test]
    fn whatever_is_out_of_bounds_of_a_list_is_named() {
        let cases = [
            ("page_size", v1::ListTaskTypesRequest { page_size: -5, ..Default::default() }),
            ("page_token", v1::ListTaskTypesRequest { page_token: "zz".into(), ..Default::default() }),
            ("task_type", v1::ListTaskTypesRequest { task_type: "a b".into(), ..Default::default() }),
        ];
        for (field, request) in cases {
            assert_eq!(list_task_types(&request).expect_err(field).field(), Some(field));
        }
    }

    #[test]
    fn settings_are_checked_like_those_of_a_job() {
        let update = |settings| update_task_type(&v1::UpdateTaskTypeRequest { task_type: "a".into(), settings });
        assert_eq!(update(Some(v1::TaskTypeSettings::default())).unwrap().1, TypeSettings::default());
        assert_eq!(update(None).unwrap_err().field(), Some("settings"));
        let attempts = v1::TaskTypeSettings { max_attempts: 1001, ..Default::default() };
        assert_eq!(update(Some(attempts)).unwrap_err().field(), Some("settings.max_attempts"));
        let itself = v1::TaskTypeSettings { fallback: "a".into(), ..Default::default() };
        assert_eq!(update(Some(itself)).unwrap_err().field(), Some("settings.fallback"));
        let jitter = v1::RetryPolicy { jitter: Some(f64::NAN), ..Default::default() };
        let retry = v1::TaskTypeSettings { retry_policy: Some(jitter), ..Default::default() };
        assert_eq!(update(Some(retry)).unwrap_err().field(), Some("settings.retry_policy.jitter"));
    }
}
