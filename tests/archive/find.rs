//! A job that has left the database is found by its id in the archive.

use std::time::Instant;

use howdah_archive::{Candidate, Layout, Manifest, Place, Row, Writer};
use howdah_proto::v1::{GetJobRequest, Job, JobState};
use tonic::Code;

use super::{DAY, Setting};
use crate::{support::*, ui::client::Browser};

impl Setting {
    /// All days that are over are archived, and their partitions dropped.
    pub async fn archive_and_drop(&self) {
        self.turn_on().await;
        let archiver = self.archiver().await;
        for day in archiver.days(false).await.expect("days") {
            archiver.archive(&day).await.expect("archived");
        }
        self.drop_old().await;
    }
}

async fn refused(broker: &Service, id: i64) -> (Code, String) {
    let refused = broker.jobs().get_job(GetJobRequest { id }).await.expect_err("no job");
    (refused.code(), refused.message().to_owned())
}

#[tokio::test]
async fn a_job_whose_day_was_dropped_is_shown_as_before() {
    let setting = Setting::with(3_000).await;
    // Stages, tags, failures, a fallback, a result, and a payload out of line.
    setting.database.sql(EVERYTHING).await;
    let broker = TestBroker::on(&setting.database).await;
    let ids = [1, 7, 35, 50, 100, 1_234, 3_000];
    let mut before: Vec<Job> = Vec::new();
    for id in ids {
        before.push(broker.job(id).await);
    }
    assert!(before[1].completed_stages.len() == 1 && before[1].tags.len() == 2 && before[1].failures.len() == 1);
    assert_eq!(before[1].payload.len(), 100_000);
    setting.archive_and_drop().await;
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history").await, 0);
    for (id, before) in ids.into_iter().zip(before) {
        assert_eq!(broker.job(id).await, before);
    }
    // Between the ids of the files, and beyond them.
    for id in [3_001, i64::MAX] {
        assert_eq!(refused(&broker, id).await.0, Code::NotFound);
    }
    Browser::at(&broker).get("/ui/job?id=7").await.has(&["succeeded", "batch-17"]);
    let (status, out, err) = run(&["--server", broker.address(), "job", "7", "--json"], b"").await;
    assert!(status.success() && out.contains("\"state\":\"succeeded\""), "{out} {err}");
    let (status, out, err) = run(&["--server", broker.address(), "explain", "50"], b"").await;
    assert!(status.success() && out.contains("It is cancelled") && out.contains("in the archive"), "{out} {err}");
    let (status, out, err) = run(&["--server", broker.address(), "search", "--id", "1234", "--json"], b"").await;
    assert!(status.success() && out.contains("\"id\":1234") && !out.contains("payload"), "{out} {err}");
}

/// A job with everything that a job may have.
const EVERYTHING: &str = "
    UPDATE howdah.history SET payload = '', result = 'done',
        failures = '[{\"attempt\": 1, \"error\": \"no\", \"started\": \"2026-01-01T00:00:00Z\", \"failed\": \"2026-01-01T00:00:01Z\"}]',
        options = jsonb_build_object('payload_bytes', 100000, 'tags', '[\"batch-17\", \"b\"]'::jsonb, 'limit_key', 'l',
            'completed_stages', jsonb_build_array(jsonb_build_object('type', type_id, 'attempt', 2)), 'fallback_from', type_id)
    WHERE id = 7;
    INSERT INTO howdah.payload (id, created, data) VALUES (7, now(), convert_to(repeat('x', 100000), 'UTF8'))";

#[tokio::test]
async fn of_a_job_that_ended_on_several_days_the_last_end_is_shown() {
    let setting = Setting::with(500).await;
    // Job 50 was cancelled two days ago, came back, and succeeded yesterday. Its key is another one since.
    setting.database.sql(&format!("SELECT howdah.make_day_partition('history', 'finished', {DAY} + 1)")).await;
    let later = "INSERT INTO howdah.history (id, created, finished, type_id, outcome, attempt, max_attempts, priority, payload)
                 SELECT id, created, finished + interval '1 day', type_id, 'succeeded', 2, max_attempts, priority, payload
                 FROM howdah.history WHERE id = 50";
    setting.database.sql(later).await;
    let broker = TestBroker::on(&setting.database).await;
    setting.turn_on().await;
    let archiver = setting.archiver().await;
    for day in archiver.days(false).await.expect("days") {
        archiver.archive(&day).await.expect("archived");
    }
    setting.database.sql("SELECT howdah.drop_history_partitions((now() AT TIME ZONE 'UTC')::date)").await;
    assert_eq!(setting.count("SELECT count(*) FROM howdah.history").await, 0);
    let job = broker.job(50).await;
    assert_eq!((job.state(), job.attempt), (JobState::Succeeded, 2));
    assert_eq!(broker.job(100).await.state(), JobState::Cancelled);
}

#[tokio::test]
async fn an_archive_that_is_away_hurts_only_those_who_ask_for_what_it_has() {
    let setting = Setting::with(500).await;
    setting.archive_and_drop().await;
    let broker = TestBroker::on(&setting.database).await;
    let live = broker.enqueue("live").await;
    setting.files.move_away();
    assert_eq!(broker.job(live).await.state(), JobState::Ready);
    let (code, message) = refused(&broker, 17).await;
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("job 17") && message.contains("no such directory"), "{message}");
    assert_eq!(refused(&broker, 1 << 40).await.0, Code::NotFound, "no file has such ids");
    setting.files.move_back();
    assert_eq!(broker.job(17).await.id, 17);
    // One file of several is damaged: what is in it is not known, what is in others is.
    let (path, data) = setting.files.parquet().into_iter().find(|(_, data)| ids(data).contains(&17)).expect("a file");
    std::fs::write(&path, &data[..data.len() / 2]).expect("cut");
    let (code, message) = refused(&broker, 17).await;
    assert_eq!(code, Code::Unavailable);
    assert!(message.contains("part-"), "{message}");
    let other = (1..=500).find(|id| !ids(&data).contains(id)).expect("another job");
    assert_eq!(broker.job(other).await.id, other);
}

fn ids(data: &[u8]) -> Vec<i64> {
    howdah_archive::ids_of(bytes::Bytes::copy_from_slice(data)).unwrap_or_default()
}

#[tokio::test]
async fn payloads_in_the_archive_are_for_those_who_may_see_them() {
    let setting = Setting::with(200).await;
    setting.archive_and_drop().await;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let mut tokens = Vec::new();
    for scopes in ["read:mail payload:mail", "read:mail", "read:rare"] {
        let token = howdah_server::access::Token::generate().secret().to_owned();
        std::io::Write::write_all(&mut file, format!("{token} somebody {scopes}\n").as_bytes()).expect("write");
        tokens.push(token);
    }
    let broker = TestBroker::on_with(&setting.database, |config| {
        config.auth.token = true;
        config.auth_token_file = Some(file.path().to_owned());
    })
    .await;
    // Of the type mail, with a payload.
    let callers: Vec<Service> = tokens.iter().map(|token| broker.with_token(token)).collect();
    assert_eq!(callers[0].job(1).await.payload, "payload 1");
    assert_eq!((callers[1].job(1).await.payload.len(), callers[1].job(1).await.task_type.as_str()), (0, "mail"));
    assert_eq!(refused(&callers[2], 1).await.0, Code::NotFound);
}

/// How many files there are, and how many jobs in each.
const FILES: i64 = 1_000;
const JOBS: i64 = 20_000;

/// Measures a lookup by id among a thousand files of one local disk: 20 million jobs, 20 types a day, 50 days. Say how many
/// jobs a file has by `HOWDAH_BENCH_JOBS`.
#[tokio::test]
#[ignore = "minutes long: cargo test --release --test system -- --ignored a_job_among_a_thousand_files --nocapture"]
async fn a_job_among_a_thousand_files_is_found_within_a_second() {
    let jobs: i64 = std::env::var("HOWDAH_BENCH_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("a number"));
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", directory.path().display());
    let (place, layout) = (Place::open(&url).expect("a place"), Layout::of(0));
    let types: Vec<String> = (0..20).map(|n| format!("type-{n}")).collect();
    let per_day = jobs * types.len() as i64;
    let mut candidates = Vec::new();
    for day in 0..FILES / types.len() as i64 {
        let name = format!("2026-{:02}-{:02}", 1 + day / 28, 1 + day % 28);
        let mut writer = Writer::begin(place.clone(), &layout, &name, "run", howdah_archive::Bounds::default(), None);
        for n in 0..per_day {
            // One in a thousand has waited for a long time, so that ranges of ids overlap.
            let id = if n < per_day / 1_000 { day * per_day / 2 + n } else { day * per_day + n };
            let task_type = &types[n as usize % types.len()];
            let payload = format!("{{\"order\": {id}}}");
            let times = (id * 1_000, id * 1_000 + 50_000);
            let job = howdah_archive::Job {
                id,
                task_type,
                created: times.0,
                finished: times.1,
                outcome: "succeeded",
                payload: Some(payload.as_bytes()),
                payload_bytes: payload.len() as i64,
                ..howdah_archive::Job::default()
            };
            writer.push(&job).await.expect("written");
        }
        let manifest =
            Manifest { day: name.clone(), ..Manifest::default() }.with(writer.finish().await.expect("files"));
        howdah_archive::publish(&place, &manifest).await.expect("named");
        candidates.extend(manifest.parts.into_iter().map(|part| (name.clone(), part)));
    }
    candidates.sort_by(|a, b| b.0.cmp(&a.0));
    let bytes: u64 = candidates.iter().map(|(_, part)| part.bytes).sum();
    println!("{} files, {} jobs, {} MB", candidates.len(), jobs * FILES, bytes / 1_000_000);
    let look = async |id: i64, only: bool| {
        let files = candidates.iter().filter(|(_, part)| !only || (part.min_id..=part.max_id).contains(&id));
        let files: Vec<Candidate> = files
            .map(|(day, part)| Candidate {
                place: place.clone(),
                day: day.clone(),
                path: part.path.clone(),
                bytes: part.bytes,
            })
            .collect();
        let (count, begun) = (files.len(), Instant::now());
        let found = howdah_archive::find(id, files, begun + std::time::Duration::from_secs(60)).await;
        assert!(found.unread.is_empty() && found.left == 0);
        (count, begun.elapsed(), found.row.map(|row: Row| row.id))
    };
    for only in [true, false] {
        let mut all = Vec::new();
        for n in 0..20 {
            let id = n * (FILES * jobs / 20) + per_day / 500 + 7;
            let (count, took, row) = look(id, only).await;
            assert_eq!(row, Some(id));
            all.push((took, count));
        }
        all.sort();
        println!("by ranges: {only}; median {:?}, worst {:?} (time, files)", all[10], all[19]);
    }
}
