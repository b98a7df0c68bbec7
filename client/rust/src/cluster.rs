//! Task types, limit keys, cluster settings, stores, workers, tokens and the audit log.

use std::time::{Duration, SystemTime};

use howdah_proto::v1::{self as proto, revoke_tokens_request::Selection};
use prost::Message as _;
use prost_types::{FieldMask, FileDescriptorSet};

use crate::{
    Client, Error, Result,
    call::{call, calls, pages},
    time,
};

/// Task types and their limit keys.
impl Client {
    /// Lists all task types by name, with their numbers of jobs.
    pub async fn list_task_types(&self) -> Result<Vec<proto::TaskType>> {
        pages!(self.task_types().list_task_types(proto::ListTaskTypesRequest::default()).task_types, usize::MAX)
    }

    calls! {
        /// Lists one page of the task types by name. With `last_count` the broker returns the counts that it determined last,
        /// which makes frequent calls cheap.
        fn task_type_page(request: proto::ListTaskTypesRequest) -> proto::ListTaskTypesResponse =
            Read task_types.list_task_types(request);

        /// Reads the statistics of a type by period, or the totals of all types.
        fn get_stats(request: proto::GetStatsRequest) -> proto::GetStatsResponse = Read task_types.get_stats(request);

        /// Replaces the settings of a task type, and creates it if it does not exist.
        fn update_task_type(task_type: impl Into<String>, settings: proto::TaskTypeSettings) -> proto::TaskTypeSettings =
            Change task_types.update_task_type(proto::UpdateTaskTypeRequest {
                task_type: task_type.into(),
                settings: Some(settings),
                update_mask: None,
            }).settings;

        /// Changes the settings of a task type that `paths` names, such as `paused` or `retry_policy.max_delay`, and creates the
        /// type if it does not exist. Each store that has the type keeps its other settings.
        ///
        /// ```no_run
        /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
        /// use howdah_client::proto::TaskTypeSettings;
        /// let settings = TaskTypeSettings { max_attempts: 3, ..Default::default() };
        /// client.change_task_type("email.send", settings, ["max_attempts"]).await?;
        /// # Ok(()) }
        /// ```
        fn change_task_type(
            task_type: impl Into<String>,
            settings: proto::TaskTypeSettings,
            paths: impl IntoIterator<Item = impl Into<String>>
        ) -> proto::TaskTypeSettings =
            Change task_types.update_task_type(proto::UpdateTaskTypeRequest {
                task_type: task_type.into(),
                settings: Some(settings),
                update_mask: Some(FieldMask { paths: paths.into_iter().map(Into::into).collect() }),
            }).settings;
    }

    /// Lists the task types that a request selects, over all pages. A type that several stores have is listed once for each.
    pub async fn find_task_types(&self, request: proto::ListTaskTypesRequest) -> Result<Vec<proto::TaskType>> {
        pages!(self.task_types().list_task_types(request).task_types, usize::MAX)
    }

    /// Gets one task type with its numbers of jobs in all stores; `None` if it does not exist. The settings come from the first
    /// store that has the type; [`find_task_types`](Self::find_task_types) returns an entry for each store.
    pub async fn get_task_type(&self, task_type: impl Into<String>) -> Result<Option<proto::TaskType>> {
        let request = proto::ListTaskTypesRequest { task_type: task_type.into(), ..Default::default() };
        Ok(self.find_task_types(request).await?.into_iter().reduce(|all, other| sum_of_stores(all, &other)))
    }

    /// Gets the storage health: dead rows, and what prevents Postgres from removing them. `None` if the broker is too old to
    /// report it, or its database role may not read it.
    ///
    /// ```no_run
    /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
    /// let storage = client.storage_health().await?.unwrap_or_default();
    /// for table in &storage.tables {
    ///     println!("{}: {} dead rows", table.name, table.dead_rows);
    /// }
    /// if let Some(holder) = &storage.oldest_snapshot {
    ///     println!("the oldest snapshot is of pid {}", holder.pid);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn storage_health(&self) -> Result<Option<proto::StorageHealth>> {
        // The broker adds the storage health to the first page of a list of all types, so a page size of 1 is enough.
        let request = proto::ListTaskTypesRequest { page_size: 1, ..Default::default() };
        Ok(self.task_type_page(request).await?.storage)
    }

    /// Replaces the settings of a task type, and creates it if it does not exist. Programs call this at each start: it is
    /// idempotent, and ignores `paused`, so that a restart does not resume what an operator has paused.
    ///
    /// ```no_run
    /// # use howdah_client::{Client, RetryPolicy, proto::TaskTypeSettings};
    /// # use std::time::Duration;
    /// # async fn f(client: Client) -> howdah_client::Result<()> {
    /// let retries = RetryPolicy::list([Duration::from_secs(5), Duration::from_mins(5)]);
    /// let settings = TaskTypeSettings { max_running: 2, retry_policy: Some(retries.into_proto()), ..Default::default() };
    /// client.apply_task_type("report.make", settings).await
    /// # }
    /// ```
    pub async fn apply_task_type(&self, task_type: impl Into<String>, settings: proto::TaskTypeSettings) -> Result<()> {
        let paths = setting_names().into_iter().filter(|name| name != "paused");
        self.change_task_type(task_type, settings, paths).await.map(drop)
    }

    /// Stops the delivery of the jobs of a type at all brokers until [`resume_task_type`](Self::resume_task_type). Running jobs
    /// continue, and jobs can be enqueued.
    pub async fn pause_task_type(&self, task_type: impl Into<String>) -> Result<()> {
        self.set_paused(task_type, true).await
    }

    /// Ends a pause.
    pub async fn resume_task_type(&self, task_type: impl Into<String>) -> Result<()> {
        self.set_paused(task_type, false).await
    }

    async fn set_paused(&self, task_type: impl Into<String>, paused: bool) -> Result<()> {
        let settings = proto::TaskTypeSettings { paused, ..Default::default() };
        self.change_task_type(task_type, settings, ["paused"]).await.map(drop)
    }

    /// Lists the limit keys of a task type that have waiting jobs, are paused, or have their own limit.
    pub async fn list_limit_keys(&self, task_type: impl Into<String>) -> Result<Vec<proto::LimitKey>> {
        let request = proto::ListLimitKeysRequest { task_type: task_type.into(), ..Default::default() };
        pages!(self.task_types().list_limit_keys(request).limit_keys, usize::MAX)
    }

    /// Pauses a limit key of a task type. Without a duration it is paused until it is resumed.
    pub async fn pause_limit_key(
        &self,
        task_type: impl Into<String>,
        key: impl Into<String>,
        duration: Option<Duration>,
    ) -> Result<()> {
        let request = proto::PauseLimitKeyRequest {
            task_type: task_type.into(),
            limit_key: key.into(),
            duration: duration.map(time::to_proto),
        };
        call!(Change self.task_types().pause_limit_key(request)).map(drop)
    }

    /// Sets how many jobs of a limit key may run at once. 0: as many as the task type allows for each key.
    pub async fn update_limit_key(
        &self,
        task_type: impl Into<String>,
        key: impl Into<String>,
        max_running: u32,
    ) -> Result<()> {
        let request = proto::UpdateLimitKeyRequest { task_type: task_type.into(), limit_key: key.into(), max_running };
        call!(Change self.task_types().update_limit_key(request)).map(drop)
    }

    /// Resumes a limit key of a task type.
    pub async fn resume_limit_key(&self, task_type: impl Into<String>, key: impl Into<String>) -> Result<()> {
        let request = proto::ResumeLimitKeyRequest { task_type: task_type.into(), limit_key: key.into() };
        call!(Change self.task_types().resume_limit_key(request)).map(drop)
    }
}

/// Names of the settings of a task type: the fields of the message `TaskTypeSettings`.
fn setting_names() -> Vec<String> {
    // Decoding cannot fail, because the descriptors are compiled in; a test checks that.
    let files = FileDescriptorSet::decode(howdah_proto::FILE_DESCRIPTOR_SET).unwrap_or_default().file;
    let mut messages = files.into_iter().flat_map(|file| file.message_type);
    let settings = messages.find(|message| message.name() == "TaskTypeSettings").unwrap_or_default();
    settings.field.into_iter().filter_map(|field| field.name).collect()
}

/// Adds the numbers of jobs of another store to a task type.
fn sum_of_stores(all: proto::TaskType, other: &proto::TaskType) -> proto::TaskType {
    let (counts, more) = (all.counts.unwrap_or_default(), other.counts.unwrap_or_default());
    let time = |time: &prost_types::Duration| (time.seconds, time.nanos);
    proto::TaskType {
        counts: Some(proto::TaskTypeCounts {
            ready: counts.ready + more.ready,
            leased: counts.leased + more.leased,
            scheduled: counts.scheduled + more.scheduled,
            waiting: counts.waiting + more.waiting,
            dead: counts.dead + more.dead,
        }),
        oldest_ready_age: all.oldest_ready_age.into_iter().chain(other.oldest_ready_age).max_by_key(time),
        next_due_in: all.next_due_in.into_iter().chain(other.next_due_in).min_by_key(time),
        store: format!("{}, {}", all.store, other.store),
        braked: all.braked.or(other.braked),
        ..all
    }
}

/// Cluster settings, stores and workers.
impl Client {
    calls! {
        /// Gets the cluster settings, with their defaults and bounds.
        fn get_settings() -> proto::GetSettingsResponse =
            Read cluster_settings.get_settings(proto::GetSettingsRequest {});

        /// Changes the cluster settings that are set in `settings`. Returns all settings.
        ///
        /// ```no_run
        /// # async fn f(client: howdah_client::Client) -> howdah_client::Result<()> {
        /// use howdah_client::proto::ClusterSettings;
        /// client.update_settings(ClusterSettings { payload_bytes: 2 << 20, ..Default::default() }).await?;
        /// # Ok(()) }
        /// ```
        fn update_settings(settings: proto::ClusterSettings) -> proto::ClusterSettings =
            Change cluster_settings.update_settings(proto::UpdateSettingsRequest {
                settings: Some(settings),
                update_mask: None,
            }).settings;

        /// Resets cluster settings to their defaults, by their names, such as `payload_bytes`. Returns all settings.
        fn reset_settings(names: impl IntoIterator<Item = impl Into<String>>) -> proto::ClusterSettings =
            Change cluster_settings.update_settings(proto::UpdateSettingsRequest {
                settings: None,
                update_mask: Some(FieldMask { paths: names.into_iter().map(Into::into).collect() }),
            }).settings;

        /// Closes a store to new jobs, and returns it. Its existing jobs continue.
        fn drain_store(name: &str) -> proto::Store =
            Change stores.drain_store(proto::DrainStoreRequest { store: name.to_owned() }).store;

        /// Reopens a store to new jobs, and returns it.
        fn open_store(name: &str) -> proto::Store =
            Change stores.open_store(proto::OpenStoreRequest { store: name.to_owned() }).store;

        /// Makes the broker read its configuration again, and add and remove stores accordingly.
        fn reload_stores() -> proto::ReloadStoresResponse = Change stores.reload_stores(proto::ReloadStoresRequest {});

        /// One page of the workers of all brokers.
        fn worker_page(request: proto::ListWorkersRequest) -> proto::ListWorkersResponse =
            Read workers.list_workers(request);
    }

    /// Advances the clock of the broker's database, and returns the new time. Only for the databases of `howdah dev --ephemeral`;
    /// other brokers refuse the call.
    pub async fn advance_clock(&self, duration: Duration) -> Result<SystemTime> {
        let request = proto::AdvanceClockRequest { duration: Some(time::to_proto(duration)) };
        let time = call!(Once self.cluster_settings().advance_clock(request))?.time;
        time::time_from_proto(time).ok_or_else(|| Error::broken("the broker sent no time"))
    }

    /// Lists the store with this name; with an empty name, all stores of the broker.
    pub async fn list_stores(&self, name: &str) -> Result<Vec<proto::Store>> {
        Ok(call!(Read self.stores().list_stores(proto::ListStoresRequest { store: name.to_owned() }))?.stores)
    }

    /// Lists the workers of all brokers. Ignores `page_size` and `page_token` of the request: fetches all pages.
    pub async fn list_workers(&self, request: proto::ListWorkersRequest) -> Result<Vec<proto::Worker>> {
        pages!(self.workers().list_workers(request).workers, usize::MAX)
    }
}

/// Tokens and the audit log.
impl Client {
    /// Creates a token for a principal, with scopes such as `enqueue:mail.*`. Without a lifetime it is valid until it is revoked.
    /// The response contains the secret, which cannot be read again. If the response is lost, the call is not repeated: find the
    /// token with [`list_tokens`](Self::list_tokens), and revoke it.
    pub async fn create_token(
        &self,
        principal: impl Into<String>,
        scopes: impl IntoIterator<Item = impl Into<String>>,
        lifetime: Option<Duration>,
    ) -> Result<proto::CreateTokenResponse> {
        let request = proto::CreateTokenRequest {
            principal: principal.into(),
            scopes: scopes.into_iter().map(Into::into).collect(),
            lifetime: lifetime.map(time::to_proto),
        };
        // The call is sent once. If its response were lost, a repeat would create a second token, and the secret of the first
        // one would never be known.
        call!(Once self.access().create_token(request))
    }

    /// Lists all valid tokens; with `ended`, also revoked and expired ones.
    pub async fn list_tokens(&self, ended: bool) -> Result<Vec<proto::Token>> {
        let request = proto::ListTokensRequest { show_ended: ended, ..Default::default() };
        pages!(self.access().list_tokens(request).tokens, usize::MAX)
    }

    /// Revokes a token by its id. Returns the ids of the revoked tokens.
    pub async fn revoke_token(&self, id: impl Into<String>) -> Result<Vec<String>> {
        self.revoke(Selection::Id(id.into())).await
    }

    /// Revokes all tokens of a principal. Returns their ids.
    pub async fn revoke_tokens_of(&self, principal: impl Into<String>) -> Result<Vec<String>> {
        self.revoke(Selection::Principal(principal.into())).await
    }

    /// Lists audit entries, newest first. Ignores `page_size` and `page_token` of the request: fetches up to `at_most` entries,
    /// in as many pages as needed.
    pub async fn list_audit(&self, request: proto::ListAuditRequest, at_most: usize) -> Result<Vec<proto::AuditEntry>> {
        pages!(self.access().list_audit(request).entries, at_most)
    }

    async fn revoke(&self, selection: Selection) -> Result<Vec<String>> {
        let request = proto::RevokeTokensRequest { selection: Some(selection) };
        Ok(call!(Change self.access().revoke_tokens(request))?.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_of_a_task_type_are_known_by_name() {
        let names = setting_names();
        for name in ["max_attempts", "retry_policy", "paused", "fallback", "brake", "key_gap_from_end"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
    }
}
