//! Messages of the `Work` stream: checks of messages from workers, and the conversion of messages from a session to its worker.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    time::Duration,
};

use howdah_core::{
    config::Config,
    error::Error,
    job::{ClusterSettings, Lease, LeasedJob, Limits, SettleStatus, TaskTypeName},
};
use howdah_engine::{
    registry::Registry,
    session::{
        Answer, CancelReason, ClientMessage, ServerMessage, SessionContext, SessionId, SubscribeArgs, WindowArgs,
        ping_interval,
    },
};
use howdah_proto::v1::{self, work_request::Message as FromWorker, work_response::Message as ToWorker};

use crate::api::{
    check::{
        numbers,
        outcomes::{extend, invalid_item_text, progress, settle, settle_result},
        task_type, text, time,
    },
    enums::WireEnum as _,
    render::{duration, leased_job},
};

/// Checks one message. An invalid outcome, extension or report gets an answer in `refused`. The function fails if the whole
/// message is invalid, which ends the stream. Errors name fields inside the message that is set: `windows[2].jobs`,
/// `outcomes[5].ack.result`. A first message other than `Subscribe` is rejected without a check of its fields.
pub(crate) fn work_request(
    request: v1::WorkRequest,
    is_first: bool,
    cluster: &ClusterSettings,
    limits: &Limits,
) -> Result<ClientMessage, Error> {
    let answers =
        |refused: Vec<(usize, v1::SettleResult)>| refused.into_iter().map(|(_, result)| answer(result)).collect();
    if is_first && matches!(&request.message, Some(message) if !matches!(message, FromWorker::Subscribe(_))) {
        return Err(Error::Precondition("the first message must be subscribe".into()));
    }
    match request.message {
        Some(FromWorker::Subscribe(message)) => subscribe(message, cluster, limits).map(ClientMessage::Subscribe),
        Some(FromWorker::Window(message)) => window(&message, limits).map(ClientMessage::Window),
        Some(FromWorker::Settle(message)) => {
            let items = settle(message.outcomes, cluster, limits)?;
            Ok(ClientMessage::Settle { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(FromWorker::Extend(message)) => {
            let items = extend(message.extensions, cluster)?;
            Ok(ClientMessage::Extend { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(FromWorker::Progress(message)) => {
            let items = progress(message.reports, cluster)?;
            Ok(ClientMessage::Progress { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(FromWorker::Drain(v1::DrainRequest {})) => Ok(ClientMessage::Drain),
        Some(FromWorker::Ping(v1::Ping {})) => Ok(ClientMessage::Ping),
        Some(FromWorker::Pong(v1::Pong {})) => Ok(ClientMessage::Pong),
        None => {
            let problem = "is not set; set subscribe, window, settle, extend, progress, drain, ping or pong";
            Err(Error::invalid("message", problem))
        }
    }
}

/// Converts the answer to an invalid item to the type that a session sends.
fn answer(result: v1::SettleResult) -> Answer {
    let lease = Lease { id: result.id, token: result.token };
    let status = match result.status() {
        v1::SettleStatus::Invalid => Err(result.message),
        _ => Ok(SettleStatus::LeaseLost),
    };
    Answer { lease, status }
}

/// Maximum number of labels of a worker.
pub(crate) const LABELS: usize = 16;
/// The largest message that a generated gRPC client accepts by default, in bytes.
pub(crate) const MESSAGE_BYTES: i64 = 4 << 20;
/// Allowed range of a worker's `liveness`.
pub(crate) const LIVENESS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(1);
/// Allowed range of `max_message_bytes`.
pub(crate) const MESSAGE_RANGE: RangeInclusive<i64> = (4 << 10)..=(1 << 30);

/// Checks the first message of a stream.
fn subscribe(subscribe: v1::Subscribe, cluster: &ClusterSettings, limits: &Limits) -> Result<SubscribeArgs, Error> {
    numbers::entries("held", subscribe.held.len(), 0..=limits.window_jobs)?;
    let max_message_bytes = i64::from(subscribe.max_message_bytes);
    Ok(SubscribeArgs {
        session_id: session_id(&subscribe.session_id)?,
        held: subscribe.held.iter().map(|lease| Lease { id: lease.id, token: lease.token }).collect(),
        labels: labels(subscribe.labels, cluster.key_bytes)?,
        max_message_bytes: numbers::or_default("max_message_bytes", max_message_bytes, MESSAGE_BYTES, MESSAGE_RANGE)?
            as usize,
        liveness: subscribe.liveness.map(|liveness| time::duration("liveness", liveness, &LIVENESS)).transpose()?,
        windows: windows(&subscribe.task_type, subscribe.window, &subscribe.windows, limits)?,
    })
}

/// Parses the id of a session. The id is the secret that allows a worker to resume the session, so only brokers generate ids.
fn session_id(id: &str) -> Result<Option<SessionId>, Error> {
    if id.is_empty() {
        return Ok(None);
    }
    // The error does not contain the id, because it may be a mistyped id of another worker's session.
    let problem = "is not an id from Welcome.session_id: workers cannot choose ids; leave it empty for a new session";
    SessionId::parse(id).map(Some).ok_or_else(|| Error::invalid("session_id", problem))
}

/// Checks one window, from a `Window` message or from the list in `Subscribe`.
fn window(window: &v1::Window, limits: &Limits) -> Result<WindowArgs, Error> {
    let default_bytes = (Limits::DEFAULT_WINDOW_BYTES.min(limits.window_bytes)) as i64;
    Ok(WindowArgs {
        task_type: task_type("task_type", &window.task_type)?,
        jobs: numbers::within("jobs", i64::from(window.jobs), 0..=limits.window_jobs as i64)? as usize,
        bytes: numbers::or_default("bytes", window.bytes, default_bytes, 0..=limits.window_bytes as i64)? as u64,
    })
}

/// Checks the window in the fields `task_type` and `window`, and the windows in the list. If a task type has several windows,
/// the last one counts.
fn windows(name: &str, jobs: i32, list: &[v1::Window], limits: &Limits) -> Result<Vec<WindowArgs>, Error> {
    numbers::entries("windows", list.len(), 0..=limits.stream_types)?;
    let mut windows = Vec::with_capacity(list.len() + 1);
    if !name.is_empty() {
        let task_type = task_type("task_type", name)?;
        let jobs = numbers::or_default("window", i64::from(jobs), 1, 0..=limits.window_jobs as i64)? as usize;
        windows.push(WindowArgs { task_type, jobs, bytes: Limits::DEFAULT_WINDOW_BYTES.min(limits.window_bytes) });
    } else if jobs != 0 {
        return Err(Error::invalid("window", format!("is {jobs} without a task_type; set both, or use windows")));
    }
    for (i, wire) in list.iter().enumerate() {
        windows.push(window(wire, limits).map_err(|error| error.within(&format!("windows[{i}]")))?);
    }
    let last: HashMap<_, _> = windows.iter().map(|w| w.task_type.clone()).zip(0..).collect();
    let mut index = 0..;
    windows.retain(|window| index.next() == last.get(&window.task_type).copied());
    numbers::entries("windows", windows.len(), 0..=limits.stream_types)?;
    Ok(windows)
}

/// Checks the labels of a worker, which `ListWorkers` shows.
fn labels(labels: HashMap<String, String>, most_bytes: usize) -> Result<BTreeMap<String, String>, Error> {
    numbers::entries("labels", labels.len(), 0..=LABELS)?;
    for (name, value) in &labels {
        text::plain("labels", name, most_bytes)?;
        text::plain("labels", value, most_bytes)?;
    }
    Ok(labels.into_iter().collect())
}

/// Converts a message of a session to the protocol message for its worker.
pub(in crate::api) fn work_response(
    message: ServerMessage,
    context: &SessionContext,
) -> Result<v1::WorkResponse, Error> {
    let message = match message {
        ServerMessage::Welcome { session_id, kept, lost, liveness } => {
            ToWorker::Welcome(welcome(session_id, kept, lost, liveness, &context.config, &context.registry.cluster()))
        }
        ServerMessage::Jobs(jobs) => ToWorker::Jobs(v1::Jobs { jobs: leased_jobs(jobs, &context.registry)? }),
        ServerMessage::Settled(answers) => ToWorker::Settled(v1::Settled { results: results(answers) }),
        ServerMessage::Extended(answers) => ToWorker::Extended(v1::Extended { results: results(answers) }),
        ServerMessage::Progressed(answers) => ToWorker::Progressed(v1::Progressed { results: results(answers) }),
        ServerMessage::Cancel(leases, reason) => ToWorker::Cancel(cancel(leases, reason)),
        ServerMessage::Drain { shutdown, reconnect_after } => ToWorker::Drain(drain(shutdown, reconnect_after)),
        ServerMessage::Ping => ToWorker::Ping(v1::Ping {}),
        ServerMessage::Pong => ToWorker::Pong(v1::Pong {}),
    };
    Ok(v1::WorkResponse { message: Some(message) })
}

/// Converts leased jobs. The names of their task types come from the registry.
pub(in crate::api) fn leased_jobs(jobs: Vec<LeasedJob>, registry: &Registry) -> Result<Vec<v1::LeasedJob>, Error> {
    // Most messages have jobs of one type, so the last looked-up name is reused.
    let mut last: Option<(i32, TaskTypeName)> = None;
    jobs.into_iter()
        .map(|job| {
            let name = match &last {
                Some((type_id, name)) if *type_id == job.type_id => name.clone(),
                _ => registry.name(job.type_id).ok_or_else(|| {
                    Error::Internal(format!("job {} has a task type that this broker does not know", job.lease.id))
                })?,
            };
            last = Some((job.type_id, name.clone()));
            Ok(leased_job(job, &name))
        })
        .collect()
}

fn welcome(
    session_id: String,
    kept: Vec<Lease>,
    lost: Vec<Lease>,
    liveness: Duration,
    config: &Config,
    cluster: &ClusterSettings,
) -> v1::Welcome {
    let limits = &config.limits;
    v1::Welcome {
        session_id,
        kept: kept.into_iter().map(lease).collect(),
        lost: lost.into_iter().map(lease).collect(),
        ping_interval: Some(duration(ping_interval(liveness))),
        session_grace: Some(duration(config.session_grace.min(liveness))),
        liveness: Some(duration(liveness)),
        limits: Some(v1::Limits {
            max_message_bytes: limits.message_bytes as i64,
            max_payload_bytes: cluster.payload_bytes as i64,
            max_settle_outcomes: cluster.batch as i32,
            max_window_jobs: limits.window_jobs as i32,
            max_enqueue_jobs: cluster.batch as i32,
        }),
        broker: config.name.clone(),
    }
}

fn lease(lease: Lease) -> v1::Lease {
    v1::Lease::new(lease.id, lease.token)
}

fn results(answers: Vec<Answer>) -> Vec<v1::SettleResult> {
    let result = |answer: Answer| match answer.status {
        Ok(status) => settle_result(answer.lease, status),
        Err(text) => invalid_item_text(answer.lease, text),
    };
    answers.into_iter().map(result).collect()
}

fn cancel(leases: Vec<Lease>, reason: CancelReason) -> v1::Cancel {
    let job = |l: Lease| v1::CancelledJob { id: l.id, token: l.token, reason: reason.number() };
    v1::Cancel { jobs: leases.into_iter().map(job).collect() }
}

fn drain(shutdown: bool, reconnect_after: Option<Duration>) -> v1::Drain {
    let reason = if shutdown { v1::DrainReason::Shutdown } else { v1::DrainReason::Requested };
    v1::Drain { reason: reason.into(), reconnect_after: reconnect_after.map(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: Option<FromWorker>) -> Result<ClientMessage, Error> {
        work_request(v1::WorkRequest { message }, false, &ClusterSettings::DEFAULT, &Limits::default())
    }

    #[test]
    fn a_message_without_content_is_refused() {
        assert_eq!(check(None).unwrap_err().field(), Some("message"));
    }

    #[test]
    fn a_window_of_nothing_unsubscribes_and_a_huge_one_is_refused() {
        let window = |jobs, bytes| check(Some(FromWorker::Window(v1::Window { task_type: "a".into(), jobs, bytes })));
        let Ok(ClientMessage::Window(args)) = window(0, 0) else { panic!("not a window") };
        assert_eq!((args.jobs, args.bytes), (0, 64 << 20));
        for (jobs, bytes, field) in
            [(-1, 0, "jobs"), (100_001, 0, "jobs"), (i32::MIN, 0, "jobs"), (1, -1, "bytes"), (1, i64::MAX, "bytes")]
        {
            assert_eq!(window(jobs, bytes).unwrap_err().field(), Some(field));
        }
    }

    #[test]
    fn settle_and_extend_messages_are_split_into_accepted_and_refused_items() {
        let outcomes = vec![
            v1::Outcome { id: 1, ..Default::default() },
            v1::Outcome { id: 2, outcome: Some(v1::outcome::Outcome::Release(v1::Release {})), ..Default::default() },
        ];
        let Ok(ClientMessage::Settle { accepted, refused }) = check(Some(FromWorker::Settle(v1::Settle { outcomes })))
        else {
            panic!("not a settle")
        };
        assert_eq!((accepted.len(), refused.len()), (1, 1));
        let extensions = vec![v1::Extension { id: 1, ..Default::default() }];
        let Ok(ClientMessage::Extend { accepted, refused }) =
            check(Some(FromWorker::Extend(v1::Extend { extensions })))
        else {
            panic!("not an extend")
        };
        assert_eq!((accepted.len(), refused.len()), (0, 1));
    }

    #[test]
    fn a_first_message_other_than_subscribe_is_refused_before_its_fields_are_checked() {
        let first = |message| {
            let request = v1::WorkRequest { message: Some(message) };
            work_request(request, true, &ClusterSettings::DEFAULT, &Limits::default())
        };
        for message in [
            FromWorker::Settle(v1::Settle::default()),
            FromWorker::Window(v1::Window { jobs: -1, ..Default::default() }),
            FromWorker::Extend(v1::Extend::default()),
            FromWorker::Progress(v1::Progress::default()),
            FromWorker::Drain(v1::DrainRequest {}),
            FromWorker::Ping(v1::Ping {}),
        ] {
            let error = first(message).unwrap_err();
            assert!(matches!(&error, Error::Precondition(problem) if problem.contains("subscribe")), "{error}");
        }
        assert!(matches!(first(FromWorker::Subscribe(v1::Subscribe::default())), Ok(ClientMessage::Subscribe(_))));
    }

    #[test]
    fn a_settle_extend_or_progress_message_without_items_is_refused() {
        assert_eq!(check(Some(FromWorker::Settle(v1::Settle::default()))).unwrap_err().field(), Some("outcomes"));
        assert_eq!(check(Some(FromWorker::Extend(v1::Extend::default()))).unwrap_err().field(), Some("extensions"));
        assert_eq!(check(Some(FromWorker::Progress(v1::Progress::default()))).unwrap_err().field(), Some("reports"));
    }

    #[test]
    fn drain_and_ping_need_nothing() {
        assert!(matches!(check(Some(FromWorker::Drain(v1::DrainRequest {}))), Ok(ClientMessage::Drain)));
        assert!(matches!(check(Some(FromWorker::Ping(v1::Ping {}))), Ok(ClientMessage::Ping)));
    }

    fn entry(name: &str, jobs: i32, bytes: i64) -> v1::Window {
        v1::Window { task_type: name.into(), jobs, bytes }
    }

    fn checked(message: v1::Subscribe) -> Result<SubscribeArgs, Error> {
        subscribe(message, &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn seen(args: &SubscribeArgs) -> Vec<(&str, usize, u64)> {
        args.windows.iter().map(|w| (w.task_type.as_str(), w.jobs, w.bytes)).collect()
    }

    #[test]
    fn the_shortest_subscription_is_one_job_of_one_type() {
        let args = checked(v1::Subscribe { task_type: "a".into(), ..Default::default() }).unwrap();
        assert_eq!(seen(&args), [("a", 1, 64 << 20)]);
        assert_eq!((args.session_id, args.max_message_bytes), (None, 4 << 20));
    }

    #[test]
    fn a_session_id_must_be_empty_or_made_by_a_broker() {
        let of = |session_id: &str| {
            checked(v1::Subscribe { session_id: session_id.into(), ..Default::default() }).map(|args| args.session_id)
        };
        let made = "0123456789abcdef0123456789abcdef00000007";
        assert_eq!(of("").unwrap(), None);
        assert_eq!(of(made).unwrap().map(|id| id.to_string()).as_deref(), Some(made));
        for chosen in ["worker-1", &made[1..], &format!("{made}0"), &made.to_uppercase(), &made.replace('0', "g")] {
            let error = of(chosen).unwrap_err();
            assert_eq!(error.field(), Some("session_id"), "{chosen}");
            assert!(!error.to_string().contains(chosen), "{error}");
        }
    }

    #[test]
    fn a_subscription_may_have_no_task_types() {
        assert!(checked(v1::Subscribe::default()).unwrap().windows.is_empty());
    }

    #[test]
    fn the_last_window_of_a_task_type_counts() {
        let windows = vec![entry("b", 2, 0), entry("a", 3, 5), entry("b", 4, 1 << 30), entry("c", 0, 0)];
        let args = checked(v1::Subscribe { task_type: "a".into(), window: 9, windows, ..Default::default() }).unwrap();
        assert_eq!(seen(&args), [("a", 3, 5), ("b", 4, 1 << 30), ("c", 0, 64 << 20)]);
    }

    #[test]
    fn a_thousand_types_are_allowed_however_they_are_given() {
        let list = |count: usize| (0..count).map(|i| entry(&format!("t{i}"), 1, 0)).collect::<Vec<_>>();
        let with = |count, name: &str| {
            checked(v1::Subscribe { task_type: name.into(), windows: list(count), ..Default::default() })
        };
        assert_eq!(with(1000, "").unwrap().windows.len(), 1000);
        assert_eq!(with(1000, "t7").unwrap().windows.len(), 1000);
        for error in [with(1001, "").unwrap_err(), with(1000, "other").unwrap_err()] {
            assert_eq!(error.to_string(), "windows has 1001 entries; 0 to 1000 are allowed");
        }
    }

    #[test]
    fn the_error_names_the_invalid_field_of_a_subscription() {
        let short = |window| v1::Subscribe { task_type: "a".into(), window, ..Default::default() };
        let list = |bad: v1::Window| v1::Subscribe {
            windows: vec![entry("x", 1, 0), entry("y", 1, 0), bad],
            ..Default::default()
        };
        let label = |name: &str, value: &str| v1::Subscribe {
            labels: [(name.into(), value.into())].into(),
            ..Default::default()
        };
        let bytes = |max_message_bytes| v1::Subscribe { max_message_bytes, ..Default::default() };
        let cases = [
            ("task_type", v1::Subscribe { task_type: "a b".into(), ..Default::default() }),
            ("window", short(-1)),
            ("window", short(100_001)),
            ("window", short(i32::MAX)),
            ("window", v1::Subscribe { window: 5, ..Default::default() }),
            ("windows[2].task_type", list(entry("", 1, 0))),
            ("windows[2].jobs", list(entry("z", -1, 0))),
            ("windows[2].jobs", list(entry("z", i32::MAX, 0))),
            ("windows[2].bytes", list(entry("z", 1, -1))),
            ("windows[2].bytes", list(entry("z", 1, (1 << 30) + 1))),
            ("windows[2].bytes", list(entry("z", 1, i64::MIN))),
            ("session_id", v1::Subscribe { session_id: "s".repeat(201), ..Default::default() }),
            ("session_id", v1::Subscribe { session_id: "a\0".into(), ..Default::default() }),
            ("held", v1::Subscribe { held: vec![v1::Lease::new(1, 2); 100_001], ..Default::default() }),
            (
                "labels",
                v1::Subscribe {
                    labels: (0..17).map(|i| (i.to_string(), String::new())).collect(),
                    ..Default::default()
                },
            ),
            ("labels", label(&"n".repeat(201), "")),
            ("labels", label("n", &"v".repeat(201))),
            ("labels", label("n", "\u{1b}[2J")),
            ("max_message_bytes", bytes(-1)),
            ("max_message_bytes", bytes(4095)),
            ("max_message_bytes", bytes((1 << 30) + 1)),
        ];
        for (field, message) in cases {
            let error = checked(message).expect_err(field);
            assert_eq!(error.field(), Some(field), "{error}");
        }
    }

    #[test]
    fn leases_held_and_labels_are_handed_on() {
        let message = v1::Subscribe {
            session_id: "5".repeat(40),
            held: vec![v1::Lease::new(1, -2)],
            labels: [("host".into(), "a b".into())].into(),
            max_message_bytes: 4096,
            ..Default::default()
        };
        let args = checked(message).unwrap();
        assert_eq!(args.session_id, SessionId::parse(&"5".repeat(40)));
        assert_eq!(args.held, [Lease { id: 1, token: -2 }]);
        assert_eq!(args.labels["host"], "a b");
        assert_eq!(args.max_message_bytes, 4096);
    }
}
