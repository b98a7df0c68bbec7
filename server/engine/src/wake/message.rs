//! Format of the notifications between brokers. Any role with a database login may write to the channel, so an invalid
//! payload is ignored, and a notification counts only as a hint.

use std::fmt::Write as _;

/// Maximum length of a notification's payload in bytes. Postgres rejects 8,000 bytes.
const MAX_BYTES: usize = 7_900;

/// Hash of a session's id and its principal (`SessionId::mark`).
pub type SessionMark = [u8; 16];

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Task types with ready jobs, each with the lowest rank: `r 12:345,13:99`.
    Ready(Vec<(i32, i64)>),
    /// Task types of jobs enqueued with SQL, each with the lowest rank: `e 12:345`. Sent by `howdah.announce`. Only one
    /// of several concurrent transactions sends it.
    Enqueued(Vec<(i32, i64)>),
    /// Leases that a broker has lost: `c <broker> <0 cancelled, 1 timed out, 2 moved> 17,18`. That broker then compares
    /// its leases of these jobs with the database.
    Lost(LostLeases),
    /// Jobs that callers wait for have ended: `d 17,18`. Sent by `howdah.after_end`.
    Ended(Vec<i64>),
    /// Sessions that have resumed at another broker, with all of their leases: `m 0123…,4567…`. A mark can only be made
    /// with the secret session id, so this notification is more than a hint.
    SessionsMoved(Vec<SessionMark>),
    /// Settings have changed: `s`.
    Settings,
}

/// Reason why a broker lost leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The jobs were cancelled.
    Cancelled = 0,
    /// Their deadlines passed.
    TimedOut = 1,
    /// The worker resumed its session at another broker, which took over the leases.
    Moved = 2,
}

/// Leases that a broker has lost, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostLeases {
    /// The broker.
    pub broker_id: i32,
    /// The reason.
    pub loss: Loss,
    /// Ids of the jobs. The leases' tokens are omitted, because anyone who listens could settle the jobs with them.
    pub ids: Vec<i64>,
}

impl Notice {
    /// Returns the payloads of the notification: several if one would exceed `MAX_BYTES`.
    pub fn payloads(&self) -> Vec<String> {
        match self {
            Self::Ready(types) => pairs("r ", types.iter().map(|(t, r)| (i64::from(*t), *r))),
            Self::Enqueued(types) => pairs("e ", types.iter().map(|(t, r)| (i64::from(*t), *r))),
            Self::Lost(lost) => lists(&format!("c {} {} ", lost.broker_id, lost.loss as u8), &lost.ids),
            Self::Ended(ids) => lists("d ", ids),
            Self::SessionsMoved(sessions) => {
                let list = |marks: &[SessionMark]| marks.iter().map(hex::encode).collect::<Vec<_>>().join(",");
                sessions.chunks(200).map(|marks| format!("m {}", list(marks))).collect()
            }
            Self::Settings => vec!["s".into()],
        }
    }

    /// Parses the payload of a notification; `None` if it is invalid.
    pub fn parse(payload: &str) -> Option<Self> {
        let (kind, rest) = payload.split_once(' ').unwrap_or((payload, ""));
        match kind {
            "s" if rest.is_empty() => Some(Self::Settings),
            "r" => types_of(rest).map(Self::Ready),
            "e" => types_of(rest).map(Self::Enqueued),
            "m" => rest.split(',').map(parse_mark).collect::<Option<_>>().map(Self::SessionsMoved),
            "d" => parse_list(rest).map(Self::Ended),
            "c" => {
                let mut parts = rest.splitn(3, ' ');
                let broker_id = parts.next()?.parse().ok()?;
                let loss = match parts.next()? {
                    "0" => Loss::Cancelled,
                    "1" => Loss::TimedOut,
                    "2" => Loss::Moved,
                    _ => return None,
                };
                Some(Self::Lost(LostLeases { broker_id, loss, ids: parse_list(parts.next()?)? }))
            }
            _ => None,
        }
    }
}

fn lists(head: &str, ids: &[i64]) -> Vec<String> {
    let list = |ids: &[i64]| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    ids.chunks(300).map(|ids| format!("{head}{}", list(ids))).collect()
}

fn parse_mark(text: &str) -> Option<SessionMark> {
    let mut mark = SessionMark::default();
    hex::decode_to_slice(text, &mut mark).ok().map(|()| mark)
}

fn parse_list(text: &str) -> Option<Vec<i64>> {
    text.split(',').map(|id| id.parse().ok()).collect()
}

fn pairs(head: &str, values: impl Iterator<Item = (i64, i64)>) -> Vec<String> {
    let mut payloads = Vec::new();
    let mut text = head.to_owned();
    for (a, b) in values {
        if text.len() > MAX_BYTES - 45 {
            payloads.push(std::mem::replace(&mut text, head.to_owned()));
        }
        let comma = if text.len() == head.len() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{a}:{b}");
    }
    if text.len() > head.len() {
        payloads.push(text);
    }
    payloads
}

fn types_of(text: &str) -> Option<Vec<(i32, i64)>> {
    parse_pairs(text, |t, r| Some((i32::try_from(t).ok()?, r)))
}

fn parse_pairs<T>(text: &str, make: impl Fn(i64, i64) -> Option<T>) -> Option<Vec<T>> {
    text.split(',')
        .map(|pair| {
            let (a, b) = pair.split_once(':')?;
            make(a.parse().ok()?, b.parse().ok()?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_back_from_its_payloads() {
        for notice in [
            Notice::Ready(vec![(1, -5), (i32::MAX, i64::MIN)]),
            Notice::Enqueued(vec![(7, 5)]),
            Notice::Lost(LostLeases { broker_id: 7, loss: Loss::TimedOut, ids: vec![1, i64::MAX] }),
            Notice::Lost(LostLeases { broker_id: 7, loss: Loss::Moved, ids: vec![2] }),
            Notice::Ended(vec![1, i64::MAX]),
            Notice::SessionsMoved(vec![[0; 16], [255; 16]]),
            Notice::Settings,
        ] {
            let payloads = notice.payloads();
            assert_eq!(payloads.len(), 1);
            assert_eq!(Notice::parse(&payloads[0]), Some(notice));
        }
    }

    #[test]
    fn a_long_notice_is_split_below_what_postgres_takes() {
        let types: Vec<(i32, i64)> = (0..5_000).map(|t| (t, i64::MIN)).collect();
        let payloads = Notice::Ready(types.clone()).payloads();
        assert!(payloads.iter().all(|p| p.len() < 8_000));
        let back: Vec<_> = payloads
            .iter()
            .flat_map(|p| match Notice::parse(p) {
                Some(Notice::Ready(types)) => types,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(back, types);
    }

    #[test]
    fn junk_is_no_notice() {
        for junk in [
            "",
            "r",
            "r ",
            "r x:1",
            "r 1",
            "r 1:2,",
            "r 99999999999:1",
            "c 1 1",
            "c x 1 1",
            "c 1 3 1",
            "c 1 1 1:1",
            "d",
            "d 1,",
            "d x",
            "m",
            "m ",
            "m 00",
            "m 0000000000000000000000000000000g",
            "m 00000000000000000000000000000000,",
            "s s",
            "\0",
            "r 1:2;drop",
        ] {
            assert_eq!(Notice::parse(junk), None, "{junk:?}");
        }
    }
}
