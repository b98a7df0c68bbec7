//! Requests that need more than an insert are written in rounds: all of them in one statement, those that it refuses or that
//! lose each time one by one, and those that are locked aside.

use std::collections::{HashMap, VecDeque};

use super::{Pending, Remedy, Writer, coordinated, keyed, locked, remedy, wait_for_workers};
use crate::{error::Error, job::Enqueued, side_lane::SideLane, store::StoreError};

/// One answer for each request. `None`: the holder of a key finished meanwhile; the request starts over.
pub(super) type Answers = Vec<Option<Result<Vec<Enqueued>, Error>>>;

/// What the requests need, all of them or some.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Job keys, start times, request keys that were used.
    Keyed,
    /// Coordination.
    Coordinated,
}

impl Kind {
    async fn write_once(self, writer: &Writer, requests: &[Pending]) -> Result<Answers, StoreError> {
        match self {
            Self::Keyed => keyed::write_once(writer, requests).await,
            Self::Coordinated => Ok(coordinated::write_once(writer, requests).await?.into_iter().map(Some).collect()),
        }
    }
}

/// Writes the requests, and tells their callers.
pub(super) async fn write(writer: &Writer, lane: &SideLane<Pending>, kind: Kind, requests: Vec<Pending>) {
    // With each round, whether its request has started over.
    let mut todo: VecDeque<_> = by_request_key(requests).into_iter().map(|requests| (requests, false)).collect();
    let mut tries = 0;
    while let Some((requests, started_over)) = todo.pop_front() {
        let mut requests = locked::divert(lane, writer.away.tell(requests));
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
                wait_for_workers(&mut requests);
                for (request, answer) in requests.into_iter().zip(answers) {
                    match answer {
                        Some(answer) => request.tell(answer),
                        // The holder of its key is neither there nor gone: another transaction has locked the key.
                        None if started_over => locked::wait_aside(lane, vec![request]),
                        None => todo.push_back((vec![request], true)),
                    }
                }
            }
            Err(Remedy::Repeat) => todo.push_front((requests, started_over)),
            // In their order: a job of one may have the key of another's.
            Err(Remedy::Split) => {
                requests.into_iter().rev().for_each(|request| todo.push_front((vec![request], started_over)));
            }
            Err(Remedy::Aside) => locked::wait_aside(lane, requests),
            Err(Remedy::Tell(error)) => requests.into_iter().for_each(|request| request.tell(Err(error.clone()))),
        }
    }
}

/// Within one statement a request key can be new only once: repeats go into a later one.
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
