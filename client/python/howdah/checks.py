"""Checks of jobs to enqueue that need no database, with the broker's fields and the default limits of a cluster."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Iterator, Sequence, Tuple

import grpc

from . import v1
from .errors import HowdahError
from .options import BOUNDS

Problem = Tuple[str, str]
_NAME, _NAME_BYTES = re.compile(r"[A-Za-z0-9._:/-]+"), 200
_BATCH, _PAYLOAD_BYTES, _HEADER_BYTES = 10_000, 1 << 20, 8 << 10
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
        problems = (*_types(job), *_bounds(job), *_contradictions(job), *_policy(job.retry_policy))
        for field, problem in problems:
            raise _invalid(f"jobs[{number}].{field}", problem)
        for place, name in enumerate(job.after_local):
            if name not in names:
                raise _invalid(f"jobs[{number}].after_local[{place}]", f"{name!r} is not the local_name of a job")


def _invalid(field: str, problem: str) -> HowdahError:
    text = f"{field} {problem}"
    return HowdahError(text, grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD", field=field)


def _types(job: v1.NewJob) -> Iterator[Problem]:
    types = [("task_type", job.task_type), *((f"next_stages[{n}]", name) for n, name in enumerate(job.next_stages))]
    for field, name in types + ([("fallback", job.fallback)] if job.fallback else []):
        if not _NAME.fullmatch(name) or len(name) > _NAME_BYTES:
            yield field, f"{name[:40]!r} is not 1 to {_NAME_BYTES} of the characters A-Z a-z 0-9 . _ : / -"
    if len(job.payload) > _PAYLOAD_BYTES:
        yield "payload", f"has {len(job.payload)} bytes; at most {_PAYLOAD_BYTES} are allowed"


def _bounds(job: v1.NewJob) -> Iterator[Problem]:
    given = {descriptor.name: value for descriptor, value in job.ListFields()}
    if job.key_policy == v1.KEY_POLICY_KEEP:  # the policy of every job
        del given["key_policy"]
    for field, kind, least, most, needs in BOUNDS:
        if field not in given:
            continue
        value = given[field]
        if needs and not given.keys() & set(needs):
            yield field, f"is set without {' or '.join(needs)}; set {'that' if len(needs) == 1 else 'one of them'} too"
        if kind == "number" and not least <= value <= most:
            yield field, f"is {value}; {least} to {most} is allowed"
        elif kind == "ms" and not least <= value.ToTimedelta() / timedelta(milliseconds=1) <= most:
            yield field, f"is {value.ToTimedelta()}; {least} ms to {most} ms is allowed"
        elif kind == "text":
            yield from _text(field, value, most)
        elif kind in ("tags", "names", "list", "headers") and len(value) > most:
            yield field, f"has {len(value)} entries; {least} to {most} are allowed"
    header_bytes = sum(len(text.encode()) for header in job.headers.items() for text in header)
    if header_bytes > _HEADER_BYTES:
        yield "headers", f"has {header_bytes} bytes together; at most {_HEADER_BYTES} are allowed"
    for number, tag in enumerate(job.tags):
        if not tag:
            yield f"tags[{number}]", "is empty; leave it out"
        yield from _text(f"tags[{number}]", tag, 64)


def _text(field: str, text: str, most: int) -> Iterator[Problem]:
    if len(text.encode()) > most:
        yield field, f"has {len(text.encode())} bytes; at most {most} are allowed"
    if re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        yield field, f"{text[:40]!r} has a control character; none are allowed"


def _contradictions(job: v1.NewJob) -> Iterator[Problem]:
    starts_late = job.HasField("expire_after") and job.delay.ToTimedelta() >= job.expire_after.ToTimedelta()
    if starts_late and job.HasField("delay"):
        yield "expire_after", "is not after the job's start, so the job would never run; set more than the delay"
    both = job.HasField("expire_at") and job.HasField("run_at")
    if both and job.expire_at.ToDatetime() <= job.run_at.ToDatetime():
        yield "expire_at", "is not after the job's start, so the job would never run; set a later time than run_at"
    policy = v1.KeyPolicy.Name(job.key_policy)[len("KEY_POLICY_") :]
    given = {descriptor.name for descriptor, _ in job.ListFields()}
    if policy == "REPLACE_IF_NEWER" and "key_version" not in given:
        yield "key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER requires it"
    if policy == "DEBOUNCE" and not given & {"delay", "run_at"}:
        yield "key_policy", "is KEY_POLICY_DEBOUNCE without a delay or run_at; set how far the job is put off"
    if policy != "DEBOUNCE" and "key_debounce_limit" in given:
        yield "key_debounce_limit", "is set without KEY_POLICY_DEBOUNCE; set key_policy too"
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
