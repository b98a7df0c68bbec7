use futures::poll;

use super::*;

fn account() -> Arc<Account> {
    Arc::default()
}

#[tokio::test]
async fn an_account_gets_a_quarter_of_the_memory_and_more_only_for_a_single_request() {
    let memory = Memory::new(400);
    let (one, other) = (account(), account());
    let _held = memory.try_take(&one, 60).expect("room");
    assert!(memory.try_take(&one, 60).is_none());
    let mut waits = Box::pin(memory.take(&one, 60));
    assert!(poll!(&mut waits).is_pending());
    let large = memory.try_take(&other, 300).expect("the others do not wait, and one may be large");
    assert!(memory.try_take(&other, 1).is_none());
    drop((large, waits));
    assert_eq!(memory.used(), 60);
    assert!(memory.try_take(&one, 40).is_some());
}

#[tokio::test]
async fn all_connections_of_a_principal_have_a_quarter_together() {
    let memory = Memory::new(400);
    let principal = account();
    let (one, two) = (Account::part_of(&principal), Account::part_of(&principal));
    let held = memory.try_take(&one, 60).expect("room");
    assert!(memory.try_take(&two, 60).is_none());
    let mut waits = Box::pin(memory.take(&two, 60));
    assert!(poll!(&mut waits).is_pending());
    assert_eq!(principal.counts(), (60, 1));
    let _other = memory.try_take(&Account::part_of(&account()), 100).expect("another principal does not wait");
    drop(held);
    drop(waits.await.expect("room"));
    assert_eq!(principal.counts(), (0, 0));
}

#[tokio::test]
async fn a_request_that_waits_for_memory_is_not_overtaken() {
    let memory = Memory::new(100);
    let held = memory.try_take(&account(), 60).expect("room");
    let (first, second) = (account(), account());
    let mut large = Box::pin(memory.take(&first, 50));
    let mut small = Box::pin(memory.take(&second, 10));
    assert!(poll!(&mut large).is_pending() && poll!(&mut small).is_pending());
    assert!(memory.is_short() && memory.try_take(&account(), 1).is_none());
    drop(held);
    let _large = large.await.expect("room");
    drop(small.await);
    assert!(!memory.is_short());
    assert_eq!(memory.used(), 50);
}

#[tokio::test]
async fn the_oldest_arriving_message_can_always_get_memory() {
    let memory = Memory::new(100);
    let mut messages = Vec::new();
    for _ in 0..4 {
        let mut message = memory.begin(&account(), 80).await.expect("room");
        message.grow(25).await.expect("room");
        messages.push(message);
    }
    let [a, b, c, d] = &mut messages[..] else { unreachable!() };
    let (mut b_more, mut c_more, mut d_more) = (Box::pin(b.grow(55)), Box::pin(c.grow(55)), Box::pin(d.grow(55)));
    assert!(poll!(&mut b_more).is_pending() && poll!(&mut c_more).is_pending() && poll!(&mut d_more).is_pending());
    a.grow(55).await.expect("the oldest goes on");
    a.arrived();
    assert!(poll!(&mut b_more).is_pending(), "arriving messages wait for a complete message");
    drop((b_more, c_more, d_more));
    messages.remove(0);
    messages[0].grow(55).await.expect("now this is the oldest");
    drop(messages);
    assert_eq!(memory.used(), 0);
    assert_eq!(memory.state.lock().arriving_used, 0);
}

#[tokio::test]
async fn memory_of_a_cancelled_request_is_free_again_whether_it_waited_or_was_granted() {
    let memory = Memory::new(100);
    let held = memory.try_take(&account(), 100).expect("room");
    let (one, other) = (account(), account());
    let (mut waits, mut granted) = (Box::pin(memory.take(&one, 20)), Box::pin(memory.take(&other, 20)));
    assert!(poll!(&mut waits).is_pending() && poll!(&mut granted).is_pending());
    drop(waits);
    drop(held);
    drop(granted);
    assert_eq!((memory.used(), one.counts(), other.counts()), (0, (0, 0), (0, 0)));
}

#[tokio::test]
async fn the_number_of_waiting_requests_of_an_account_is_bounded() {
    let memory = Memory::new(100);
    let _held = memory.try_take(&account(), 100).expect("room");
    let greedy = account();
    let mut waiting = Vec::new();
    for _ in 0..MOST_WAITING / SHARE {
        let mut one = Box::pin(memory.take(&greedy, 1));
        assert!(poll!(&mut one).is_pending());
        waiting.push(one);
    }
    assert!(memory.take(&greedy, 1).await.is_err());
    let other = account();
    assert!(poll!(Box::pin(memory.take(&other, 1))).is_pending());
}
