//! The statements by name. The text of each is a file of `server/sql`, with its reason inside.

macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        /// A statement that brokers run; prepared once a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Statement {
            $(#[doc = concat!("`sql/", $file, ".sql`")] $name,)*
        }

        impl Statement {
            /// Every statement.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name, for logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $file,)* }
            }

            /// Its text, in the schema `howdah`.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../sql/", $file, ".sql")),)* }
            }
        }
    };
}

statements! {
    Enqueue = "enqueue",
    EnqueueDirect = "enqueue_direct",
    EnqueueFull = "enqueue_full",
    EnqueueSpecial = "enqueue_special",
    CreateRoles = "create_roles",
    RepeatedRequests = "repeated_requests",
    AmendRequest = "amend_request",
    KeyHolders = "key_holders",
    FreeHeldKeys = "free_held_keys",
    Notify = "notify",
    Claim = "claim",
    LostClaim = "lost_claim",
    SettleAck = "settle_ack",
    SettleNack = "settle_nack",
    AckSpecial = "ack_special",
    AfterEnd = "after_end",
    ExpireLeases = "expire_leases",
    Expire = "expire",
    Admit = "admit",
    TypeQuota = "type_quota",
    SpendTokens = "spend_tokens",
    SetLimits = "set_limits",
    LimitsChanged = "limits_changed",
    FollowLimits = "follow_limits",
    HoldBack = "hold_back",
    PauseLimitKey = "pause_limit_key",
    ListLimitKeys = "list_limit_keys",
    ForgetGates = "forget_gates",
    EndedJobs = "ended_jobs",
    MarkWaited = "mark_waited",
    LeaseFacts = "lease_facts",
    SettledBefore = "settled_before",
    Extend = "extend",
    ReportProgress = "report_progress",
    Adopt = "adopt",
    Sweep = "sweep",
    Promote = "promote",
    PromoteSpecial = "promote_special",
    LostSpecial = "lost_special",
    TimedOut = "timed_out",
    Rescue = "rescue",
    RegisterBroker = "register_broker",
    RenewBroker = "renew_broker",
    RetireBroker = "retire_broker",
    ForgetBrokers = "forget_brokers",
    MakePartitions = "make_partitions",
    DropPartitions = "drop_partitions",
    PrunableHistory = "prunable_history",
    PruneHistory = "prune_history",
    HistoryPruned = "history_pruned",
    ForgetRequests = "forget_requests",
    RerankReady = "rerank_ready",
    RerankScheduled = "rerank_scheduled",
    RerankWaiting = "rerank_waiting",
    RerankDue = "rerank_due",
    RerankDone = "rerank_done",
    TaskTypesByName = "task_types_by_name",
    CreateTaskTypes = "create_task_types",
    AllSettings = "all_settings",
    UpdateTaskType = "update_task_type",
    ListTaskTypes = "list_task_types",
    Backlogs = "backlogs",
    StorageHealth = "storage_health",
    GetJob = "get_job",
    PickReady = "pick_ready",
    PickLeased = "pick_leased",
    PickScheduled = "pick_scheduled",
    PickWaiting = "pick_waiting",
    PickDead = "pick_dead",
    PickDeadGroup = "pick_dead_group",
    RetryJobs = "retry_jobs",
    DiscardJobs = "discard_jobs",
    ListErrorGroups = "list_error_groups",
    Cancel = "cancel",
    Reprioritize = "reprioritize",
    StillLive = "still_live",
    ListReady = "list_ready",
    ListLeased = "list_leased",
    ListScheduled = "list_scheduled",
    ListWaiting = "list_waiting",
    ListDead = "list_dead",
    ListDeadGroup = "list_dead_group",
    ListFinished = "list_finished",
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

impl Statement {
    /// Its text in another schema. The schema's name was checked to need no quotes.
    pub fn text_in(self, schema: &str) -> String {
        in_schema(self.text(), schema)
    }
}

/// SQL written for the schema `howdah`, for another one.
pub(super) fn in_schema(sql: &str, schema: &str) -> String {
    if schema == "howdah" { sql.to_owned() } else { sql.replace("howdah.", &format!("{schema}.")) }
}
