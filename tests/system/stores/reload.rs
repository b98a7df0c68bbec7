//! Tests stores that are added and removed while a broker runs.

use std::{fs, io::Write as _};

use howdah_proto::v1::{ListStoresRequest, ReloadStoresRequest, ReloadStoresResponse, StoreState};
use tempfile::NamedTempFile;

use super::{calls::enqueue_at, empty, streams::resumed};
use crate::support::*;

fn table(name: &str, url: &str) -> String {
    format!("[[stores]]\nname = \"{name}\"\ndatabase_url = \"{url}\"\n")
}

fn config(stores: &[(&str, &TestDatabase)]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    let tables: String = stores.iter().map(|(name, database)| table(name, &database.url)).collect();
    file.write_all(tables.as_bytes()).expect("written");
    file
}

async fn reload(broker: &Service) -> ReloadStoresResponse {
    with_timeout("a reload", broker.stores().reload_stores(ReloadStoresRequest {})).await.unwrap().into_inner()
}

/// Runs `howdah` against this broker, and returns whether it succeeded and its messages.
async fn howdah_at(broker: &Service, args: &[&str]) -> (bool, String) {
    let args = [&["--server", &broker.grpc], args].concat();
    let (status, _, stderr) = run(&args, b"").await;
    (status.success(), stderr)
}

#[tokio::test]
async fn a_store_is_added_to_a_running_broker_and_its_jobs_go_to_connected_workers() {
    let (shop, mail) = (empty("add_shop").await, empty("add_mail").await);
    let file = config(&[("shop", &shop)]);
    let path = file.path().to_str().expect("a path").to_owned();
    let broker = Program::serve_file(file, &shop).await;
    let mut worker = broker.worker("t").window(4).await;
    broker.enqueue("t").await;
    let held = worker.next().await;
    let add = ["store", "add", "mail", "--database-url", &mail.url, "--config", &path];
    let (added, said) = howdah_at(&broker, &add).await;
    assert!(added && said.contains("added store mail"), "{said}");
    // The stream ends. The worker resumes its session with its lease, and also gets jobs of the new store.
    let session = worker.welcome.session_id.clone();
    let mut worker = resumed(&broker, &session, &[&held]).await;
    worker.ack(&held).await;
    let id = enqueue_at(&broker, "mail", "t").await;
    assert_eq!(worker.next().await.id, id);
    assert_eq!(reload(&broker).await, ReloadStoresResponse::default());
    // An invalid table is refused, and does not reach the file.
    let before = fs::read_to_string(&path).expect("the file");
    let (added, said) = howdah_at(&broker, &add).await;
    assert!(!added && said.contains("two stores have the name mail"), "{said}");
    assert_eq!(fs::read_to_string(&path).expect("the file"), before);
}

#[tokio::test]
async fn a_store_is_removed_only_after_it_was_closed_and_the_primary_store_never() {
    let (shop, mail) = (empty("remove_shop").await, empty("remove_mail").await);
    let file = config(&[("shop", &shop), ("mail", &mail)]);
    let path = file.path().to_owned();
    let broker = Program::serve_file(file, &shop).await;
    enqueue_at(&broker, "mail", "t").await;
    fs::write(&path, table("shop", &shop.url)).expect("written");
    let (reloaded, said) = howdah_at(&broker, &["store", "reload"]).await;
    assert!(!reloaded && said.contains("run `howdah store drain mail`"), "{said}");
    let (drained, said) = howdah_at(&broker, &["store", "drain", "mail", "--no-wait"]).await;
    assert!(drained, "{said}");
    assert_eq!(reload(&broker).await.removed, ["mail"]);
    let (listed, said) = howdah_at(&broker, &["--in-store", "mail", "store", "list"]).await;
    assert!(!listed && said.contains("there is no store \"mail\""), "{said}");
    // The store's broker is unregistered from its database, and the jobs stay there.
    mail.until("no broker", "SELECT NOT EXISTS (SELECT FROM howdah.broker WHERE expires > now())").await;
    assert_eq!(mail.count("SELECT count(*) FROM howdah.ready").await, 1);
    fs::write(&path, table("other", &mail.url)).expect("written");
    let (reloaded, said) = howdah_at(&broker, &["store", "reload"]).await;
    assert!(!reloaded && said.contains("restart the broker to change its primary store"), "{said}");
}

#[tokio::test]
async fn every_database_that_matches_a_pattern_is_a_store_also_one_that_is_created_later() {
    let shop = empty("pattern").await;
    let file = config(&[("shop", &shop)]);
    let first = shop.empty("a1", "").await;
    let pattern = format!("{}_*", shop.name());
    fs::write(file.path(), format!("{}{}", table("shop", &shop.url), table(&pattern, &shop.url))).expect("written");
    let broker = Program::serve_file(file, &shop).await;
    let id = enqueue_at(&broker, &first.name(), "t").await;
    let second = shop.empty("b2", "").await;
    assert_eq!(reload(&broker).await.added, [second.name()]);
    let other = enqueue_at(&broker, &second.name(), "t").await;
    let mut worker = broker.worker("t").window(4).await;
    let mut received = [worker.next().await.id, worker.next().await.id];
    received.sort_unstable();
    assert_eq!(received, [id, other]);
}

#[tokio::test]
async fn a_database_that_matches_a_pattern_and_cannot_be_served_stops_neither_a_reload_nor_a_start() {
    let shop = empty("skip").await;
    let pattern = format!("{}_*", shop.name());
    let stores = format!("{}{}", table("shop", &shop.url), table(&pattern, &shop.url));
    let foreign = shop.empty("a1", "").await;
    foreign.sql("CREATE SCHEMA howdah; CREATE TABLE howdah.ready (id integer)").await;
    let file = config(&[("shop", &shop)]);
    fs::write(file.path(), &stores).expect("written");
    let listed = async |broker: &Service| {
        let request = ListStoresRequest { store: foreign.name() };
        let answer = with_timeout("stores", broker.stores().list_stores(request)).await.expect("stores");
        answer.into_inner().stores.remove(0)
    };
    let broker = Program::serve_file(file, &shop).await;
    let skipped = listed(&broker).await;
    assert_eq!(skipped.state(), StoreState::Skipped);
    assert!(skipped.problem.contains("SQLSTATE 42P07"), "{skipped:?}");
    let other = shop.empty("b2", "").await;
    let reloaded = reload(&broker).await;
    assert_eq!((reloaded.added, reloaded.skipped), (vec![other.name()], vec![foreign.name()]));
    enqueue_at(&broker, &other.name(), "t").await;
    let (is_ok, said) = howdah_at(&broker, &["store", "list"]).await;
    assert!(is_ok && said.contains(&format!("skipped {}: ", foreign.name())), "{said}");
    let page = crate::ui::client::Browser::new(&broker).get("/ui/storage").await;
    page.has(&["<span class=\"tag bad\">skipped</span><span class=\"hint block\">", "SQLSTATE 42P07"]);
    foreign.sql("DROP SCHEMA howdah CASCADE").await;
    assert_eq!(reload(&broker).await.added, [foreign.name()]);
    enqueue_at(&broker, &foreign.name(), "t").await;
    assert_eq!(listed(&broker).await.state(), StoreState::Ready);
}
