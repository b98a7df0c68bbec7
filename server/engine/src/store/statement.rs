//! Enum of all statements. Their texts are files in `server/engine/sql`, or literals here if a statement only calls a function of the
//! schema. Values of SQL enums are passed as text, because tokio-postgres would first have to query their types.

use std::borrow::Cow;

use super::job_table::{self, JobTable};

/// Expands to the text of a statement: its literal, its file, or the file that it shares with the statements for other tables.
macro_rules! text {
    ($folder:ident, $name:literal) => {
        include_str!(concat!("../../sql/", stringify!($folder), "/", $name, ".sql"))
    };
    ($folder:ident, $name:literal, $sql:literal) => {
        $sql
    };
    ($folder:ident, $name:literal, $table:ident in $file:literal) => {
        include_str!(concat!("../../sql/", stringify!($folder), "/", $file, ".sql"))
    };
}

/// Expands to the `JobTable` whose values replace the placeholders of a shared file, or to `None` for statements
/// without placeholders.
macro_rules! table {
    () => {
        None
    };
    ($sql:literal) => {
        None
    };
    ($table:ident in $file:literal) => {
        Some(&job_table::$table)
    };
}

/// Declares the statements of each folder of `server/engine/sql`. `Variant = "name"` has a file `name.sql`, `: "SQL"` is a
/// literal, and `on TABLE in "file"` fills the shared file for a table of [`job_table`].
macro_rules! statements {
    ($($folder:ident { $($variant:ident = $name:literal $(: $sql:literal)? $(on $table:ident in $file:literal)?,)* })*) => {
        /// A statement that brokers run. Each connection prepares it once.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Statement {
            $($(#[doc = concat!("`", stringify!($folder), "/", $name, "`")] $variant,)*)*
        }

        impl Statement {
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)*)*];

            /// Statement name, for logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// SQL text, with placeholders if the statement shares its file.
            const fn source(self) -> &'static str {
                match self { $($(Self::$variant => text!($folder, $name $(, $sql)? $(, $table in $file)?),)*)* }
            }

            /// Table whose values replace the placeholders; `None` if the statement has no placeholders.
            const fn table(self) -> Option<&'static JobTable> {
                match self { $($(Self::$variant => table!($($sql)? $($table in $file)?),)*)* }
            }

            /// Folder and file of the statement in `server/engine/sql`.
            #[cfg(test)]
            fn file(self) -> [&'static str; 2] {
                match self {
                    $($(Self::$variant => [stringify!($folder), [$($file,)? $name][0]],)*)*
                }
            }
        }
    };
}

statements! {
    enqueue {
        Enqueue = "enqueue",
        EnqueueOne = "enqueue_one",
        EnqueueDirect = "enqueue_direct",
        EnqueueDirectOne = "enqueue_direct_one",
        EnqueueKeyed = "enqueue_keyed",
        EnqueueCoordinated = "enqueue_coordinated":
            "SELECT kind::text, ordinal, id, outcome::text, type_id, rank, jobs, in_us
             FROM howdah.enqueue_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        RepeatedRequests = "repeated_requests",
        AmendRequest = "amend_request",
        ForgetRequests = "forget_requests": "DELETE FROM howdah.request WHERE key = ANY ($1::text[])",
        KeyHolders = "key_holders",
        FreeHeldKeys = "free_held_keys",
        Notify = "notify": "SELECT pg_notify($1, $2)",
    }
    claim {
        Claim = "claim",
        DependencyResults = "dependency_results",
        LostClaim = "lost_claim",
        TypeQuota = "type_quota": "SELECT type_id, allowed, retry_in_ms, is_locked FROM howdah.type_quota($1, $2)",
        SpendTokens = "spend_tokens",
        Adopt = "adopt",
        LockedForAdoption = "locked_for_adoption",
        EndedLeases = "ended_leases",
    }
    settle {
        SettleAck = "settle_ack",
        SettleSmallBatch = "settle_small_batch",
        AckCoordinated = "ack_coordinated":
            "SELECT kind::text, id, type_id, rank, jobs, in_us FROM howdah.ack_coordinated($1, $2, $3, $4)",
        Regain = "regain": "SELECT howdah.regain($1, $2) AS id",
        SettleNack = "settle_nack",
        AfterEnd = "after_end":
            "SELECT kind::text, type_id, rank, jobs, in_us
             FROM howdah.after_end($1, $2, $3, $4, $5::text[]::howdah.ending[], $6)",
        Supersede = "supersede": "SELECT howdah.supersede($1, $2, $3, $4) AS id",
        RequeueForLimit = "requeue_for_limit": "SELECT howdah.requeue_for_limit($1, $2, $3, $4) AS id",
        CountForBrakes = "count_for_brakes":
            "SELECT type_id, failures, since, is_braked, is_locked FROM howdah.count_for_brakes($1, $2, $3)",
        ExpireLeases = "expire_leases",
        LeaseFacts = "lease_facts",
        SettledBefore = "settled_before",
        Extend = "extend",
        LockedLeases = "locked_leases",
        LeasesOf = "leases_of",
        ReportProgress = "report_progress",
    }
    maintain {
        Sweep = "sweep",
        NextDue = "next_due",
        Promote = "promote",
        PromoteCoordinated = "promote_coordinated":
            "SELECT kind::text, type_id, rank, jobs, in_us FROM howdah.promote_coordinated($1)",
        Admit = "admit": "SELECT kind::text, type_id, rank, jobs, in_us FROM howdah.admit($1)",
        ContinueLimitChanges = "continue_limit_changes": "SELECT howdah.continue_limit_changes($1) AS next_in_us",
        ExpireUnstarted = "expire_unstarted":
            "SELECT kind::text, type_id, rank, jobs, in_us FROM howdah.expire_unstarted($1)",
        TimedOut = "timed_out",
        Rescue = "rescue",
        LostCoordinated = "lost_coordinated",
        RegisterBroker = "register_broker",
        RenewBroker = "renew_broker",
        ForgetMoved = "forget_moved",
        RetireBroker = "retire_broker",
        DeleteExpiredBrokers = "delete_expired_brokers",
        Clock = "clock": "SELECT now() AS now",
        ClockAhead = "clock_ahead": "SELECT (extract(epoch FROM howdah.clock_ahead()) * 1000)::bigint AS ahead_ms",
        ClockWentBack = "clock_went_back": "SELECT howdah.clock_went_back() AS went_back",
        CorrectTimes = "correct_times": "SELECT howdah.correct_times()",
        CorrectScheduledTimes = "correct_scheduled_times":
            "SELECT last_time, last_id, moved FROM howdah.correct_scheduled_times($1, $2, $3)",
        ForgetStatistics = "forget_statistics",
        EndListeners = "end_listeners",
        ReportWorkers = "report_workers",
        ReportPulls = "report_pulls",
        DatabaseId = "database_id": "SELECT id::text FROM howdah.identity",
        NewIdentity = "new_identity",
        Databases = "databases",
        StoreFacts = "store_facts",
        SetStoreNumber = "set_store_number": "SELECT howdah.set_store_number($1)",
        Timeline = "timeline",
        WalPosition = "wal_position",
        Readiness = "readiness",
        TryWrite = "try_write",
        DeleteUnusedTaskTypes = "delete_unused_task_types":
            "SELECT howdah.delete_unused_task_types($1::bigint * interval '1 day', $2) AS name",
        UseTaskTypes = "use_task_types",
        RestoreTaskTypes = "restore_task_types",
        PageTokenKey = "page_token_key": "SELECT value FROM howdah.secret WHERE name = 'page_tokens'",
        MissingPartitions = "missing_partitions",
        MakeDayPartition = "make_day_partition": "SELECT howdah.make_day_partition($1, $2, $3::text::date) AS made",
        ExcludeFromDefault = "exclude_from_default":
            "SELECT howdah.exclude_from_default($1, $2, $3::text::date) AS excluded",
        ValidateDefault = "validate_default": "SELECT howdah.validate_default($1, $2::text::date)",
        RecordIdRange = "record_id_range": "SELECT howdah.record_id_range() AS recorded",
        DeleteFromDefault = "delete_from_default":
            "SELECT deleted, next_block FROM howdah.delete_from_default($1, $2, $3, $4, $5)",
        DropPartitions = "drop_partitions",
        DropAuditPartitions = "drop_audit_partitions":
            "SELECT howdah.drop_audit_partitions((now() AT TIME ZONE 'UTC')::date - $1::integer) AS dropped",
        PrunableHistory = "prunable_history",
        PruneHistory = "prune_history":
            "SELECT deleted, next_block FROM howdah.prune_history($1::text::date, $2, $3, $4, $5)",
        HistoryPruned = "history_pruned",
        SumStatistics = "sum_statistics":
            "SELECT howdah.sum_statistics($1, $2::bigint * interval '1 millisecond') AS summed",
        SampleBacklog = "sample_backlog",
        ForgetKeyVersions = "forget_key_versions",
        DeleteExpiredRequests = "delete_expired_requests",
        TypesWithOldDead = "types_with_old_dead",
        LockOldDead = "lock_old_dead",
        DeleteIdleLimitStates = "delete_idle_limit_states",
        RerankReady = "rerank_ready" on READY in "rerank",
        RerankScheduled = "rerank_scheduled" on SCHEDULED in "rerank",
        RerankWaiting = "rerank_waiting" on WAITING in "rerank",
        RerankDue = "rerank_due",
        RerankDone = "rerank_done",
        MaintenanceState = "maintenance_state",
    }
    access {
        EndSession = "end_session",
        HasEnded = "has_ended": "SELECT EXISTS (SELECT FROM howdah.ended_session WHERE hash = $1) AS ended",
        ActiveTokens = "active_tokens",
        CreateToken = "create_token",
        ListTokens = "list_tokens",
        RevokeTokens = "revoke_tokens",
        RevokedJwts = "revoked_jwts",
        RevokeJwt = "revoke_jwt",
        TypesOf = "types_of",
        AuditedSettings = "audited_settings",
        LockSettings = "lock_settings",
        RecordChange = "record_change",
        ListAudit = "list_audit",
    }
    operate {
        CreateRoles = "create_roles": "SELECT howdah.create_roles() AS name",
        SyncStateWithRows = "sync_state_with_rows": "SELECT howdah.sync_state_with_rows() AS changed",
        TaskTypesByName = "task_types_by_name",
        TaskTypeCreated = "task_type_created",
        CreateTaskTypes = "create_task_types": "SELECT howdah.create_task_types($1, nullif($2, ''))",
        AllSettings = "all_settings",
        UpdateTaskType = "update_task_type",
        ClusterSettings = "cluster_settings",
        CloseStore = "close_store": "SELECT howdah.close_store($1, $2) AS version",
        OpenStore = "open_store": "SELECT howdah.open_store() AS version",
        HasUnfinished = "has_unfinished",
        BeginMove = "begin_move": "SELECT version, to_name, owner, is_new FROM howdah.begin_move($1, $2, $3, $4, $5)",
        LeaveJobs = "leave_jobs":
            "SELECT id, sort_position, job::text AS job, payload FROM howdah.leave_jobs($1, $2, $3, $4, $5, $6, $7)",
        JobsInTransit = "jobs_in_transit",
        ArriveJobs = "arrive_jobs":
            "SELECT old_id, new_id FROM howdah.arrive_jobs($1, $2, $3::text[]::jsonb[], $4)",
        LeaveDone = "leave_done": "SELECT howdah.leave_done($1, $2, $3) AS done",
        LeftToMove = "left_to_move": "SELECT running, staying, first_ids, leaving FROM howdah.left_to_move($1, $2)",
        EndMove = "end_move": "SELECT howdah.end_move($1, $2) AS version",
        ReleaseMove = "release_move",
        MoveOfType = "move_of_type",
        MoveOfJob = "move_of_job",
        MovedJobs = "moved_jobs",
        BeginArrival = "begin_arrival": "SELECT howdah.begin_arrival($1, $2) AS version",
        MakeHomeStore = "make_home_store": "SELECT howdah.make_home_store($1, $2) AS version",
        EndArrival = "end_arrival": "SELECT howdah.end_arrival($1) AS version",
        DeleteArrival = "delete_arrival",
        KeySettings = "key_settings",
        ArriveKeySettings = "arrive_key_settings":
            "SELECT howdah.arrive_key_settings($1, $2, $3, $4::text[]::timestamptz[], $5)",
        LeaveSchedules = "leave_schedules": "SELECT s::text AS schedule FROM howdah.leave_schedules($1) s",
        ArriveSchedules = "arrive_schedules": "SELECT n AS name FROM howdah.arrive_schedules($1::text[]::jsonb[]) n",
        LeaveSchedulesDone = "leave_schedules_done": "SELECT howdah.leave_schedules_done($1, $2)",
        UnclaimedTypes = "unclaimed_types",
        AllBrokersUseVersion = "all_brokers_use_version",
        AdvanceClock = "advance_clock":
            "SELECT howdah.advance_clock($1::bigint * interval '1 millisecond') AS version",
        UpdateClusterSettings = "update_cluster_settings",
        ReplaceLimits = "replace_limits": "SELECT howdah.replace_limits($1, $2)",
        ReplaceKeyLimit = "replace_key_limit": "SELECT howdah.replace_key_limit($1, $2, $3)",
        ListTaskTypes = "list_task_types",
        PauseLimitKey = "pause_limit_key",
        ListLimitKeys = "list_limit_keys",
        Backlogs = "backlogs",
        StatisticsUntil = "statistics_until":
            "SELECT nullif(summed, '-infinity') AS summed, summed < now() - $1::bigint * interval '1 millisecond' AS is_old
             FROM howdah.statistics_sum",
        StatisticsOfType = "statistics_of_type",
        StatisticsByType = "statistics_by_type",
        StatisticsOfAll = "statistics_of_all",
        StorageHealth = "storage_health",
        Examine = "examine",
        ExamineSchema = "examine_schema",
        ExamineOwned = "examine_owned",
        ConnectionLimits = "connection_limits",
        LockHolders = "lock_holders",
        ListBrokers = "list_brokers",
        GetJob = "get_job",
        DependenciesOf = "dependencies_of",
        ExplainJob = "explain_job",
        ExplainReady = "explain_ready",
        ExplainLimitKey = "explain_limit_key",
        StatesOfJobs = "states_of_jobs",
        ListWorkers = "list_workers",
        TypesWithWorkers = "types_with_workers",
        WorkerOfJob = "worker_of_job",
        JobsOfWorker = "jobs_of_worker",
        EndedJobs = "ended_jobs",
        MarkAwaited = "mark_awaited": "SELECT unnest(howdah.mark_awaited($1)) AS id",
        PickReady = "pick_ready" on READY in "pick",
        PickLeased = "pick_leased" on LEASED in "pick",
        PickScheduled = "pick_scheduled" on SCHEDULED in "pick",
        PickWaiting = "pick_waiting" on WAITING in "pick",
        PickDead = "pick_dead" on DEAD in "pick",
        PickDeadGroup = "pick_dead_group" on DEAD in "pick_dead_group",
        PickTaggedReady = "pick_tagged_ready" on READY in "pick_tagged",
        PickTaggedLeased = "pick_tagged_leased" on LEASED in "pick_tagged",
        PickTaggedScheduled = "pick_tagged_scheduled" on SCHEDULED in "pick_tagged",
        PickTaggedWaiting = "pick_tagged_waiting" on WAITING in "pick_tagged",
        PickTaggedDead = "pick_tagged_dead" on DEAD in "pick_tagged",
        RetryJobs = "retry_jobs",
        ReviveDependents = "revive_dependents": "SELECT howdah.revive_dependents($1) AS id",
        DiscardJobs = "discard_jobs",
        ListErrorGroups = "list_error_groups",
        Cancel = "cancel",
        Reprioritize = "reprioritize",
        StillLive = "still_live",
        LiveUnkept = "live_unkept",
        ListReady = "list_ready" on READY in "list_jobs",
        ListLeased = "list_leased" on LEASED in "list_jobs",
        ListScheduled = "list_scheduled" on SCHEDULED in "list_jobs",
        ListWaiting = "list_waiting" on WAITING in "list_jobs",
        ListDead = "list_dead" on DEAD in "list_jobs",
        ListDeadGroup = "list_dead_group" on DEAD_GROUP in "list_jobs",
        MostAttemptsReady = "most_attempts_ready" on READY in "most_attempts",
        MostAttemptsLeased = "most_attempts_leased" on LEASED in "most_attempts",
        MostAttemptsScheduled = "most_attempts_scheduled" on SCHEDULED in "most_attempts",
        MostAttemptsWaiting = "most_attempts_waiting" on WAITING in "most_attempts",
        MostAttemptsDead = "most_attempts_dead",
        ListReadyOfAll = "list_ready_of_all" on READY_OF_ALL in "list_jobs",
        ListDeadOfAll = "list_dead_of_all" on DEAD_OF_ALL in "list_jobs",
        NewestFailures = "newest_failures",
        ListFinished = "list_finished" on HISTORY in "list_jobs",
        SearchKey = "search_key",
        CountKey = "count_key",
        SearchTag = "search_tag",
        CountTag = "count_tag",
        SearchReady = "search_ready" on READY in "search",
        SearchLeased = "search_leased" on LEASED in "search",
        SearchScheduled = "search_scheduled" on SCHEDULED in "search",
        SearchWaiting = "search_waiting" on WAITING in "search",
        SearchDead = "search_dead" on DEAD in "search",
        SearchFinished = "search_finished",
        FoundJobs = "found_jobs",
        EstimateFinished = "estimate_finished",
        JsonPathProblem = "json_path_problem": "SELECT howdah.json_path_problem($1) AS problem",
    }
    bulk {
        StartBulk = "start_bulk",
        ClaimBulk = "claim_bulk",
        NextBulk = "next_bulk",
        LockBulk = "lock_bulk",
        AddToBulk = "add_to_bulk",
        AdvanceBulk = "advance_bulk",
        ChangeBulk = "change_bulk",
        GetBulk = "get_bulk",
        ListBulks = "list_bulks",
        DeleteOldBulks = "delete_old_bulks",
        PickChangesForBulk = "pick_changes_for_bulk",
        WriteBulkJournal = "write_bulk_journal",
        DependentsForBulk = "dependents_for_bulk",
        ChangeableForBulk = "changeable_for_bulk",
        UndoBulk = "undo_bulk":
            "SELECT kind::text, id, type_id, rank, jobs, in_us, problem FROM howdah.undo_bulk($1, $2, $3)",
        MoveJobs = "move_jobs":
            "SELECT kind::text, id, type_id, rank, jobs, in_us, problem
             FROM howdah.move_jobs($1, $2::text::howdah.job_state, $3, $4)",
        SetInJobs = "set_in_jobs":
            "SELECT kind::text, id, type_id, rank, jobs, in_us, problem
             FROM howdah.set_in_jobs($1, $2::text::howdah.job_state, $3, $4)",
    }
    archive {
        DaysToArchive = "days_to_archive",
        TakeDay = "take_day",
        HoldDay = "hold_day",
        ArchiveLoad = "archive_load",
        ArchivePage = "archive_page",
        ArchiveLatePage = "archive_late_page",
        SumsOfDay = "sums_of_day":
            "SELECT jobs, ids::text AS ids, lengths::text AS lengths, next_block
             FROM howdah.sums_of_day($1::text::date, $2, $3, $4)",
        PublishDay = "publish_day",
        ArchivedDay = "archived_day",
        FailedDay = "failed_day",
        ExpiredDays = "expired_days",
        TakeExpiredDay = "take_expired_day",
        ExpiredDay = "expired_day",
        ArchivedDays = "archived_days",
        FindArchived = "find_archived",
        ArchivedOfType = "archived_of_type",
        CountArchived = "count_archived",
        HistoryDays = "history_days",
        HistoryDay = "history_day",
        HistoryPage = "history_page",
        HistoryKeyPage = "history_key_page",
        ArchivedOptions = "archived_options":
            "SELECT howdah.coordination_of($1::bigint, $2::text::jsonb) AS coordination,
                    howdah.original_type($2::text::jsonb) AS original_task_type",
        HistoryParts = "history_parts",
        ForgetHistory = "forget_history":
            "SELECT jobs, ids, types, next_block FROM howdah.forget_history($1, $2, $3, $4, $5, $6, $7)",
        ForgetDays = "forget_days",
        ArchivedDayOf = "archived_day_of":
            "SELECT url, manifest::text AS manifest FROM howdah.archive WHERE day = $1::text::date AND manifest IS NOT NULL",
        TakeRewrite = "take_rewrite",
        NoteRewrite = "note_rewrite",
        RewrittenDay = "rewritten_day",
        EndRewrite = "end_rewrite",
        RestoreJobs = "restore_jobs":
            "SELECT old_id, id, outcome FROM howdah.restore_jobs($1, $2, $3, $4, $5, $6, $7, $8)",
        ArchiveOverdue = "archive_overdue",
        ArchiveTarget = "archive_target": "SELECT url FROM howdah.archive_target",
        SetArchiveTarget = "set_archive_target",
        ClearArchiveTarget = "clear_archive_target",
        TypeNames = "type_names": "SELECT id, name FROM howdah.task_type",
    }
    schedule {
        CreateSchedule = "create_schedule",
        UpdateSchedule = "update_schedule",
        SaveSchedule = "save_schedule",
        GetSchedule = "get_schedule",
        ListSchedules = "list_schedules",
        DeleteSchedule = "delete_schedule",
        CountSchedules = "count_schedules",
        LockSchedule = "lock_schedule",
        LockSchedules = "lock_schedules",
        LockDueSchedules = "lock_due_schedules",
        WatchedSchedules = "watched_schedules",
        Unfinished = "unfinished",
        FinishTimes = "finish_times",
    }
}

impl Statement {
    /// Returns the SQL text for the schema `howdah`.
    pub fn text(self) -> Cow<'static, str> {
        match self.table() {
            Some(table) => table.fill(self.source()).into(),
            None => self.source().into(),
        }
    }

    /// Returns the SQL text for another schema. The schema name must be valid without quotes.
    pub fn text_in(self, schema: &str) -> String {
        in_schema(&self.text(), schema)
    }
}

/// Converts SQL for the schema `howdah` to another schema.
pub(super) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "howdah" { sql.to_owned() } else { sql.replace("howdah.", &format!("{schema}.")) }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::Statement;

    #[test]
    fn every_file_is_a_statement() {
        let mut files = BTreeSet::new();
        for folder in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("sql")).expect("server/engine/sql") {
            for file in std::fs::read_dir(folder.expect("a folder").path()).expect("a folder") {
                let path = file.expect("a file").path();
                let names = path.iter().rev().take(2).map(|name| name.to_string_lossy().into_owned());
                files.insert(names.collect::<Vec<_>>());
            }
        }
        for statement in Statement::ALL {
            let [folder, file] = statement.file();
            files.remove(&vec![format!("{file}.sql"), folder.to_owned()]);
        }
        assert_eq!(files, BTreeSet::new());
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Statement::ALL.iter().map(|statement| statement.name()).collect();
        assert_eq!(names.len(), Statement::ALL.len());
    }
}
