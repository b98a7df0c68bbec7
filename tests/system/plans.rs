//! Tests the plan of every frequent statement, with empty, stale and fresh statistics. A plan uses the intended index, and
//! never a sequential scan or a sort that grows with the table.

mod backlog; // the backlog sample
mod functions; // the statements within functions

use howdah_engine::store::{Purpose, Statement};

use crate::support::{TestDatabase, database};

/// Texts of a plan that looks up a job by its id, with one index in each job table.
const BY_ID: &[&str] = &[
    "using ready_by_id on ready",
    "using leased_pkey on leased",
    "using scheduled_id_key on scheduled",
    "using waiting_pkey on waiting",
    "using dead_pkey on dead",
    // The function `history_of` reads only the days that may contain the job. Its statements are planned when it runs.
    "Function Scan on history_of",
];

/// Texts that the plan of each statement must contain.
const EXPECTED: &[(Statement, &[&str])] = &[
    (Statement::Claim, &["using ready_pkey on ready", "Tid Scan on ready", "Limit", "using broker_pkey on broker"]),
    (Statement::SettleAck, &["using leased_pkey on leased", "using job_key_pkey on job_key", "Tid Scan on job_key"]),
    (Statement::SettleSmallBatch, &["using leased_pkey on leased"]),
    (Statement::SettleNack, &["using leased_pkey on leased", "using job_key_pkey on job_key"]),
    (Statement::LeaseFacts, &["using leased_pkey on leased"]),
    (Statement::Extend, &["using leased_pkey on leased"]),
    (Statement::ReportProgress, &["using leased_pkey on leased"]),
    (Statement::Adopt, &["using leased_pkey on leased"]),
    (Statement::LockedForAdoption, &["using leased_pkey on leased"]),
    (Statement::LeasesOf, &["using leased_pkey on leased"]),
    (
        Statement::RetryJobs,
        &["using scheduled_id_key on scheduled", "using dead_pkey on dead", "using job_key_pkey on job_key"],
    ),
    (
        Statement::EndedLeases,
        &[
            "using leased_pkey on leased",
            "Function Scan on history_of",
            "using scheduled_id_key",
            "using ready_by_id",
            "using dead_pkey",
        ],
    ),
    (
        Statement::SettledBefore,
        &[
            "Function Scan on history_of",
            "using scheduled_id_key",
            "using ready_by_id",
            "using leased_pkey",
            "using dead_pkey",
        ],
    ),
    (Statement::Promote, &["using scheduled_pkey on scheduled", "Tid Scan on scheduled"]),
    (Statement::TimedOut, &["using leased_by_deadline on leased"]),
    (
        Statement::Sweep,
        &[
            "using ready_pkey on ready",
            "using scheduled_pkey on scheduled",
            "using leased_by_deadline on leased",
            "using schedule_by_next_at on schedule",
        ],
    ),
    (
        Statement::NextDue,
        &[
            "using scheduled_pkey on scheduled",
            "using leased_by_deadline on leased",
            "using schedule_by_next_at on schedule",
        ],
    ),
    (
        Statement::Cancel,
        &["using ready_by_id", "using leased_pkey", "using scheduled_id_key", "using waiting_pkey", "using dead_pkey"],
    ),
    (
        Statement::Reprioritize,
        &["using ready_by_id", "using leased_pkey", "using scheduled_id_key", "using waiting_pkey"],
    ),
    (Statement::RerankReady, &["using ready_pkey on ready", "Tid Scan on ready"]),
    (Statement::RerankScheduled, &["using scheduled_id_key on scheduled", "Tid Scan on scheduled"]),
    (Statement::RerankWaiting, &["using waiting_pkey on waiting", "Tid Scan on waiting"]),
    (Statement::Backlogs, &["using ready_pkey on ready", "using waiting_by_type on waiting"]),
    (Statement::LockDueSchedules, &["using schedule_by_next_at on schedule"]),
    (
        Statement::Unfinished,
        &["using ready_by_id", "using leased_pkey", "using scheduled_id_key", "using waiting_pkey"],
    ),
    (Statement::EndedJobs, &["Function Scan on history_of", "using dead_pkey on dead"]),
    (
        Statement::DependencyResults,
        &["Function Scan on history_of", "using dead_pkey on dead", "using ready_by_id on ready"],
    ),
    (
        Statement::DependenciesOf,
        &["using leased_pkey", "using ready_by_id", "using scheduled_id_key", "using waiting_pkey", "using dead_pkey"],
    ),
    (
        Statement::SearchKey,
        &[
            "using job_key_pkey on job_key",
            "using dead_by_key on dead",
            "using history_default_hashtext_type_id_id_idx on history_default",
        ],
    ),
    (
        Statement::CountKey,
        &[
            "using job_key_pkey on job_key",
            "using dead_by_key on dead",
            "using history_default_hashtext_type_id_id_idx on history_default",
        ],
    ),
    // A search by tag reads the newest tags first, backward through the index of each partition, without a sort.
    (Statement::SearchTag, &["Index Only Scan Backward using job_tag_default_hash_type_id_id_idx on job_tag_default"]),
    (Statement::CountTag, &["using job_tag_default_hash_type_id_id_idx on job_tag_default"]),
    (Statement::SearchReady, &["using ready_pkey on ready"]),
    (Statement::SearchLeased, &["using leased_pkey on leased"]),
    (Statement::SearchScheduled, &["using scheduled_id_key on scheduled"]),
    (Statement::SearchWaiting, &["using waiting_pkey on waiting"]),
    (Statement::SearchDead, &["using dead_by_type on dead"]),
    (Statement::MostAttemptsReady, &["using ready_pkey on ready", "Limit"]),
    (Statement::MostAttemptsLeased, &["using leased_pkey on leased", "Limit"]),
    (Statement::MostAttemptsScheduled, &["using scheduled_id_key on scheduled", "Limit"]),
    (Statement::MostAttemptsWaiting, &["using waiting_pkey on waiting", "Limit"]),
    (Statement::MostAttemptsDead, &["Index Scan using dead_by_attempt on dead"]),
    // Without a time range, the search prunes all partitions.
    (Statement::SearchFinished, &["Merge Append", "Subplans Removed"]),
    (Statement::FoundJobs, BY_ID),
    (Statement::FindArchived, &["using archive_file_by_ids on archive_file"]),
    (Statement::ArchivedOfType, &["Index Scan Backward using archive_file_by_type on archive_file"]),
    (Statement::HistoryPage, &["Merge Append", "Subplans Removed"]),
    (Statement::HistoryKeyPage, &["Merge Append", "Subplans Removed"]),
    (Statement::ArchivePage, &["Merge Append", "Subplans Removed", "WindowAgg"]),
    (Statement::PickReady, &["using ready_pkey on ready"]),
    (Statement::PickLeased, &["using leased_pkey on leased"]),
    (Statement::PickScheduled, &["using scheduled_id_key on scheduled"]),
    (Statement::PickWaiting, &["using waiting_pkey on waiting"]),
    (Statement::PickDead, &["using dead_by_type on dead"]),
    (Statement::PickDeadGroup, &["using dead_by_error_group on dead"]),
    // A selection by tag reads the tags in the order of the ids, and looks up their jobs.
    (Statement::PickTaggedReady, &["using job_tag_default_hash_type_id_id_idx", "using ready_by_id on ready"]),
    (Statement::PickTaggedLeased, &["using job_tag_default_hash_type_id_id_idx", "using leased_pkey on leased"]),
    (
        Statement::PickTaggedScheduled,
        &["using job_tag_default_hash_type_id_id_idx", "using scheduled_id_key on scheduled"],
    ),
    (Statement::PickTaggedWaiting, &["using job_tag_default_hash_type_id_id_idx", "using waiting_pkey on waiting"]),
    (Statement::PickTaggedDead, &["using job_tag_default_hash_type_id_id_idx", "using dead_pkey on dead"]),
    (Statement::PickChangesForBulk, &["using bulk_change_default_bulk_id_job_id_idx on bulk_change_default"]),
    (
        Statement::WriteBulkJournal,
        &[
            "using ready_by_id",
            "using leased_pkey",
            "using scheduled_id_key",
            "using waiting_pkey",
            "using dead_pkey",
            "using dependency_by_job",
            "using job_key_pkey",
        ],
    ),
    (Statement::DependentsForBulk, &["using dependency_pkey on dependency", "using waiting_pkey on waiting"]),
    (
        Statement::ChangeableForBulk,
        &["using ready_by_id", "using leased_pkey", "using scheduled_id_key", "using waiting_pkey", "using dead_pkey"],
    ),
    // `ExplainJob` reads the job by its id, and then the rows that may explain its wait.
    (Statement::ExplainJob, BY_ID),
    (
        Statement::ExplainJob,
        &["using dependency_pkey on dependency", "using bulk_change_default_job_id_idx on bulk_change_default"],
    ),
    (Statement::ExplainReady, &["using ready_pkey on ready", "using pull_pkey on pull", "on leased"]),
    (Statement::ExplainLimitKey, &["on ready", "on leased", "on scheduled", "on waiting"]),
    (Statement::ReportPulls, &["using task_type_pkey on task_type", "using pull_pkey on pull"]),
    // The statement finds old rows by an index on their time.
    (Statement::ForgetStatistics, &["using backlog_by_start on backlog", "using statistics_by_start on statistics"]),
    (Statement::ForgetKeyVersions, &["using key_version_by_ended on key_version", "Tid Scan on key_version"]),
    (Statement::MovedJobs, &["using moved_pkey on moved"]),
    (Statement::JobsInTransit, &["using leaving_by_type on leaving"]),
    (Statement::KeyHolders, &["using job_key_pkey"]),
    (Statement::RepeatedRequests, &["using request_pkey"]),
    (Statement::RenewBroker, &["using broker_pkey"]),
    (Statement::Enqueue, &["Function Scan"]),
    (Statement::EnqueueDirect, &["Function Scan", "using broker_pkey on broker"]),
    (Statement::EnqueueOne, &["Insert on ready"]),
    (Statement::EnqueueDirectOne, &["using broker_pkey on broker"]),
    (Statement::EnqueueKeyed, &["Function Scan"]),
];

/// States of the tables and their statistics. Filled tables have 30,000 jobs each, so many that the planner could prefer
/// sequential scans.
const STATES: [(&str, &str); 3] = [
    ("empty, never analysed", ""),
    (
        "stale: analysed empty, then filled",
        "ANALYZE;
         INSERT INTO howdah.task_type (name) SELECT 't' || i FROM generate_series(1, 100) i;
         INSERT INTO howdah.ready SELECT i, i, now(), null, null, 1 + i % 100, 0, 10, 0, null, null, null, null, '\\x00'
             FROM generate_series(1, 30000) i;
         INSERT INTO howdah.leased SELECT i, i, now(), null, null, i, now(), now(), 1, 1 + i % 100, 1, 10, 0, null, null, null, null, '\\x00'
             FROM generate_series(30001, 60000) i;
         INSERT INTO howdah.scheduled SELECT i, i, now(), null, null, now(), null, 1 + i % 100, 0, 10, 0, null, null, null, null, '\\x00'
             FROM generate_series(60001, 90000) i;
         INSERT INTO howdah.dead SELECT i, i, now(), null, null, null, now(), 1 + i % 100, 10, 10, 0, null, null, null, null, '\\x00'
             FROM generate_series(90001, 120000) i;
         INSERT INTO howdah.history SELECT i, now(), now(), now(), i, 1 + i % 100, 'succeeded', 1, 10, 0, null, null, null, null, '\\x00', null
             FROM generate_series(120001, 150000) i;
         INSERT INTO howdah.archive_file SELECT '2020-01-01'::date + i % 1000, 'f' || i, 't', int8range(i, i + 100), 100, 1000
             FROM generate_series(1, 10000) i;",
    ),
    ("fresh", "ANALYZE"),
];

#[tokio::test]
async fn every_hot_statement_uses_its_index_whatever_the_statistics_say() {
    let database = database().await;
    for (state, change) in STATES {
        database.connect().await.batch_execute(change).await.expect(state);
        for (statement, expected) in EXPECTED {
            let plan = plan(&database, *statement).await;
            for part in *expected {
                assert!(plan.contains(part), "{} ({state}) should show {part:?}:\n{plan}", statement.name());
            }
            for table in [
                "ready",
                "leased",
                "scheduled",
                "waiting",
                "dead",
                "history",
                "job_key",
                "job_tag",
                "request",
                "key_version",
            ] {
                let scan = format!("Seq Scan on {table}");
                assert!(!plan.contains(&scan), "{} ({state}) scans {table}:\n{plan}", statement.name());
            }
            assert!(!plan.contains("Bitmap"), "{} ({state}) uses a bitmap:\n{plan}", statement.name());
            // Most statements get their order from an index. enqueue_keyed and retry_jobs sort the keys they insert, and
            // report_pulls sorts types. dependency_results sorts the dependencies of the claimed jobs. Scans in steps (bulk
            // operations too) sort the rows of one step, and WaitJobs sorts the few ended jobs. Searches and the order by
            // attempts sort their results, and an explanation sorts the times at which a job was put back. Pages of the archive
            // and of history merge partitions, which EXPLAIN shows as a sort key.
            let may_sort = matches!(
                statement,
                Statement::EnqueueKeyed
                    | Statement::RetryJobs
                    | Statement::ReportPulls
                    | Statement::EndedJobs
                    | Statement::DependencyResults
                    | Statement::FoundJobs
                    | Statement::ExplainJob
                    | Statement::ArchivePage
                    | Statement::HistoryPage
                    | Statement::HistoryKeyPage
                    | Statement::FindArchived
                    | Statement::ArchivedOfType
            ) || statement.name().starts_with("rerank_")
                || statement.name().starts_with("search_")
                || (statement.name().starts_with("most_attempts_") && *statement != Statement::MostAttemptsDead)
                || statement.name().starts_with("pick_");
            assert!(may_sort || !plan.contains("Sort"), "{} ({state}) sorts:\n{plan}", statement.name());
        }
    }
}

async fn plan(database: &TestDatabase, statement: Statement) -> String {
    let client = database.connect().await;
    client.batch_execute(&Purpose::Hot.session(0)).await.expect("session");
    let text = statement.text();
    let parameters = client.prepare(&text).await.expect("prepare").params().len();
    client.batch_execute(&format!("PREPARE hot AS {text}")).await.expect("prepare");
    let nulls = if parameters == 0 { String::new() } else { format!("({})", vec!["NULL"; parameters].join(", ")) };
    let lines = client.simple_query(&format!("EXPLAIN EXECUTE hot{nulls}")).await.expect("explain");
    let mut plan = String::new();
    for message in lines {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            plan.push_str(row.get(0).unwrap_or_default());
            plan.push('\n');
        }
    }
    plan
}
