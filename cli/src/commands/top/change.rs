//! Calls of `howdah top` that change task types or jobs, each after a confirmation.

use howdah_client::{
    Client, Error,
    proto::{JobFilter, JobState, ListJobsRequest, RetryJobsRequest},
};
use howdah_core::logging::escaped;

use super::super::{jobs, text};

/// Number of dead jobs shown in a confirmation.
const EXAMPLES: i32 = 3;

/// Change that the user has requested with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pauses or resumes a task type.
    Pause {
        task_type: String,
        /// New value of the setting `paused`.
        paused: bool,
    },
    /// Reads examples of a type's dead jobs, and asks whether to retry all of them.
    AskRetry {
        task_type: String,
        /// Number of dead jobs of the type, from the broker's last count.
        count: i64,
    },
    /// Retries all dead jobs of a task type.
    RetryType {
        task_type: String,
    },
    RetryJob {
        id: i64,
    },
}

/// A confirmation, answered with y or n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The question and its explanation.
    pub lines: Vec<String>,
    /// The change that is made if the user confirms with y.
    pub then: Change,
    /// True after the user has pressed a key that is no answer. The hint then lists the valid keys.
    pub is_unanswered: bool,
}

impl Question {
    pub fn new(lines: Vec<String>, then: Change) -> Self {
        Self { lines, then, is_unanswered: false }
    }
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The change was made; the text describes it.
    Message(String),
    /// The change needs a confirmation.
    Confirm(Question),
}

/// Makes a change by calls to the broker.
pub async fn perform(client: &Client, change: Change) -> Result<Done, Error> {
    match change {
        Change::Pause { task_type, paused } => pause(client, &task_type, paused).await.map(Done::Message),
        Change::AskRetry { task_type, count } => ask_retry(client, task_type, count).await,
        Change::RetryType { task_type } => retry_type(client, &task_type).await.map(Done::Message),
        Change::RetryJob { id } => retry_job(client, id).await.map(Done::Message),
    }
}

async fn pause(client: &Client, task_type: &str, paused: bool) -> Result<String, Error> {
    if paused {
        client.pause_task_type(task_type).await?;
    } else {
        client.resume_task_type(task_type).await?;
    }
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
        return Ok(Done::Message(format!("{name} has no dead jobs")));
    }
    // The examples are current, but `count` is from the broker's last count, so it may be lower than the number of examples.
    let how_many = match (page.next_page_token.is_empty(), count) {
        (true, _) => text::jobs(found as i64),
        (false, count) => format!("about {}", text::jobs(count.max(found as i64))),
    };
    let mut lines = vec![format!("Retry the dead jobs of {name} ({how_many})?")];
    lines.push("Each job gets all of its attempts again. The first jobs:".into());
    lines.extend(page.jobs.iter().map(|job| format!("{}  {}", job.id, jobs::remark(job))));
    Ok(Done::Confirm(Question::new(lines, Change::RetryType { task_type })))
}

async fn retry_type(client: &Client, task_type: &str) -> Result<String, Error> {
    let filter = JobFilter { task_type: task_type.into(), state: JobState::Dead as i32, ..JobFilter::default() };
    let mut request = RetryJobsRequest { filter: Some(filter), ..RetryJobsRequest::default() };
    let (mut retried, mut held) = (0, 0);
    loop {
        let answer = client.retry_jobs(request.clone()).await?;
        retried += answer.retried_ids.len() as i64;
        held += answer.key_held_ids.len() as i64;
        // Stops if a broker repeats a page token, which would make the loop endless.
        if answer.next_page_token.is_empty() || answer.next_page_token == request.page_token {
            break;
        }
        request.page_token = answer.next_page_token;
    }
    let others = if held == 0 {
        String::new()
    } else {
        format!("; {} stay dead because other jobs hold their keys", text::jobs(held))
    };
    Ok(format!("{} of {} retried{others}", text::jobs(retried), escaped(task_type)))
}

async fn retry_job(client: &Client, id: i64) -> Result<String, Error> {
    let filter = JobFilter { ids: vec![id], ..JobFilter::default() };
    let request = RetryJobsRequest { filter: Some(filter), ..RetryJobsRequest::default() };
    let answer = client.retry_jobs(request).await?;
    Ok(match (answer.retried_ids.is_empty(), answer.key_held_ids.is_empty()) {
        (false, _) => format!("retried job {id}"),
        (true, false) => format!("job {id} stays dead: another job holds its key"),
        (true, true) => format!("job {id} was not retried: it is neither dead nor scheduled"),
    })
}
