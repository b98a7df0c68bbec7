//! Requests for more time that the broker has not answered.

use howdah_proto::v1::{Extension, SettleResult, SettleStatus};
use tonic::Status;

use crate::{Error, Result};

use super::mailbox::ExtendCall;

/// A list is enough: extensions are rare, and answered soon.
#[derive(Debug, Default)]
pub(crate) struct Extensions {
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    call: ExtendCall,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Sent,
    Later,
}

impl Extensions {
    pub(crate) fn add(&mut self, call: ExtendCall) {
        let state = State::Unsent;
        self.calls.push(Call { call, state });
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.calls.iter().any(|call| call.state == State::Unsent)
    }

    /// What to send now, leaving out those that nobody waits for any more.
    pub(crate) fn next_batch(&mut self, max: usize) -> Vec<Extension> {
        self.calls.retain(|call| !call.call.reply.is_closed());
        let unsent = self
            .calls
            .iter_mut()
            .filter(|call| call.state == State::Unsent);
        unsent
            .take(max)
            .map(|call| {
                call.state = State::Sent;
                call.call.extension
            })
            .collect()
    }

    /// True: to be sent again a little later.
    pub(crate) fn answered(&mut self, result: SettleResult) -> bool {
        let matches = |call: &Call| {
            let extension = &call.call.extension;
            call.state == State::Sent
                && (extension.id, extension.token) == (result.id, result.token)
        };
        let Some(position) = self.calls.iter().position(matches) else {
            return false;
        };
        if result.status() == SettleStatus::Unavailable {
            self.calls[position].state = State::Later;
            return true;
        }
        let call = self.calls.remove(position).call;
        // Whoever asked may have gone away.
        let _ = call.reply.send(meaning(result));
        false
    }

    /// Those that could not be stored may be sent again.
    pub(crate) fn send_again(&mut self) {
        for call in &mut self.calls {
            if call.state == State::Later {
                call.state = State::Unsent;
            }
        }
    }

    /// A new stream has begun: what was not answered on the old one is sent again.
    pub(crate) fn resume(&mut self) {
        for call in &mut self.calls {
            call.state = State::Unsent;
        }
    }
}

fn meaning(result: SettleResult) -> Result<()> {
    match result.status() {
        SettleStatus::Ok => Ok(()),
        SettleStatus::Invalid => Err(Status::invalid_argument(result.message).into()),
        _ => Err(Error::LeaseLost { id: result.id }),
    }
}
