"""Calls for programs that manage jobs, schedules and task types. Options are named as in the protocol."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict, cast

from google.protobuf.field_mask_pb2 import FieldMask

from . import v1
from .messages import Seconds, encode, fill

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Enqueued
    from .options import RetryPolicy


class JobConditions(TypedDict, total=False):
    """Conditions on jobs, which must all hold. None and empty values are refused: leave such a condition out."""

    created_before: datetime
    created_since: datetime
    tag: str
    fair_key: str
    limit_key: str
    worker_id: str  #: leased jobs that this worker holds
    attempts_at_least: int
    attempts_at_most: int


class JobFilter(JobConditions, total=False):
    """Selects jobs of a task type, instead of by id."""

    task_type: str
    state: str  #: such as ``dead``; default: all states that the call accepts
    error_group: str  #: jobs whose last error belongs to this group


class JobQuery(JobConditions, total=False):
    """A search: conditions, at most one of the first four criteria, and the jobs to search."""

    key: str
    header: Tuple[str, str]  #: name and value
    payload_text: str  #: text in the payload
    payload_path: str  #: SQL/JSON path, such as ``$.order.id == 17``
    state: str  #: required unless the search is by key, tag or worker
    since: datetime  #: required unless the search is by key, tag or worker
    until: datetime


class ScheduleOptions(TypedDict, total=False):
    """The plan of a schedule: a period or a cron expression, and its policies."""

    period: Seconds  #: 1 s to 3,650 days
    cron: str  #: such as ``0 3 * * *``
    time_zone: str  #: of the cron expression, such as ``Europe/Berlin``; default ``UTC``
    drift: str  #: start of each period: ``plan`` or ``end``
    overlap: str  #: while an earlier job is not finished: ``allow``, ``skip`` or ``one-waiting``
    missed: str  #: missed times: ``skip``, ``one`` or ``all``
    missed_limit: int
    start_time: datetime
    end_time: datetime
    jitter: Seconds


class Rate(TypedDict):
    """A rate limit for starts of jobs, as a token bucket."""

    per_second: float
    burst: int


class Brake(TypedDict, total=False):
    """A brake on repeated failures of a task type."""

    failures: int  #: failed attempts in a row that start the brake
    initial_delay: Seconds
    max_delay: Seconds


class TaskTypeOptions(TypedDict, total=False):
    """Settings of a task type. The options of a job override them."""

    max_attempts: int
    retry_policy: RetryPolicy
    history: str  #: succeeded jobs to keep: ``full``, ``failures``, ``none`` or ``without_empty``
    priority_step: Seconds
    timeout: Seconds
    paused: bool
    max_payload_bytes: int
    max_backlog: int
    history_days: int
    dead_days: int
    brake: Brake
    fallback: str
    max_running: int
    rate: Rate
    key_max_running: int
    key_strict_order: bool
    key_min_gap: Seconds
    key_rate: Rate
    key_gap_from_end: bool


class Retried(NamedTuple):
    """Result of a retry."""

    ids: List[int]  #: the jobs that run again
    key_held_ids: List[int]  #: jobs that stay dead, because another job holds their key
    revived_ids: List[int]  #: cancelled jobs that wait for the retried jobs again


class AsyncOperations:
    """The part of `AsyncClient` that manages jobs, schedules and task types."""

    jobs: v1.JobServiceAsyncStub
    schedules: v1.ScheduleServiceAsyncStub
    task_types: v1.TaskTypeServiceAsyncStub

    async def get(self, job_id: int) -> v1.Job:
        """Returns a job with payload, result and failures."""
        return (await self.jobs.GetJob(fill(v1.GetJobRequest(), {"id": job_id}))).job

    async def explain(self, job_id: int) -> v1.ExplainJobResponse:
        """Explains why a job does not run, and what must change first."""
        return await self.jobs.ExplainJob(fill(v1.ExplainJobRequest(), {"id": job_id}))

    async def search(self, task_type: str, **query: Unpack[JobQuery]) -> AsyncIterator[v1.Job]:
        """Finds jobs of a task type by conditions, key, header or payload. Yields them without their payloads."""
        options = {"task_type": task_type, **_with_conditions(query)}
        header = options.get("header")
        if header is not None:
            if not (isinstance(header, (tuple, list)) and len(header) == 2 and None not in header):
                raise ValueError(f"header: {header!r} is not a pair of name and value")
            options["header"] = dict(zip(("name", "value"), header))
        request, more = fill(v1.SearchJobsRequest(), options), True
        while more:
            answer = await self.jobs.SearchJobs(request)
            for job in answer.jobs:
                yield job
            request.page_token, more = answer.next_page_token, bool(answer.next_page_token)

    async def cancel(self, *ids: int, **jobs: Unpack[JobFilter]) -> List[int]:
        """Cancels unfinished jobs: by id, or all that a filter selects. Returns the ids of the cancelled jobs."""
        request, cancelled = v1.CancelJobsRequest(filter=_filter(ids, jobs)), _Pages()
        while cancelled.more(request):
            answer = await self.jobs.CancelJobs(request)
            cancelled.add(answer, answer.cancelled_ids)
        return cancelled.ids

    async def discard(self, *ids: int, **jobs: Unpack[JobFilter]) -> List[int]:
        """Moves dead jobs to history: by id, or all that a filter selects. Returns the ids of the discarded jobs."""
        request, discarded = v1.DiscardJobsRequest(filter=_filter(ids, jobs)), _Pages()
        while discarded.more(request):
            answer = await self.jobs.DiscardJobs(request)
            discarded.add(answer, answer.discarded_ids)
        return discarded.ids

    async def retry(
        self,
        *ids: int,
        delay: Optional[Seconds] = None,
        run_at: Optional[datetime] = None,
        payload: object = None,
        **jobs: Unpack[JobFilter],
    ) -> Retried:
        """Makes dead and scheduled jobs run now or later: by id, or all that a filter selects.

        A ``payload`` replaces the payload of one job.
        """
        options = {"delay": delay, "run_at": run_at, "payload": None if payload is None else encode(payload)}
        request, retried = fill(v1.RetryJobsRequest(filter=_filter(ids, jobs)), options), _Pages()
        result = Retried(retried.ids, [], [])
        while retried.more(request):
            answer = await self.jobs.RetryJobs(request)
            retried.add(answer, answer.retried_ids)
            result.key_held_ids.extend(answer.key_held_ids)
            result.revived_ids.extend(answer.revived_ids)
        return result

    async def rerun(
        self,
        *ids: int,
        delay: Optional[Seconds] = None,
        run_at: Optional[datetime] = None,
        payload: object = None,
    ) -> List[v1.RerunJob]:
        """Runs finished jobs again, as new jobs. Returns for each the id of the new job, or why it does not run again.

        A ``payload`` replaces the payload of one job.
        """
        options = {"delay": delay, "run_at": run_at, "payload": None if payload is None else encode(payload)}
        request = fill(v1.RerunJobsRequest(request_key=uuid.uuid4().hex), {"ids": ids, **options})
        return list((await self.jobs.RerunJobs(request)).jobs)

    async def apply_schedule(self, name: str, template: v1.NewJob, **options: Unpack[ScheduleOptions]) -> v1.Schedule:
        """Creates a schedule, or replaces its definition. A program may call this at each start.

        ``template`` is the job to enqueue, made by `new_job`. A paused schedule stays paused.
        """
        plan: Any = {"name": name, "template": template, **options}
        cron, zone = plan.get("cron"), plan.pop("time_zone", None)
        if cron is not None:
            plan["cron"] = {"expression": cron, "time_zone": "UTC" if zone is None else zone}
        elif zone is not None:
            raise ValueError("time_zone is for cron, not for period: leave it out or give cron")
        schedule = fill(v1.Schedule(), plan)
        request = v1.UpdateScheduleRequest(schedule=schedule, allow_missing=True)
        return (await self.schedules.UpdateSchedule(request)).schedule

    async def pause_schedule(self, name: str) -> v1.Schedule:
        return (await self.schedules.PauseSchedule(v1.PauseScheduleRequest(name=name))).schedule

    async def resume_schedule(self, name: str) -> v1.Schedule:
        return (await self.schedules.ResumeSchedule(v1.ResumeScheduleRequest(name=name))).schedule

    async def run_schedule(self, name: str, *, request_key: str = "") -> Enqueued:
        """Enqueues the job of a schedule now, in addition to its plan."""
        from .client import enqueued

        request = v1.RunScheduleRequest(name=name, request_key=request_key)
        answer = (await self.schedules.RunSchedule(request)).job
        return enqueued([answer], [v1.NewJob()], generated_key=False)[0]

    async def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. Keeps the jobs that it has enqueued."""
        await self.schedules.DeleteSchedule(v1.DeleteScheduleRequest(name=name))

    async def apply_task_type(self, name: str, **settings: Unpack[TaskTypeOptions]) -> v1.TaskTypeSettings:
        """Replaces the settings of a task type. A program may call this at each start.

        Missing settings get their defaults, except ``paused``: a paused type stays paused.
        """
        wanted = fill(v1.TaskTypeSettings(), cast("Mapping[str, Any]", settings))
        paths = [field.name for field in v1.TaskTypeSettings.DESCRIPTOR.fields]
        if "paused" not in settings:
            paths.remove("paused")
        return await self._set(name, wanted, paths)

    async def pause_task_type(self, name: str) -> v1.TaskTypeSettings:
        """Stops the delivery of a task type's jobs. Running jobs continue, and jobs can be enqueued."""
        return await self._set(name, v1.TaskTypeSettings(paused=True), ["paused"])

    async def resume_task_type(self, name: str) -> v1.TaskTypeSettings:
        return await self._set(name, v1.TaskTypeSettings(), ["paused"])

    async def _set(self, name: str, settings: v1.TaskTypeSettings, paths: List[str]) -> v1.TaskTypeSettings:
        mask = FieldMask(paths=paths)
        request = v1.UpdateTaskTypeRequest(task_type=name, settings=settings, update_mask=mask)
        return (await self.task_types.UpdateTaskType(request)).settings


class _Pages:
    """The ids of a call that handles the jobs of a filter page by page."""

    def __init__(self) -> None:
        self.ids: List[int] = []
        self._token: Optional[str] = None

    def more(self, request: Any) -> bool:
        """Whether another call is needed. Prepares its request."""
        if self._token is not None:
            request.page_token = self._token
        return self._token != ""

    def add(self, answer: Any, ids: Any) -> None:
        self.ids.extend(ids)
        self._token = answer.next_page_token


def _filter(ids: Tuple[int, ...], jobs: JobFilter) -> v1.JobFilter:
    return fill(fill(v1.JobFilter(), {"ids": ids} if ids else {}), _with_conditions(jobs))


def _with_conditions(options: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the options with the conditions among them as one option."""
    conditions = {name: value for name, value in options.items() if name in JobConditions.__annotations__}
    others = {name: value for name, value in options.items() if name not in conditions}
    return {**others, "conditions": fill(v1.JobConditions(), conditions)} if conditions else others
