//! Maintenance task: writes this broker's sessions to the table of workers, where other brokers read them. It runs as
//! often as the renewal of the broker's row, and writes only sessions that have changed. For an unchanged session it
//! only checks a flag.

use std::{collections::HashSet, sync::Arc};

use howdah_core::job::TypeId;

use super::Context;
use crate::{
    dispatch::Recipient as _,
    session::{Changed, Session},
    store::StoreError,
};

/// Maximum number of sessions or task types in a statement.
const BATCH: usize = 500;
/// Size of the session summaries in bytes after which a statement takes no further session.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of sessions per report of which only the numbers of held or settled jobs have changed. If there are
/// more, each report continues after the last one, in rotation. Lists show the age of the numbers.
const MOST_FIGURES: usize = 500;

/// Sessions that this broker has written to the table of workers.
#[derive(Default)]
struct Reported {
    broker_id: Option<i32>,
    sessions: HashSet<u64>,
    /// Key of the last session that was written in rotation. The next report continues after it.
    last_key: u64,
}

pub(super) async fn run(context: Arc<Context>) {
    let mut reported = Reported::default();
    loop {
        tokio::time::sleep(context.config.renew_interval).await;
        let _guard = context.background_mutex.lock().await;
        if let Err(error) = run_once(&context, &mut reported).await {
            context.store.log_failure("reporting workers", &error);
        }
        if let Err(error) = note_pulls(&context).await {
            context.store.log_failure("recording the task types of pull calls", &error);
        }
    }
}

/// Writes the sessions that have changed, and deletes those that have ended.
async fn run_once(context: &Context, reported: &mut Reported) -> Result<(), StoreError> {
    let broker_id = context.dispatch.broker_id();
    if reported.broker_id != Some(broker_id) {
        // The broker has a new id. The rows of its former id are deleted together with that id's broker row.
        *reported = Reported { broker_id: Some(broker_id), ..Reported::default() };
    }
    let all = context.sessions.all();
    let present: HashSet<u64> = all.iter().map(|session| session.key()).collect();
    let mut ended: Vec<i64> = reported.sessions.difference(&present).map(|&key| key as i64).collect();
    let mut chosen = choose(all, reported).into_iter().peekable();
    while chosen.peek().is_some() || !ended.is_empty() {
        let (mut batch, mut numbers, mut summaries, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(session) = chosen.next() else { break };
            let view = session.report(&context.dispatch, &context.registry);
            let summary =
                serde_json::to_string(&view).map_err(|error| StoreError::Refused(error.to_string().into()))?;
            bytes += summary.len();
            numbers.push(session.key() as i64);
            summaries.push(summary);
            batch.push(session);
        }
        if let Err(error) = context.store.report_workers(broker_id, &numbers, &summaries, &ended).await {
            batch.iter().for_each(|session| session.not_reported());
            return Err(error);
        }
        for key in ended.drain(..) {
            reported.sessions.remove(&(key as u64));
        }
        reported.sessions.extend(batch.iter().map(|session| session.key()));
    }
    Ok(())
}

/// Writes the last times at which clients without a session pulled jobs, by task type.
async fn note_pulls(context: &Context) -> Result<(), StoreError> {
    for batch in context.sessions.pulls.unwritten().chunks(BATCH) {
        let (types, ago_ms): (Vec<TypeId>, Vec<i64>) =
            batch.iter().map(|(type_id, last)| (*type_id, last.elapsed().as_millis() as i64)).unzip();
        context.store.report_pulls(&types, &ago_ms).await?;
        context.sessions.pulls.written(batch);
    }
    Ok(())
}

/// Chooses the sessions to write: all new sessions, all with changed windows, and in rotation those with only changed
/// numbers.
fn choose(all: Vec<Arc<Session>>, reported: &mut Reported) -> Vec<Arc<Session>> {
    let (mut chosen, mut figures) = (Vec::new(), Vec::new());
    for session in all {
        match session.changed_since_report() {
            _ if !reported.sessions.contains(&session.key()) => chosen.push(session),
            Changed::Nothing => {}
            Changed::Figures => figures.push(session),
            Changed::Windows => chosen.push(session),
        }
    }
    figures.sort_unstable_by_key(|session| session.key());
    let first = figures.partition_point(|session| session.key() <= reported.last_key);
    figures.rotate_left(first);
    figures.truncate(MOST_FIGURES);
    if let Some(last) = figures.last() {
        reported.last_key = last.key();
    }
    chosen.extend(figures);
    chosen
}
