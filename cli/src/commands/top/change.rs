//! The calls that change something, each after a question.

use howdah_client::{
    Client, Error,
    proto::{JobFilter, JobState, ListJobsRequest, ListTaskTypesRequest, RetryJobsRequest},
};
use howdah_server::logging::escaped;

use super::super::{jobs, text};

/// Dead jobs that a question shows.
const EXAMPLES: i32 = 3;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pauses a type, or resumes it.
    Pause {
        /// The type.
        task_type: String,
        /// Whether it is paused from then on.
        paused: bool,
    },
    /// Finds examples of a type's dead jobs, and asks whether to retry all of them.
    AskRetry {
        /// The type.
        task_type: String,
        /// Their number when they were counted last.
        count: i64,
    },
    /// Retries the dead jobs of a type.
    RetryType {
        /// The type.
        task_type: String,
    },
    /// Retries one job.
    RetryJob {
        /// The job.
        id: i64,
    },
}

/// A question that is answered with y or n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The question, and what follows.
    pub lines: Vec<String>,
    /// What is done after y.
    pub then: Change,
    /// A key that answers nothing was pressed.
    pub is_unanswered: bool,
}

impl Question {
    /// These lines, and what is done after y.
    pub fn new(lines: Vec<String>, then: Change) -> Self {
        Self { lines, then, is_unanswered: false }
    }
}

/// What has come of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is done, in words.
    Said(String),
    /// It must be asked about.
    Asked(Question),
}

/// Does it.
pub async fn perform(client: &Client, change: Change) -> Result<Done, Error> {
    match change {
        Change::Pause { task_type, paused } => pause(client, &task_type, paused).await.map(Done::Said),
        Change::AskRetry { task_type, count } => ask_retry(client, task_type, count).await,
        Change::RetryType { task_type } => retry_type(client, &task_type).await.map(Done::Said),
        Change::RetryJob { id } => retry_job(client, id).await.map(Done::Said),
    }
}

async fn pause(client: &Client, task_type: &str, paused: bool) -> Result<String, Error> {
    // The call replaces all settings, so the others are read first. They are current; only the numbers of jobs are not.
    let request = ListTaskTypesRequest { task_type: task_type.into(), last_count: true, ..Default::default() };
    let found = client.task_type_page(request).await?.task_types.pop();
    let mut settings = found.and_then(|found| found.settings).unwrap_or_default();
    settings.paused = paused;
    client.update_task_type(task_type, settings).await?;
    Ok(format!("{} is {}", escaped(task_type), if paused { "paused" } else { "resumed" }))
}

async fn ask_retry(client: &Client, task_type: String, count: i64) -> Result<Done, Error> {
    let request = ListJobsRequest {
        task_type: task_type.clone(),
        state: JobState::Dead as i32,
        page_size: EXAMPLES,
        ..ListJobsRequest::default()
    };
    let page = client.list_jobs(request).await?;
    let (name, found) = (escaped(&task_type).into_owned(), page.jobs.len());
    if found == 0 {
        return Ok(Done::Said(format!("{name} has no dead jobs")));
    }
    // The count is a little old, and the examples are not.
    let how_many = match (page.next_page_token.is_empty(), count) {
        (true, _) => text::jobs(found as i64),
        (false, count) => format!("about {}", text::jobs(count.max(found as i64))),
    };
    let mut lines = vec![format!("Retry the dead jobs of {name}, {how_many}?")];
    lines.push("Each has all of its attempts again. The first ones:".into());
    lines.extend(page.jobs.iter().map(|job| format!("{}  {}", job.id, jobs::remark(job))));
    Ok(Done::Asked(Question::new(lines, Change::RetryType { task_type })))
}

async fn retry_type(client: &Client, task_type: &str) -> Result<String, Error> {
    let filter = JobFilter { task_type: task_type.into(), state: JobState::Dead as i32, ..JobFilter::default() };
    let mut request = RetryJobsRequest { filter: Some(filter), ..RetryJobsRequest::default() };
    let (mut retried, mut held) = (0, 0);
    loop {
        let answer = client.retry_jobs(request.clone()).await?;
        retried += answer.retried_ids.len() as i64;
        held += answer.key_held_ids.len() as i64;
        // Otherwise a broker that repeats a token would keep us here forever.
        if answer.next_page_token.is_empty() || answer.next_page_token == request.page_token {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    let others =
        if held == 0 { String::new() } else { format!("; {} stay dead: others hold their keys", text::jobs(held)) };
    Ok(format!("{} of {} retried{others}", text::jobs(retried), escaped(task_type)))
}

async fn retry_job(client: &Client, id: i64) -> Result<String, Error> {
    let filter = JobFilter { ids: vec![id], ..JobFilter::default() };
    let request = RetryJobsRequest { filter: Some(filter), ..RetryJobsRequest::default() };
    let answer = client.retry_jobs(request).await?;
    Ok(match (answer.retried_ids.is_empty(), answer.key_held_ids.is_empty()) {
        (false, _) => format!("job {id} is retried"),
        (true, false) => format!("job {id} stays dead: another job holds its key"),
        (true, true) => format!("job {id} is not retried: it is neither dead nor scheduled"),
    })
}
