//! Checks of the messages of the `Work` stream.

use howdah_core::{
    error::Error,
    job::{ClusterSettings, Lease, Limits, SettleStatus},
};
use howdah_engine::session::{Answer, ClientMessage};
use howdah_proto::v1::{self, work_request::Message};

use super::{extend, progress, settle, subscribe};

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
    if is_first && matches!(&request.message, Some(message) if !matches!(message, Message::Subscribe(_))) {
        return Err(Error::Precondition("the first message must be subscribe".into()));
    }
    match request.message {
        Some(Message::Subscribe(message)) => {
            subscribe::subscribe(message, cluster, limits).map(ClientMessage::Subscribe)
        }
        Some(Message::Window(message)) => subscribe::window(&message, limits).map(ClientMessage::Window),
        Some(Message::Settle(message)) => {
            let items = settle::settle(message.outcomes, cluster, limits)?;
            Ok(ClientMessage::Settle { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(Message::Extend(message)) => {
            let items = extend::extend(message.extensions, cluster)?;
            Ok(ClientMessage::Extend { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(Message::Progress(message)) => {
            let items = progress::progress(message.reports, cluster)?;
            Ok(ClientMessage::Progress { accepted: items.accepted, refused: answers(items.refused) })
        }
        Some(Message::Drain(v1::DrainRequest {})) => Ok(ClientMessage::Drain),
        Some(Message::Ping(v1::Ping {})) => Ok(ClientMessage::Ping),
        Some(Message::Pong(v1::Pong {})) => Ok(ClientMessage::Pong),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: Option<Message>) -> Result<ClientMessage, Error> {
        work_request(v1::WorkRequest { message }, false, &ClusterSettings::DEFAULT, &Limits::default())
    }

    #[test]
    fn a_message_without_content_is_refused() {
        assert_eq!(check(None).unwrap_err().field(), Some("message"));
    }

    #[test]
    fn a_window_of_nothing_unsubscribes_and_a_huge_one_is_refused() {
        let window = |jobs, bytes| check(Some(Message::Window(v1::Window { task_type: "a".into(), jobs, bytes })));
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
        let Ok(ClientMessage::Settle { accepted, refused }) = check(Some(Message::Settle(v1::Settle { outcomes })))
        else {
            panic!("not a settle")
        };
        assert_eq!((accepted.len(), refused.len()), (1, 1));
        let extensions = vec![v1::Extension { id: 1, ..Default::default() }];
        let Ok(ClientMessage::Extend { accepted, refused }) = check(Some(Message::Extend(v1::Extend { extensions })))
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
            Message::Settle(v1::Settle::default()),
            Message::Window(v1::Window { jobs: -1, ..Default::default() }),
            Message::Extend(v1::Extend::default()),
            Message::Progress(v1::Progress::default()),
            Message::Drain(v1::DrainRequest {}),
            Message::Ping(v1::Ping {}),
        ] {
            let error = first(message).unwrap_err();
            assert!(matches!(&error, Error::Precondition(problem) if problem.contains("subscribe")), "{error}");
        }
        assert!(matches!(first(Message::Subscribe(v1::Subscribe::default())), Ok(ClientMessage::Subscribe(_))));
    }

    #[test]
    fn a_settle_extend_or_progress_message_without_items_is_refused() {
        assert_eq!(check(Some(Message::Settle(v1::Settle::default()))).unwrap_err().field(), Some("outcomes"));
        assert_eq!(check(Some(Message::Extend(v1::Extend::default()))).unwrap_err().field(), Some("extensions"));
        assert_eq!(check(Some(Message::Progress(v1::Progress::default()))).unwrap_err().field(), Some("reports"));
    }

    #[test]
    fn drain_and_ping_need_nothing() {
        assert!(matches!(check(Some(Message::Drain(v1::DrainRequest {}))), Ok(ClientMessage::Drain)));
        assert!(matches!(check(Some(Message::Ping(v1::Ping {}))), Ok(ClientMessage::Ping)));
    }
}
