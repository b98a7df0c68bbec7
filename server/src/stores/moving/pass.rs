//! Moves the jobs of a task type in batches, then its schedules, and then completes the move.

use howdah_engine::store::{LeavingJob, LeavingState};

use super::{LOOK, MovePhase, Running, Stop};

/// Limits of a batch of moved jobs: number of jobs, and size of the payloads in bytes, not counting the first job.
const JOBS: i32 = 2_000;
const BYTES: i64 = 8 << 20;
/// Positions at which scans for jobs to move start: (rank, id) for ready jobs, and (start time in µs, id) for the
/// others. Dead jobs have time 0.
const FIRST: (i64, i64) = (i64::MIN, 0);
const FIRST_TIME: (i64, i64) = (0, 0);

impl Running<'_> {
    /// Executes the whole move. Repeating a step that an interrupted move has already made has no effect.
    pub(super) async fn run_on(&mut self) -> Result<(), Stop> {
        self.begin().await?;
        self.progress.phase = MovePhase::Moving;
        loop {
            let moved = self.pass().await?;
            let (store, broker, type_id) = (self.job.stores().0, self.source()?.broker.clone(), self.job.type_id);
            self.progress.left = self.step(&store, || broker.operator.store().left_to_move(type_id)).await?;
            self.report().await?;
            if moved > 0 || self.progress.left.leaving > 0 {
                continue;
            }
            if self.progress.phase == MovePhase::Moving {
                self.go_on().await?;
            }
            if self.progress.left.running == 0 && self.finish().await? {
                return Ok(());
            }
            self.pause(LOOK).await?;
        }
    }

    /// Lets the brokers of the new store claim jobs of the task type, after all movable jobs have moved.
    async fn go_on(&mut self) -> Result<(), Stop> {
        let (store, broker, new_type) = (self.job.stores().1, self.target()?.broker.clone(), self.new_type);
        let version = self.step(&store, || broker.operator.store().end_arrival(new_type)).await?;
        broker.operator.settings_changed(version).await;
        self.progress.phase = MovePhase::Following;
        self.report().await
    }

    /// Makes one pass over the old store: moves the ready, then the scheduled, then the dead jobs. Returns the number
    /// of moved jobs.
    async fn pass(&mut self) -> Result<i64, Stop> {
        let (store, broker, type_id) = (self.job.stores().0, self.source()?.broker.clone(), self.job.type_id);
        let mut moved = 0;
        // Jobs that an interrupted move has taken out of their table and not yet stored in the new store are moved
        // first.
        loop {
            let jobs = self.step(&store, || broker.operator.store().jobs_in_transit(type_id, JOBS)).await?;
            if jobs.is_empty() {
                break;
            }
            moved += self.carry(&jobs).await?;
        }
        for state in LeavingState::ALL {
            let mut after = if state == LeavingState::Ready { FIRST } else { FIRST_TIME };
            loop {
                let jobs = self
                    .step(&store, || {
                        let broker_id = broker.operator.broker_id();
                        broker.operator.store().leave_jobs(type_id, (state, after), (JOBS, BYTES), broker_id)
                    })
                    .await?;
                let Some(last) = jobs.last() else { break };
                after = (last.position, last.id);
                moved += self.carry(&jobs).await?;
            }
        }
        Ok(moved)
    }

    /// Stores jobs from the table `leaving` in the new store, and then removes them from `leaving`. Returns the number
    /// of moved jobs.
    async fn carry(&mut self, jobs: &[LeavingJob]) -> Result<i64, Stop> {
        let (old_name, new_name) = self.job.stores();
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (type_id, new_type) = (self.job.type_id, self.new_type);
        let ids = self.step(&new_name, || new.operator.store().arrive_jobs(new_type, jobs)).await?;
        let done = self.step(&old_name, || old.operator.store().leave_done(type_id, &ids)).await?;
        self.progress.moved += done;
        self.report().await?;
        Ok(done)
    }

    /// Moves the schedules and ends the move. Returns false and does not end the move if the old store still had jobs
    /// to move.
    async fn finish(&mut self) -> Result<bool, Stop> {
        let (old_name, new_name) = self.job.stores();
        let (old, new) = (self.source()?.broker.clone(), self.target()?.broker.clone());
        let (name, type_id, new_type) = (self.job.name.clone(), self.job.type_id, self.new_type);
        let leaving = self.step(&old_name, || old.operator.store().leave_schedules(name.as_str())).await?;
        if !leaving.is_empty() {
            let arrived = self.step(&new_name, || new.operator.store().arrive_schedules(&leaving)).await?;
            self.step(&old_name, || old.operator.store().leave_schedules_done(name.as_str(), &arrived)).await?;
            self.progress.schedules += arrived.len();
            self.progress.staying_schedules = leaving.len() - arrived.len();
        }
        if self.pass().await? > 0 {
            return Ok(false);
        }
        let version = self.step(&old_name, || old.operator.store().end_move(type_id, old.operator.broker_id())).await?;
        old.operator.settings_changed(version).await;
        self.step(&new_name, || new.operator.store().delete_arrival(new_type)).await?;
        self.progress.phase = MovePhase::Done;
        self.report().await?;
        Ok(true)
    }
}
