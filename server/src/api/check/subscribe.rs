//! Checks of `Subscribe` messages: the description of a worker, and its windows.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    time::Duration,
};

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits},
};
use howdah_engine::session::{SessionId, SubscribeArgs, WindowArgs};
use howdah_proto::v1;

use super::{numbers, task_type, text, time};

/// Maximum number of labels of a worker.
pub(crate) const LABELS: usize = 16;
/// The largest message that a generated gRPC client accepts by default, in bytes.
pub(crate) const MESSAGE_BYTES: i64 = 4 << 20;
/// Allowed range of a worker's `liveness`.
pub(crate) const LIVENESS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(1);
/// Allowed range of `max_message_bytes`.
pub(crate) const MESSAGE_RANGE: RangeInclusive<i64> = (4 << 10)..=(1 << 30);

/// Checks the first message of a stream.
pub(super) fn subscribe(
    subscribe: v1::Subscribe,
    cluster: &ClusterSettings,
    limits: &Limits,
) -> Result<SubscribeArgs, Error> {
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
pub(super) fn window(window: &v1::Window, limits: &Limits) -> Result<WindowArgs, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, jobs: i32, bytes: i64) -> v1::Window {
        v1::Window { task_type: name.into(), jobs, bytes }
    }

    fn check(message: v1::Subscribe) -> Result<SubscribeArgs, Error> {
        subscribe(message, &ClusterSettings::DEFAULT, &Limits::default())
    }

    fn seen(args: &SubscribeArgs) -> Vec<(&str, usize, u64)> {
        args.windows.iter().map(|w| (w.task_type.as_str(), w.jobs, w.bytes)).collect()
    }

    #[test]
    fn the_shortest_subscription_is_one_job_of_one_type() {
        let args = check(v1::Subscribe { task_type: "a".into(), ..Default::default() }).unwrap();
        assert_eq!(seen(&args), [("a", 1, 64 << 20)]);
        assert_eq!((args.session_id, args.max_message_bytes), (None, 4 << 20));
    }

    #[test]
    fn a_session_id_must_be_empty_or_made_by_a_broker() {
        let of = |session_id: &str| {
            check(v1::Subscribe { session_id: session_id.into(), ..Default::default() }).map(|args| args.session_id)
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
        assert!(check(v1::Subscribe::default()).unwrap().windows.is_empty());
    }

    #[test]
    fn the_last_window_of_a_task_type_counts() {
        let windows = vec![entry("b", 2, 0), entry("a", 3, 5), entry("b", 4, 1 << 30), entry("c", 0, 0)];
        let args = check(v1::Subscribe { task_type: "a".into(), window: 9, windows, ..Default::default() }).unwrap();
        assert_eq!(seen(&args), [("a", 3, 5), ("b", 4, 1 << 30), ("c", 0, 64 << 20)]);
    }

    #[test]
    fn a_thousand_types_are_allowed_however_they_are_given() {
        let list = |count: usize| (0..count).map(|i| entry(&format!("t{i}"), 1, 0)).collect::<Vec<_>>();
        let with = |count, name: &str| {
            check(v1::Subscribe { task_type: name.into(), windows: list(count), ..Default::default() })
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
            let error = check(message).expect_err(field);
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
        let args = check(message).unwrap();
        assert_eq!(args.session_id, SessionId::parse(&"5".repeat(40)));
        assert_eq!(args.held, [Lease { id: 1, token: -2 }]);
        assert_eq!(args.labels["host"], "a b");
        assert_eq!(args.max_message_bytes, 4096);
    }
}
