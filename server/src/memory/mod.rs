//! Memory that many share: bytes are given out in the order of requests, at most a quarter of them to one account, which
//! is a connection or a principal. What is larger than that passes when it is alone in its account.
//!
//! Most ask once for all that they need. A message that arrives bit by bit asks for more while it holds some; so that such
//! messages do not wait for each other in a cycle, the oldest of them may use what the others hold. All that arrives
//! together is never more than the memory once more.

mod account; // whose use is counted
pub(crate) mod answers; // answers, as one connection has their memory
#[cfg(test)]
mod tests;

pub(crate) use account::Account;
pub(crate) use answers::AnswerMemory;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The part of a memory that one account may have.
pub(crate) const SHARE: usize = 4;
/// Who may wait at once; of one account a share of that.
pub(crate) const MOST_WAITING: usize = 4_096;

/// The memory.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    most: usize,
}

/// Too many wait already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full;

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// Of that, what still arrives.
    arriving_used: usize,
    /// What arrives, oldest first.
    arriving: BTreeSet<u64>,
    waiting: BTreeMap<u64, Waiter>,
    /// Somebody waits for what others use.
    is_short: bool,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    ask: Ask,
    account: Arc<Account>,
    granted: oneshot::Sender<()>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    bytes: usize,
    /// The same for the account.
    of_account: usize,
    /// What who asks holds already.
    own: usize,
    own_of_account: usize,
    arrives: bool,
}

/// Bytes that are in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<Memory>,
    account: Arc<Account>,
    bytes: usize,
    of_account: usize,
    /// Its place among what arrives.
    arrives: Option<u64>,
}

impl Memory {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), most: most.max(1) })
    }

    /// The bytes that may be in use.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The bytes that are in use.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Whether somebody waits for bytes that others use.
    pub(crate) fn is_short(&self) -> bool {
        self.state.lock().is_short
    }

    /// Bytes, if they are free now and nobody waits for them.
    pub(crate) fn try_take(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Option<Held> {
        let ask = Ask { bytes, of_account: bytes, own: 0, own_of_account: 0, arrives: false };
        let mut state = self.state.lock();
        if state.is_short || !self.fits_account(&ask, account) || !self.fits(&state, &ask, u64::MAX) {
            return None;
        }
        state.give(&ask, account);
        Some(self.held(account, ask, None))
    }

    /// Bytes, when they are free.
    pub(crate) async fn take(self: &Arc<Self>, account: &Arc<Account>, bytes: usize) -> Result<Held, Full> {
        let ask = Ask { bytes, of_account: bytes, own: 0, own_of_account: 0, arrives: false };
        self.ask(account, ask, None).await?;
        Ok(self.held(account, ask, None))
    }

    /// Begins to take what arrives bit by bit and may become so large: waits for the account's share.
    pub(crate) async fn begin(self: &Arc<Self>, account: &Arc<Account>, expected: usize) -> Result<Held, Full> {
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
                // What has begun goes on, and there are fewer of those.
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
        // An error is impossible: a waiter is removed only when it is granted, or by dropping this.
        let _ = (&mut waiting.grant).await;
        waiting.taken = true;
        Ok(())
    }

    /// Grants what fits, in order. Nobody overtakes who waits for the memory; who waits for the account holds up nobody.
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
            // Who has gone returns it when the waiter is dropped.
            let _ = granted.send(());
        }
    }

    fn fits_account(&self, ask: &Ask, account: &Account) -> bool {
        // What arrives was let in with its account's share.
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

/// Waits in line while it exists.
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
                // Others may have waited for this one.
                return self.memory.grant(&mut state);
            }
        }
        self.memory.give_back(self.account, bytes, of_account, if arrives { bytes } else { 0 });
    }
}

impl Held {
    /// More of what arrives, when it is free.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let of_account = (self.bytes + bytes).saturating_sub(self.of_account);
        let ask = Ask { bytes, of_account, own: self.bytes, own_of_account: self.of_account, arrives: true };
        self.memory.ask(&self.account, ask, self.arrives).await?;
        self.bytes += bytes;
        self.of_account += of_account;
        Ok(())
    }

    /// It has arrived: it asks for no more.
    pub(crate) fn arrived(&mut self) {
        let Some(order) = self.arrives.take() else { return };
        {
            let mut state = self.memory.state.lock();
            state.arriving.remove(&order);
            state.arriving_used -= self.bytes;
        }
        self.shrink(self.bytes);
    }

    /// Returns what is over this.
    pub(crate) fn shrink(&mut self, bytes: usize) {
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
