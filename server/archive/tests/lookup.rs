//! Measures how long it takes to find one job by its id.

use std::time::{Duration, Instant};

use howdah_archive::{Bounds, Candidate, Job, Layout, Location, Manifest, Row, Writer, find, publish};

const FILES: i64 = 1_000;
const JOBS: i64 = 20_000;

/// Measures a lookup by id among a thousand files on a local disk: 20 million jobs, 20 task types a day, 50 days.
/// `HOWDAH_BENCH_JOBS` sets the number of jobs per file.
#[tokio::test]
#[ignore = "minutes long: cargo test --release -p howdah-archive --test lookup -- --ignored --nocapture"]
async fn a_job_among_a_thousand_files_is_found_within_a_second() {
    let jobs: i64 = std::env::var("HOWDAH_BENCH_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("a number"));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let url = format!("file://{}", directory.path().display());
    let (location, layout) = (Location::open(&url).expect("a location"), Layout::new(0));
    let types: Vec<String> = (0..20).map(|n| format!("type-{n}")).collect();
    let per_day = jobs * types.len() as i64;
    let mut candidates = Vec::new();
    for day in 0..FILES / types.len() as i64 {
        let name = format!("2026-{:02}-{:02}", 1 + day / 28, 1 + day % 28);
        let mut writer = Writer::begin(location.clone(), &layout, &name, "run", Bounds::default(), None);
        for n in 0..per_day {
            // One job in a thousand was enqueued long before it ended. So the id ranges of days overlap, and more files may
            // contain an id.
            let id = if n < per_day / 1_000 { day * per_day / 2 + n } else { day * per_day + n };
            let task_type = &types[n as usize % types.len()];
            let payload = format!("{{\"order\": {id}}}");
            let times = (id * 1_000, id * 1_000 + 50_000);
            let job = Job {
                id,
                task_type,
                created: times.0,
                finished: times.1,
                outcome: "succeeded",
                payload: Some(payload.as_bytes()),
                payload_bytes: payload.len() as i64,
                ..Job::default()
            };
            writer.push(&job).await.expect("written");
        }
        let manifest =
            Manifest { day: name.clone(), ..Manifest::default() }.with(writer.finish().await.expect("files"));
        publish(&location, &manifest).await.expect("named");
        candidates.extend(manifest.parts.into_iter().map(|part| (name.clone(), part)));
    }
    candidates.sort_by(|a, b| b.0.cmp(&a.0));
    let bytes: u64 = candidates.iter().map(|(_, part)| part.bytes).sum();
    println!("{} files, {} jobs, {} MB", candidates.len(), jobs * FILES, bytes / 1_000_000);
    let look = async |id: i64, only: bool| {
        let files = candidates.iter().filter(|(_, part)| !only || (part.min_id..=part.max_id).contains(&id));
        let files: Vec<Candidate> = files
            .map(|(day, part)| Candidate {
                location: location.clone(),
                day: day.clone(),
                path: part.path.clone(),
                bytes: part.bytes,
            })
            .collect();
        let (count, begun) = (files.len(), Instant::now());
        let found = find(id, files, begun + Duration::from_secs(60)).await;
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
