//! Tests that the stores of a broker archive to one directory, each under its store number.

use super::{DAY, Setting};
use crate::support::*;

/// Returns a query that is true when `DAY` is archived.
fn archived() -> String {
    format!("SELECT count(*) = 1 FROM howdah.archive WHERE day = {DAY} AND state IN ('archived', 'dropped')")
}

#[tokio::test]
async fn the_stores_of_a_broker_archive_to_one_place_and_each_has_its_own_files_there() {
    let (shop, mail) = (Setting::with(500).await, Setting::with(300).await);
    // Moves the ids of `mail` into the id range of another store.
    let ids = "UPDATE howdah.history SET id = id + howdah.ids_of_a_store(); UPDATE howdah.payload SET id = id + howdah.ids_of_a_store()";
    mail.database.sql(ids).await;
    // Gives the database a new identity. Test databases are copies of one template with one identity, and a broker refuses two
    // stores with the same identity.
    let url = ["--database-url", &mail.database.url];
    let (status, _, err) = run(&[&["migrate", "--new-identity"], &url[..]].concat(), b"").await;
    assert!(status.success(), "{err}");
    let stores = [("shop", &shop.database), ("mail", &mail.database)];
    let broker = TestBroker::on_stores(&stores, |config| config.archive_url = Some(shop.files.url())).await;
    for setting in [&shop, &mail] {
        setting.database.until("an archived day", &archived()).await;
        // Waits until the broker has archived all other days too, because stopping the broker would interrupt an
        // archive run.
        let store = setting.store();
        let rest = async || store.days_to_archive(5, false).await.expect("days").is_empty();
        eventually("an archive of all days that are over", rest).await;
        setting.database.until("no day that a run holds", "SELECT count(held_until) = 0 FROM howdah.archive").await;
    }
    let failed = "SELECT count(*) FROM howdah.archive WHERE error IS NOT NULL";
    assert_eq!([shop.count(failed).await, mail.count(failed).await], [0, 0]);
    let (of_shop, of_mail) = (number(&shop).await, number(&mail).await);
    assert_ne!(of_shop, of_mail);
    assert_eq!(shop.files.manifest_of(of_shop, &shop.day).sums.rows, 500);
    assert_eq!(shop.files.manifest_of(of_mail, &shop.day).sums.rows, 300);
    assert_eq!(shop.files.staged(), 0);
    broker.stop().await;
    // Both stores archive to one directory. Each command reads only the files of the store in `--database-url`.
    let archive_url = shop.files.url();
    let verify = [&["archive", "verify", "--url", &archive_url], &url[..]].concat();
    let (status, out, err) = run(&verify, b"").await;
    assert!(status.success() && err.contains("300 jobs"), "{out}{err}");
    let forget = [&["archive", "forget", "--type", "rare", "--reason", "a test", "--yes"], &url[..]].concat();
    let (status, out, err) = run(&forget, b"").await;
    assert!(status.success(), "{out}{err}");
    assert_eq!(mail.drop_old().await, 1);
    assert_eq!(shop.files.manifest_of(of_mail, &shop.day).sums.rows, 297);
    let archiver = super::archiver(&mail.database.url, &archive_url).await;
    assert_eq!(archiver.expired(1).await.expect("days"), [mail.day.as_str()]);
    archiver.expire(&mail.day, 1).await.expect("deleted");
    let left = shop.files.everything();
    assert!(
        left.iter().all(|path| !path.to_string_lossy().contains(&format!("store={of_mail}/day={}", mail.day))),
        "{left:?}"
    );
    assert_eq!(shop.files.ids(), (1..=500).collect::<Vec<_>>());
}

async fn number(setting: &Setting) -> i64 {
    setting.count("SELECT howdah.store_number()::bigint").await
}
