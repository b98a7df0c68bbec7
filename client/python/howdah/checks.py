"""Checks of jobs to enqueue that need no database, with the broker's fields and the default limits of a cluster."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Iterator, Sequence, Tuple

import grpc

from . import v1
from .errors import HowdahError

Problem = Tuple[str, str]
_NAME, _NAME_BYTES = re.compile(r"[A-Za-z0-9._:/-]+"), 200
_BATCH, _PAYLOAD_BYTES, _HEADERS, _HEADER_BYTES = 10_000, 1 << 20, 64, 8 << 10
_TEXTS = {"key": 200, "limit_key": 200, "fair_key": 200, "local_name": 200, "traceparent": 200, "tracestate": 512}
_MS, _MONTH, _YEAR, _LONGEST = timedelta(milliseconds=1), timedelta(days=30), timedelta(days=365), timedelta(days=3650)
_DURATIONS = {
    "delay": (timedelta(), _LONGEST),
    "timeout": (_MS, _MONTH),
    "key_hold": (timedelta(seconds=1), _YEAR),
    "key_debounce_limit": (_MS, _YEAR),
    "expire_after": (_MS, _LONGEST),
}
_NEED_KEY = ("key_policy", "key_version", "key_hold", "key_debounce_limit", "on_holder_failure")
# Fields of a retry policy, and the kinds that have them. An unspecified kind may be exponential.
_KINDS = {
    "delays": ("LIST",),
    "initial_delay": ("UNSPECIFIED", "EXPONENTIAL", "LINEAR", "FIXED"),
    "multiplier": ("UNSPECIFIED", "EXPONENTIAL"),
    "max_delay": ("UNSPECIFIED", "EXPONENTIAL", "LINEAR"),
}


def check(jobs: Sequence[v1.NewJob]) -> None:
    """Raises the error that a broker returns for the first invalid job."""
    if len(jobs) > _BATCH:
        raise _invalid("jobs", f"has {len(jobs)} entries; 1 to {_BATCH} are allowed")
    names = {job.local_name for job in jobs if job.local_name}
    for number, job in enumerate(jobs):
        problems = (*_sizes(job), *_times(job), *_contradictions(job), *_policy(job.retry_policy))
        for field, problem in problems:
            raise _invalid(f"jobs[{number}].{field}", problem)
        for place, name in enumerate(job.after_local):
            if name not in names:
                raise _invalid(f"jobs[{number}].after_local[{place}]", f"{name!r} is not the local_name of a job")


def _invalid(field: str, problem: str) -> HowdahError:
    text = f"{field} {problem}"
    return HowdahError(text, grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD", field=field)


def _sizes(job: v1.NewJob) -> Iterator[Problem]:
    types = [("task_type", job.task_type), *((f"next_stages[{n}]", name) for n, name in enumerate(job.next_stages))]
    for field, name in types + ([("fallback", job.fallback)] if job.fallback else []):
        if not _NAME.fullmatch(name) or len(name) > _NAME_BYTES:
            yield field, f"{name[:40]!r} is not 1 to {_NAME_BYTES} of the characters A-Z a-z 0-9 . _ : / -"
    if len(job.payload) > _PAYLOAD_BYTES:
        yield "payload", f"has {len(job.payload)} bytes; at most {_PAYLOAD_BYTES} are allowed"
    header_bytes = sum(len(text.encode()) for header in job.headers.items() for text in header)
    if len(job.headers) > _HEADERS or header_bytes > _HEADER_BYTES:
        most = f"{_HEADERS} entries with {_HEADER_BYTES} bytes"
        yield "headers", f"has {len(job.headers)} entries with {header_bytes} bytes; at most {most} are allowed"
    for field, most_bytes in _TEXTS.items():
        yield from _text(field, getattr(job, field), most_bytes)
    if len(job.tags) > 16:
        yield "tags", f"has {len(job.tags)} entries; 0 to 16 are allowed"
    for number, tag in enumerate(job.tags):
        if not tag:
            yield f"tags[{number}]", "is empty; leave it out"
        yield from _text(f"tags[{number}]", tag, 64)
    if not -1000 <= job.priority <= 1000:
        yield "priority", f"is {job.priority}; -1000 to 1000 is allowed"
    if job.max_attempts > 1000:
        yield "max_attempts", f"is {job.max_attempts}; 0 to 1000 is allowed"
    if job.limit_max > 1_000_000:
        yield "limit_max", f"is {job.limit_max}; 0 to 1000000 is allowed"


def _text(field: str, text: str, most: int) -> Iterator[Problem]:
    if len(text.encode()) > most:
        yield field, f"has {len(text.encode())} bytes; at most {most} are allowed"
    if re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        yield field, f"{text[:40]!r} has a control character; none are allowed"


def _times(job: v1.NewJob) -> Iterator[Problem]:
    for descriptor, value in job.ListFields():
        least, most = _DURATIONS.get(descriptor.name, (None, None))
        if least is not None and not least <= value.ToTimedelta() <= most:
            yield descriptor.name, f"is {value.ToTimedelta()}; {least} to {most} is allowed"
    starts_late = job.HasField("expire_after") and job.delay.ToTimedelta() >= job.expire_after.ToTimedelta()
    if starts_late and job.HasField("delay"):
        yield "expire_after", "is not after the job's start, so the job would never run; set more than the delay"
    both = job.HasField("expire_at") and job.HasField("run_at")
    if both and job.expire_at.ToDatetime() <= job.run_at.ToDatetime():
        yield "expire_at", "is not after the job's start, so the job would never run; set a later time than run_at"


def _contradictions(job: v1.NewJob) -> Iterator[Problem]:
    policy = v1.KeyPolicy.Name(job.key_policy)[len("KEY_POLICY_") :]
    given = {descriptor.name for descriptor, _ in job.ListFields()}
    for field in _NEED_KEY:
        if field in given and not job.key and (field != "key_policy" or policy != "KEEP"):
            yield field, "is set without a key; set key too"
    if policy == "REPLACE_IF_NEWER" and "key_version" not in given:
        yield "key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER requires it"
    if policy == "DEBOUNCE" and not given & {"delay", "run_at"}:
        yield "key_policy", "is KEY_POLICY_DEBOUNCE without a delay or run_at; set how far the job is put off"
    if policy != "DEBOUNCE" and "key_debounce_limit" in given:
        yield "key_debounce_limit", "is set without KEY_POLICY_DEBOUNCE; set key_policy too"
    if job.limit_max and not job.limit_key:
        yield "limit_max", "is set without a limit_key; set that too"
    if job.on_dependency_failure and not given & {"after", "after_local"}:
        yield "on_dependency_failure", "is set without after or after_local; set one of those too"
    if job.stage_payload and not job.next_stages:
        yield "stage_payload", "is set without next_stages; set those too"
    if job.fallback and job.fallback == job.task_type:
        yield "fallback", f"is {job.fallback!r}, the job's own task type; name another one"


def _policy(policy: v1.RetryPolicy) -> Iterator[Problem]:
    kind = v1.RetryPolicyKind.Name(policy.kind)[len("RETRY_POLICY_KIND_") :]
    given = {descriptor.name for descriptor, _ in policy.ListFields()}
    if kind == "LIST" and "delays" not in given:
        yield "retry_policy.delays", "has no entries; kind LIST needs 1 to 100"
    for field, kinds in _KINDS.items():
        if field in given and kind not in kinds:
            yield f"retry_policy.{field}", f"is not for kind {kind}"
