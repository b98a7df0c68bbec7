//! Writes requests that need more than an insert, first in one statement. Requests that are refused, or that conflict
//! each time, are then written one by one, and lock-blocked requests in the side lane.

use std::collections::{HashMap, VecDeque};

use howdah_core::{error::Error, job::Enqueued};

use super::{Pending, Remedy, Writer, keyed, locked, remedy, wait_for_workers};
use crate::{side_lane::SideLane, store::StoreError};

/// One answer per request. `None` if the holder of a job key finished meanwhile, so the request starts over.
pub(super) type Answers = Vec<Option<Result<Vec<Enqueued>, Error>>>;

/// Kind of statement that the requests need.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Requests with job keys, start times, or request keys that were used before.
    Keyed,
    /// Requests with options that need coordination, such as limits or dependencies.
    Coordinated,
}

impl Kind {
    async fn write_once(self, writer: &Writer, requests: &[Pending]) -> Result<Answers, StoreError> {
        match self {
            Self::Keyed => keyed::write_keyed(writer, requests).await,
            Self::Coordinated => Ok(keyed::write_coordinated(writer, requests).await?.into_iter().map(Some).collect()),
        }
    }
}

/// Writes the requests and answers their callers.
pub(super) async fn write(writer: &Writer, lane: &SideLane<Pending>, kind: Kind, requests: Vec<Pending>) {
    // Groups of requests to write. The flag is set for a single request that starts over.
    let mut todo: VecDeque<_> = by_request_key(requests).into_iter().map(|requests| (requests, false)).collect();
    let mut tries = 0;
    while let Some((requests, started_over)) = todo.pop_front() {
        let mut requests = locked::divert(lane, writer.breaker.reply_if_open(requests));
        if requests.is_empty() {
            continue;
        }
        tries += 1;
        let answers = kind.write_once(writer, &requests).await;
        let remedy = answers.map_err(|error| remedy(error, tries, requests.len(), writer));
        if !matches!(remedy, Err(Remedy::Repeat)) {
            tries = 0;
        }
        match remedy {
            Ok(answers) => {
                writer.breaker.stored();
                wait_for_workers(&mut requests);
                for (request, answer) in requests.into_iter().zip(answers) {
                    match answer {
                        Some(answer) => request.reply(answer),
                        // The job key is held, but its holder was not found for the second time: another transaction
                        // has locked the key.
                        None if started_over => locked::move_to_side_lane(lane, vec![request]),
                        None => todo.push_back((vec![request], true)),
                    }
                }
            }
            Err(Remedy::Repeat) => todo.push_front((requests, started_over)),
            // Keeps the order of the requests: a job of one request may have the job key of another request's job.
            Err(Remedy::Split) => {
                requests.into_iter().rev().for_each(|request| todo.push_front((vec![request], started_over)));
            }
            Err(Remedy::SideLane) => locked::move_to_side_lane(lane, requests),
            Err(Remedy::Reply(error)) => requests.into_iter().for_each(|request| request.reply(Err(error.clone()))),
        }
    }
}

/// Groups requests so that each request key occurs once per statement. Repeats go into later groups.
pub(super) fn by_request_key(requests: Vec<Pending>) -> VecDeque<Vec<Pending>> {
    let mut rounds: VecDeque<Vec<Pending>> = VecDeque::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for request in requests {
        let round = request.request.as_ref().map_or(0, |key| {
            let times = seen.entry(key.key.clone()).or_default();
            *times += 1;
            *times - 1
        });
        while rounds.len() <= round {
            rounds.push_back(Vec::new());
        }
        rounds[round].push(request);
    }
    rounds
}
