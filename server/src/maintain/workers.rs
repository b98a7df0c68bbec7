//! What this broker tells the others of its sessions: rows of its own, written as often as it renews its lease, and only for
//! sessions that have changed. Idle workers cost nothing but a look at a flag each.

use std::{collections::HashSet, sync::Arc};

use super::Context;
use crate::{
    dispatch::Recipient as _,
    job::TypeId,
    session::{Changed, Session},
    store::StoreError,
};

/// Sessions in a statement, or types.
const BATCH: usize = 500;
/// Bytes of summaries in a statement, without those of its last one.
const BATCH_BYTES: usize = 1 << 20;
/// Sessions of which only figures have changed that are written at once. Of more, each is written in turn, and lists say how
/// old its figures are.
const MOST_FIGURES: usize = 500;

/// What the table has.
#[derive(Default)]
struct Reported {
    broker_id: Option<i32>,
    sessions: HashSet<u64>,
    /// Figures were written up to this session.
    turn: u64,
}

pub(super) async fn always(context: Arc<Context>) {
    let mut reported = Reported::default();
    loop {
        tokio::time::sleep(context.config.renew_interval).await;
        let _turn = context.turns.wait().await;
        if let Err(error) = run_once(&context, &mut reported).await {
            context.store.failed("reporting workers", &error);
        }
        if let Err(error) = note_pulls(&context).await {
            context.store.failed("noting which types are pulled", &error);
        }
    }
}

/// Writes what has changed.
async fn run_once(context: &Context, reported: &mut Reported) -> Result<(), StoreError> {
    let broker_id = context.dispatch.broker_id();
    if reported.broker_id != Some(broker_id) {
        // The rows of its former number go with that.
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

/// Writes which types programs without a session have called for.
async fn note_pulls(context: &Context) -> Result<(), StoreError> {
    for batch in context.sessions.pulls.unnoted().chunks(BATCH) {
        let (types, ago_ms): (Vec<TypeId>, Vec<i64>) =
            batch.iter().map(|(type_id, last)| (*type_id, last.elapsed().as_millis() as i64)).unzip();
        context.store.report_pulls(&types, &ago_ms).await?;
        context.sessions.pulls.noted(batch);
    }
    Ok(())
}

/// Those that are written now: all that are new or have other windows, and in turn those with other figures.
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
    let first = figures.partition_point(|session| session.key() <= reported.turn);
    figures.rotate_left(first);
    figures.truncate(MOST_FIGURES);
    if let Some(last) = figures.last() {
        reported.turn = last.key();
    }
    chosen.extend(figures);
    chosen
}
