//! Shared memory budgets: a semaphore of bytes, granted in the order of requests. An account is a connection or a
//! principal, and gets at most a quarter of the budget. A larger request is granted only while its account holds no
//! other memory.
//!
//! Most holders request all of their memory at once. A message that arrives in parts holds some memory and requests
//! more. Such messages could wait for each other in a cycle. To prevent that, the oldest one may exceed the budget by
//! the amount that the other arriving messages hold. So all arriving messages together use at most twice the budget.

mod account; // memory usage of connections and principals
pub mod answers; // memory for the responses of a connection
#[cfg(test)]
mod tests;

pub use account::Account;
pub use answers::AnswerMemory;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// An account gets at most one part in `SHARE` of a budget.
pub(crate) const SHARE: usize = 4;
/// Maximum number of requests that wait for memory. Of these, one part in `SHARE` may belong to the same account.
pub(crate) const MOST_WAITING: usize = 4_096;

/// A memory budget.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    most: usize,
}

/// Error: too many requests are waiting for memory.
#[derive(Clone, Copy, Debug)]
pub struct Full;

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// The bytes of `used` that belong to messages that are still arriving.
    arriving_used: usize,
    /// Sequence numbers of the messages that are still arriving.
    arriving: BTreeSet<u64>,
    waiting: BTreeMap<u64, Waiter>,
    /// Whether a request waits because the budget is used up.
    is_short: bool,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    ask: Ask,
    account: Arc<Account>,
    granted: oneshot::Sender<()>,
}

/// A request for memory.
#[derive(Clone, Copy, Debug)]
struct Ask {
    bytes: usize,
    /// Number of bytes to add to the account.
    of_account: usize,
    /// Number of bytes that the requester already holds.
    own: usize,
    own_of_account: usize,
    arrives: bool,
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub struct Held {
    memory: Arc<Memory>,
    account: Arc<Account>,
    bytes: usize,
    of_account: usize,
    /// Sequence number of a message that is still arriving; `None` for other reservations.
    arrives: Option<u64>,
}

impl Memory {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), most: most.max(1) })
    }

    /// Size of the budget in bytes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Number of reserved bytes.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Whether a request waits because the budget is used up.
    pub fn is_short(&self) -> bool {
        self.state.lock().is_short
    }

    /// Reserves bytes if they are available now and no earlier request waits for memory.
    pub fn try_take(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Option<Held> {
        let ask = Ask { bytes, of_account: bytes, own: 0, own_of_account: 0, arrives: false };
        let mut state = self.state.lock();
        if state.is_short || !self.fits_account(&ask, account) || !self.fits(&state, &ask, u64::MAX) {
            return None;
        }
        state.give(&ask, account);
        Some(self.held(account, ask, None))
    }

    /// Waits until the bytes are available, and reserves them.
    pub async fn take(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Result<Held, Full> {
        let ask = Ask { bytes, of_account: bytes, own: 0, own_of_account: 0, arrives: false };
        self.ask(account, ask, None).await?;
        Ok(self.held(account, ask, None))
    }

    /// Registers a message that arrives in parts, with its expected size. Waits until the size fits into the account's
    /// share of the budget. [`Held::grow`] then reserves the bytes.
    pub async fn begin(self: &Arc<Self>, account: &Arc<Account>, expected: usize) -> Result<Held, Full> {
        let ask = Ask { bytes: 0, of_account: expected, own: 0, own_of_account: 0, arrives: false };
        self.ask(account, ask, None).await?;
        let arrives = {
            let mut state = self.state.lock();
            let order = state.order();
            state.arriving.insert(order);
            order
        };
        Ok(self.held(account, ask, Some(arrives)))
    }

    fn held(self: &Arc<Self>, account: &Arc<Account>, ask: Ask, arrives: Option<u64>) -> Held {
        let (memory, account) = (self.clone(), account.clone());
        Held { memory, account, bytes: ask.bytes, of_account: ask.of_account, arrives }
    }

    async fn ask(&self, account: &Arc<Account>, ask: Ask, order: Option<u64>) -> Result<(), Full> {
        let mut waiting = {
            let mut state = self.state.lock();
            let order = order.unwrap_or_else(|| state.order());
            let (share, all) = (MOST_WAITING / SHARE, state.waiting.len());
            if all >= MOST_WAITING || account.has_waiting(share) {
                // A message that has started to arrive may wait even if the maximum is reached, because such messages
                // are few.
                if !ask.arrives {
                    return Err(Full);
                }
            }
            let (granted, grant) = oneshot::channel();
            account.begin_to_wait();
            state.waiting.insert(order, Waiter { ask, account: account.clone(), granted });
            self.grant(&mut state);
            Waiting { memory: self, account, ask, order, grant, taken: false }
        };
        // The channel cannot close first: a waiter is only removed when it is granted, or when `waiting` is dropped.
        let _ = (&mut waiting.grant).await;
        waiting.taken = true;
        Ok(())
    }

    /// Grants waiting requests in order. Only the oldest arriving message may overtake a request that waits for memory.
    /// Requests that wait for their account's share hold back no others.
    fn grant(&self, state: &mut State) {
        let (mut is_short, mut granted) = (false, Vec::new());
        let orders: Vec<u64> = state.waiting.keys().copied().collect();
        for order in orders {
            let Some(waiter) = state.waiting.get(&order) else { continue };
            let ask = waiter.ask;
            if !self.fits_account(&ask, &waiter.account) {
                continue;
            }
            let is_first = ask.arrives && state.arriving.first() == Some(&order);
            if ask.bytes > 0 && (is_short && !is_first || !self.fits(state, &ask, order)) {
                is_short = true;
                continue;
            }
            if let Some(waiter) = state.waiting.remove(&order) {
                waiter.account.end_to_wait();
                state.give(&ask, &waiter.account);
                granted.push(waiter.granted);
            }
        }
        state.is_short = is_short;
        for granted in granted {
            // Sending fails if the requester no longer waits. Dropping its `Waiting` then releases the memory.
            let _ = granted.send(());
        }
    }

    fn fits_account(&self, ask: &Ask, account: &Account) -> bool {
        // An arriving message was counted against its account's share when it was registered.
        ask.arrives || account.fits(ask.own_of_account, ask.of_account, self.most / SHARE)
    }

    fn fits(&self, state: &State, ask: &Ask, order: u64) -> bool {
        if state.used == ask.own || state.used + ask.bytes <= self.most {
            return true;
        }
        let is_first = ask.arrives && state.arriving.first() == Some(&order);
        let others = state.used - state.arriving_used;
        is_first && (others == 0 || others + ask.own + ask.bytes <= self.most)
    }

    fn give_back(&self, account: &Account, bytes: usize, of_account: usize, arriving: usize) {
        let mut state = self.state.lock();
        state.used -= bytes;
        state.arriving_used -= arriving;
        account.subtract(of_account);
        if !state.waiting.is_empty() {
            self.grant(&mut state);
        }
    }
}

impl State {
    fn order(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn give(&mut self, ask: &Ask, account: &Account) {
        self.used += ask.bytes;
        if ask.arrives {
            self.arriving_used += ask.bytes;
        }
        account.add(ask.of_account);
    }
}

/// A request that waits for memory. Dropping the value removes the request from the queue.
struct Waiting<'a> {
    memory: &'a Memory,
    account: &'a Arc<Account>,
    ask: Ask,
    order: u64,
    grant: oneshot::Receiver<()>,
    taken: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let Ask { bytes, of_account, arrives, .. } = self.ask;
        {
            let mut state = self.memory.state.lock();
            if state.waiting.remove(&self.order).is_some() {
                self.account.end_to_wait();
                // The dropped request may have held back others.
                return self.memory.grant(&mut state);
            }
        }
        self.memory.give_back(self.account, bytes, of_account, if arrives { bytes } else { 0 });
    }
}

impl Held {
    /// Reserves more bytes for an arriving message, and waits until they are available.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let of_account = (self.bytes + bytes).saturating_sub(self.of_account);
        let ask = Ask { bytes, of_account, own: self.bytes, own_of_account: self.of_account, arrives: true };
        self.memory.ask(&self.account, ask, self.arrives).await?;
        self.bytes += bytes;
        self.of_account += of_account;
        Ok(())
    }

    /// Marks the message as completely arrived, so that it needs no more memory.
    pub fn arrived(&mut self) {
        let Some(order) = self.arrives.take() else { return };
        {
            let mut state = self.memory.state.lock();
            state.arriving.remove(&order);
            state.arriving_used -= self.bytes;
        }
        self.shrink(self.bytes);
    }

    /// Reduces the reservation to this number of bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        let (less, of_account) = (self.bytes - bytes, self.of_account.saturating_sub(bytes));
        self.memory.give_back(&self.account, less, of_account, if self.arrives.is_some() { less } else { 0 });
        (self.bytes, self.of_account) = (bytes, self.of_account - of_account);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let arriving = self.arrives.take().map_or(0, |order| {
            self.memory.state.lock().arriving.remove(&order);
            self.bytes
        });
        self.memory.give_back(&self.account, self.bytes, self.of_account, arriving);
    }
}
