//! The stores of a broker archive to one place, each under its number.

use super::{DAY, Setting};
use crate::support::*;

/// The day is archived.
fn archived() -> String {
    format!("SELECT count(*) = 1 FROM howdah.archive WHERE day = {DAY} AND state IN ('archived', 'dropped')")
}

#[tokio::test]
async fn the_stores_of_a_broker_archive_to_one_place_and_each_has_its_own_files_there() {
    let (shop, mail) = (Setting::with(500).await, Setting::with(300).await);
    // Databases of tests are copies of one.
    let url = ["--database-url", &mail.database.url];
    let (status, _, said) = run(&[&["migrate", "--new-identity"], &url[..]].concat(), b"").await;
    assert!(status.success(), "{said}");
    let stores = [("shop", &shop.database), ("mail", &mail.database)];
    let broker = TestBroker::on_stores(&stores, |config| config.archive_url = Some(shop.files.url())).await;
    for setting in [&shop, &mail] {
        setting.database.until("an archived day", &archived()).await;
        // Nor is any other day worked on when the broker ends.
        let store = setting.store();
        let rest = async || store.days_to_archive(5, false).await.expect("days").is_empty();
        eventually("an archive of all days that are over", rest).await;
        setting.database.until("a day that is free", "SELECT count(held_until) = 0 FROM howdah.archive").await;
    }
    let failed = "SELECT count(*) FROM howdah.archive WHERE error IS NOT NULL";
    assert_eq!([shop.count(failed).await, mail.count(failed).await], [0, 0]);
    let (of_shop, of_mail) = (number(&shop).await, number(&mail).await);
    assert_ne!(of_shop, of_mail);
    assert_eq!(shop.files.manifest_of(of_shop, &shop.day).sums.rows, 500);
    assert_eq!(shop.files.manifest_of(of_mail, &shop.day).sums.rows, 300);
    assert_eq!(shop.files.staged(), 0);
    broker.stop().await;
    // What is done with files later finds those of its own store.
    let place = shop.files.url();
    let verify = [&["archive", "verify", "--url", &place], &url[..]].concat();
    let (status, out, said) = run(&verify, b"").await;
    assert!(status.success() && said.contains("300 jobs"), "{out}{said}");
    let forget = [&["archive", "forget", "--type", "rare", "--reason", "a test", "--yes"], &url[..]].concat();
    let (status, out, said) = run(&forget, b"").await;
    assert!(status.success(), "{out}{said}");
    assert_eq!(mail.drop_old().await, 1);
    assert_eq!(shop.files.manifest_of(of_mail, &shop.day).sums.rows, 297);
    let archiver = super::archiver(&mail.database.url, &place).await;
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
