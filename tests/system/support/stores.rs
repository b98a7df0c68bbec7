//! With `HOWDAH_TEST_STORES=2`, the broker of each test serves a second store besides the test's database. The second store
//! takes no new task types, so every type that a test creates has its home in the test's database. All guarantees of one store
//! must also hold with two stores.

use std::{collections::HashMap, io::Write as _, thread};

use howdah_core::config::{Config, StoreConfig};
use tempfile::NamedTempFile;
use tokio::sync::Mutex;

use super::{TestDatabase, database::other_database};

/// Name of the store in the test's database, if there are two stores.
const OWN: &str = "own";
/// Name of the second store.
const OTHER: &str = "other";

/// Parts of the names of tests that need a single store, each with its reason.
const ONE_STORE: &[(&str, &str)] = &[
    ("test_clock::", "the second store has no clock for tests"),
    ("refusing::unexpected_errors_of_postgres_make_calls_unavailable_and_the_broker_not_ready", READY_ELSEWHERE),
    ("refusing::with_postgres_stopped_calls_say_since_when_it_cannot_be_reached", READY_ELSEWHERE),
    ("refusing::connections::a_broker_works_with_the_few_connections_that_its_role_may_have", READY_ELSEWHERE),
    ("conditions::logins::", READY_ELSEWHERE),
    ("sessions::an_expired_broker_refuses_a_resume_instead_of_reporting_leases_as_lost", SERVED_ELSEWHERE),
    ("sessions::a_lease_that_its_broker_is_about_to_end_is_not_adopted_again", SERVED_ELSEWHERE),
    ("stores::closed::schedules_of_a_closed_store_do_not_fire_until_the_store_is_open", "the only store needs no name"),
    ("storage::the_storage_comes_with_the_first_page_of_all_types_only", "the storage figures are of one store"),
    (
        "traces::elsewhere::an_attempt_that_comes_back_has_a_span_for_each_time_in_a_trace_that_the_broker_has_made",
        SERVED_ELSEWHERE,
    ),
];

const READY_ELSEWHERE: &str = "a broker with one reachable store of two is ready, and answers for it";

const SERVED_ELSEWHERE: &str = "a store that refuses a worker for now does not end its stream: the other one serves it";

/// Whether test brokers have two stores.
pub fn are_two() -> bool {
    match std::env::var("HOWDAH_TEST_STORES").as_deref() {
        Ok("2") => true,
        Ok("1") | Err(_) => false,
        Ok(other) => panic!("HOWDAH_TEST_STORES is 1 or 2, not {other}"),
    }
}

/// Whether the brokers of the current test have two stores. Some tests need a single store.
fn are_two_here() -> bool {
    if !are_two() {
        return false;
    }
    let thread = thread::current();
    // With a single test thread, the thread's name is `main` and not the name of the test.
    let test = thread.name().filter(|name| *name != "main").expect("two stores need --test-threads 2 or more");
    !ONE_STORE.iter().any(|(name, _)| test.contains(name))
}

/// Returns the second store for all brokers whose first store is the database at `url`.
async fn other(url: &str) -> TestDatabase {
    static OTHERS: Mutex<Option<HashMap<String, TestDatabase>>> = Mutex::const_new(None);
    // Test databases have unique names. Through a pooler the name differs, so use the whole URL as identity. Also use it if it
    // has options that only the broker understands, such as passfile.
    let config = url.parse::<tokio_postgres::Config>().ok();
    let database = config.as_ref().and_then(tokio_postgres::Config::get_dbname);
    let name = database.filter(|name| name.starts_with("test_")).unwrap_or(url).to_owned();
    let mut others = OTHERS.lock().await;
    let others = others.get_or_insert_default();
    match others.get(&name) {
        Some(known) => known.clone(),
        None => {
            let made = other_database().await;
            others.insert(name, made.clone());
            made
        }
    }
}

/// Adds the second store to a broker configuration without stores.
pub async fn second(config: &mut Config) {
    if !config.stores.is_empty() || !are_two_here() {
        return;
    }
    let own = StoreConfig::new(config, OWN.to_owned(), None);
    let other = other(&config.database_url).await;
    let other = StoreConfig {
        new_types: false,
        pool_size: 2,
        wake: config.wake,
        poll_interval: config.poll_interval,
        ..StoreConfig::new(&Config::new(&other.url), OTHER.to_owned(), None)
    };
    config.stores = vec![own, other];
    (config.database_url, config.listen_database_url, config.read_database_url) = (String::new(), None, None);
}

/// Writes a configuration file with both stores, for a broker in a separate process.
pub async fn file(database: &TestDatabase) -> Option<NamedTempFile> {
    if !are_two_here() {
        return None;
    }
    let other = other(&database.url).await;
    let text = format!(
        "[[stores]]\nname = '{OWN}'\ndatabase_url = '{}'\n\
         [[stores]]\nname = '{OTHER}'\ndatabase_url = '{}'\nnew_types = false\npool_size = 2\n",
        database.url, other.url
    );
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("write");
    Some(file)
}

/// Number of stores that the test's brokers have.
pub fn count() -> usize {
    if are_two_here() { 2 } else { 1 }
}

/// Name under which brokers serve the test's database.
pub fn own_name() -> &'static str {
    if are_two_here() { OWN } else { "default" }
}

/// Flags that restrict a `howdah` command to the test's database.
pub fn own_store() -> &'static [&'static str] {
    if are_two_here() { &["--in-store", OWN] } else { &[] }
}

/// Response of `/readyz` when all stores of the broker are ready.
pub fn all_ready() -> String {
    if are_two_here() { format!("store {OWN}: ready\nstore {OTHER}: ready\n") } else { "ready\n".to_owned() }
}

/// Path that tells whether the test's store is ready. With several stores, `/readyz` alone succeeds while one of them
/// is ready.
pub fn readyz() -> &'static str {
    if are_two_here() { "/readyz?store=own" } else { "/readyz" }
}

/// Removes the column with store names from a command's table. With one store, commands print no such column.
pub fn own_table(text: &str) -> String {
    let (heading, own) = ("STORE  ", format!("{OWN:<5}  "));
    let without = |line: &str| {
        let rest = line.strip_prefix(heading).or_else(|| line.strip_prefix(&own));
        rest.unwrap_or(line).to_owned()
    };
    text.split_inclusive('\n').map(without).collect()
}

/// Returns the metrics of the test's store, without the label `store`. With one store, brokers set no such label.
pub fn own_metrics(text: &str) -> String {
    let (own, other) = (format!("store=\"{OWN}\""), format!("store=\"{OTHER}\""));
    let lines = text.split_inclusive('\n').filter(|line| !line.contains(&other));
    lines.map(|line| line.replace(&format!("{{{own}}}"), "").replace(&format!("{own},"), "")).collect()
}
