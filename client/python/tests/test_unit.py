"""Unit tests, which need no broker."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, Type

import grpc
import grpc.aio
import pytest

import howdah
from howdah import testing, v1
from howdah.broker import Broker, Token
from howdah.connection import Backoff, Connection
from howdah.handler import Handler
from howdah.ledger import HeldLease
from howdah.slots import EXACT_TIME, LONGEST_WAIT, Slot, Slots


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("broker:7432", "broker:7432"),
        (" http://broker:7432 ", "broker:7432"),
        ("http://[::1]:7432", "[::1]:7432"),
        ("https://broker", "broker:443"),
    ],
)
def test_an_address_needs_no_scheme(address: str, target: str) -> None:
    assert Broker(address, False, {}).target == target


@pytest.mark.parametrize("address", ["", "postgres://broker", "http://", "a b", "http://:7432", "a:b"])
def test_a_bad_address_is_refused_and_named(address: str) -> None:
    with pytest.raises(howdah.HowdahError) as caught:
        Broker(address, False, {})
    assert caught.value.field == "address" and repr(address) in str(caught.value)


def test_a_token_goes_in_plain_text_to_this_machine_only() -> None:
    for local in ("127.0.0.1:7432", "http://127.8.8.8:7432", "[::1]:7432", "http://LocalHost", "[::ffff:127.0.0.1]:1"):
        howdah.Client(local, token="hwd_secret")
    for other in ("broker:7432", "http://10.0.0.1:7432", "localhost.example:1"):
        with pytest.raises(howdah.HowdahError, match="https://") as caught:
            howdah.Client(other, token="hwd_secret")
        assert "hwd_" not in str(caught.value)
        howdah.Client(other, token="hwd_secret", insecure_token=True)


def test_a_token_is_in_no_error_repr_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(howdah.HowdahError) as caught:
        howdah.Client(token="secret with spaces")
    assert "secret" not in str(caught.value)
    with howdah.Client("127.0.0.1:1", token="hwd_secret", request_timeout=0.3) as client:
        with pytest.raises(howdah.HowdahError) as caught:
            client.enqueue("a")
        assert "hwd_secret" not in f"{caught.value!r} {client!r} {vars(client)} {caplog.text}"


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    token = Token(None, str(path))
    assert token.read() == "one"
    path.write_text("second\n")
    assert token.read() == "second"
    path.unlink()
    assert token.read() == "second", "the previous token is kept, because it may still be valid"
    with pytest.raises(howdah.HowdahError, match="nowhere"):
        Token(None, "/nowhere/token")


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWDAH_SERVER", "127.0.0.1:1,127.0.0.1:2")
    monkeypatch.setenv("HOWDAH_TOKEN", "hwd_env")
    connection = Connection(None, {})
    assert [broker.name for broker in connection.brokers] == ["127.0.0.1:1", "127.0.0.1:2"]
    assert connection.metadata() == (("authorization", "Bearer hwd_env"),)
    assert Connection("127.0.0.1:3", {"token": "own"}).metadata() == (("authorization", "Bearer own"),)


def test_pauses_double_and_stay_under_5_s() -> None:
    backoff = Backoff()
    for bound in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5):
        assert bound / 2 <= backoff.next() <= bound


def test_payloads_are_json_unless_they_are_bytes() -> None:
    assert howdah.encode({"a": "ä"}) == '{"a":"ä"}'.encode()
    assert howdah.encode(b"\xff") == b"\xff"
    assert howdah.encode(None) == b"" and howdah.decode(b"") is None
    assert howdah.encode("text") == b'"text"'


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (5, timedelta(seconds=5)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(minutes=2), timedelta(minutes=2)),
        ("250ms", timedelta(milliseconds=250)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        (" 1 hour 30 minutes ", timedelta(minutes=90)),
        ("1.5 h", timedelta(minutes=90)),
        ("3 days", timedelta(days=3)),
        ("2w", timedelta(days=14)),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_a_text(given: Any, meant: timedelta) -> None:
    assert howdah.new_job("a", delay=given).delay.ToTimedelta() == meant
    assert howdah.Snooze(given).delay == meant


@pytest.mark.parametrize("junk", ["", "5", "m", "5 parsecs", "5m!", "-5m", "1h 30", float("nan"), b"5m"])
def test_a_duration_that_is_junk_is_refused_and_named(junk: Any) -> None:
    with pytest.raises(ValueError, match=r"delay: .* is not a duration: write seconds"):
        howdah.new_job("a", delay=junk)
    for refused in (lambda: howdah.Retry("x", after=junk), lambda: howdah.Worker(stop_timeout=junk)):
        with pytest.raises(ValueError, match="is not a duration"):
            refused()


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        (lambda: howdah.Client(tokn="x"), TypeError, "^a client has no option 'tokn'$"),  # type: ignore[call-arg]
        (lambda: howdah.Client().producer(max_jobs=1), TypeError, "^a producer has no option 'max_jobs'$"),  # type: ignore[call-arg]
        (lambda: howdah.new_job("a", float("nan")), ValueError, "not JSON compliant"),
        (lambda: howdah.Worker(concurrency=0), ValueError, "^concurrency is 0; it must be at least 1$"),
        (lambda: howdah.Worker().task("a", concurrency=0)(send), ValueError, "^concurrency is 0; "),
        (lambda: howdah.Worker().task("a")(lambda: None), TypeError, "must be a function of the payload"),
        (lambda: howdah.Worker().task("a")(lambda a, b, c: None), TypeError, "must be a function of the payload"),
        (lambda: howdah.Worker().task(send), TypeError, r'write @worker.task\("type"\)$'),  # type: ignore[arg-type]
        (lambda: howdah.Worker().task(), TypeError, r'write @worker.task\("type"\)$'),
        (lambda: howdah.Worker().task("a", "a")(send), ValueError, "^the task type 'a' has two handlers"),
        (lambda: howdah.Worker().task("a", executor="gpu"), ValueError, "'gpu'; it may be thread or process$"),  # type: ignore[arg-type]
        (lambda: howdah.Worker().set_concurrency("a", 1), ValueError, "no handler of the task type 'a'$"),
        (lambda: howdah.Worker(labels={"a": 1}), TypeError, r"^labels\['a'\]: 1 is not text"),  # type: ignore[dict-item]
        (lambda: howdah.Worker(stop_timeout="soon"), ValueError, "^stop_timeout: 'soon' is not a duration"),
        (lambda: asyncio.run(howdah.Worker().serve()), ValueError, "^the worker has no handlers: "),
    ],
)
def test_a_mistake_in_a_program_is_refused_at_once_and_named(
    mistake: Callable[[], object], error: Type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        mistake()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_attempts": -1}, ValueError, "max_attempts: -1 is not a whole number from 0 to 1000"),
        ({"priority": "high"}, TypeError, "priority: 'high' is not a whole number from -1000 to 1000"),
        ({"parent_id": 1 << 63}, ValueError, "parent_id: 9223372036854775808 is not a whole number from -9223372036"),
        ({"tags": "one"}, TypeError, "tags: 'one' is not a list: write ['one']"),
        ({"tags": ["one", None]}, TypeError, "tags[1]: None is not text"),
        ({"after": 7}, TypeError, "after: 7 is not a list: write [7]"),
        ({"key": 5}, TypeError, "key: 5 is not text"),
        ({"key": "\udc80"}, ValueError, "key: '\\udc80' is not text in UTF-8"),
        ({"headers": "a=b"}, TypeError, "headers: 'a=b' is not a dict"),
        ({"headers": {"n": 5}}, TypeError, "headers['n']: 5 is not text"),
        ({"headers": {5: "n"}}, TypeError, "headers[5]: 5 is not text"),
        ({"run_at": "tomorrow"}, ValueError, "run_at: 'tomorrow' is not a datetime: write one such as"),
        ({"delay": timedelta.max}, ValueError, "delay: datetime.timedelta(days=999999999, "),
        ({"key_policy": 1.5}, TypeError, "key_policy: 1.5 is not one of keep, replace, "),
        ({"key_policy": "unspecified"}, ValueError, "key_policy: 'unspecified' is not one of keep, replace, "),
        ({"retry_policy": "fixed"}, TypeError, "retry_policy: 'fixed' is not a dict of the fields of RetryPolicy"),
        ({"retry_policy": {"jitter": "x"}}, TypeError, "retry_policy.jitter: 'x' is not a number"),
        ({"retry_policy": {"delays": [1, "x"]}}, ValueError, "retry_policy.delays[1]: 'x' is not a duration: write"),
    ],
    ids=str,
)
def test_an_error_of_an_option_names_it_and_its_value(
    options: Dict[str, Any], error: Type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        howdah.new_job("a", **options)
    assert str(caught.value).startswith(text)


def test_the_words_of_options_have_hyphens_or_underscores() -> None:
    for word in ("replace-if-newer", "replace_if_newer"):
        assert howdah.new_job("a", key_policy=word).key_policy == v1.KEY_POLICY_REPLACE_IF_NEWER


def test_retry_delays_imply_their_kind() -> None:
    policy = howdah.new_job("a", retry_policy={"delays": ["1s", "1m"]}).retry_policy
    assert policy.kind == v1.RETRY_POLICY_KIND_LIST
    assert howdah.new_job("a", retry_policy={"delays": [1], "kind": "fixed"}).retry_policy.kind == (
        v1.RETRY_POLICY_KIND_FIXED
    )


def test_every_option_of_the_protocol_has_a_name_in_python() -> None:
    fields = {field.name for field in v1.NewJob.DESCRIPTOR.fields} - {"task_type", "payload"}
    assert fields == set(howdah.JobOptions.__annotations__)
    policy = {field.name for field in v1.RetryPolicy.DESCRIPTOR.fields}
    assert policy == set(howdah.RetryPolicy.__annotations__)
    settings = {field.name for field in v1.TaskTypeSettings.DESCRIPTOR.fields}
    assert settings == set(howdah.TaskTypeOptions.__annotations__)


def test_every_service_has_a_stub() -> None:
    client = howdah.AsyncClient()
    for stub in (name for name in dir(v1) if name.endswith("Stub")):
        assert any(type(value).__name__ == stub for value in vars(client).values()), stub


@dataclass
class Mail:
    to: str


def send(mail: Mail, job: howdah.Job) -> str:
    job.progress(0.5, checkpoint="half")
    if not mail.to:
        raise howdah.Fatal("nobody")
    return f"{mail.to} {job.attempt}"


async def send_async(mail: Mail, job: howdah.AsyncJob) -> Any:
    await job.extend(timedelta(seconds=5))
    return howdah.Snooze(60) if job.checkpoint else mail.to


def test_a_handler_is_performed_without_a_broker() -> None:
    reports: list[Any] = []
    assert testing.perform(send, Mail("ann"), attempt=2, reports=reports) == "ann 2"
    assert reports[0].fraction == 0.5 and reports[0].checkpoint == b'"half"'
    with pytest.raises(howdah.Fatal, match="nobody"):
        testing.perform(send, {"to": ""})
    assert testing.perform(send_async, {"to": "bob"}) == "bob"
    with pytest.raises(howdah.Snooze):
        testing.perform(send_async, {"to": "bob"}, checkpoint="x")
    with pytest.raises(howdah.Fatal, match="the payload is not Mail"):
        testing.perform(send, b"{")


def test_a_dataclass_ignores_fields_that_it_does_not_have() -> None:
    @dataclass
    class Anything:
        def __init__(self, **fields: str) -> None:
            self.fields = fields

    newer = b'{"to": "ann", "language": "de"}'
    assert howdah.decode(newer, Mail) == Mail("ann")
    assert howdah.decode(newer, Anything).fields == {"to": "ann", "language": "de"}
    for broken, text in ((b'{"language": "de"}', "missing 1 required .*'to'"), (b"[1]", r"\[1\] is not a JSON object")):
        with pytest.raises(howdah.Fatal, match=f"^the payload is not Mail: .*{text}"):
            testing.perform(send, broken)


def test_a_test_broker_says_which_program_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOWDAH_BIN", raising=False)
    with pytest.raises(RuntimeError, match=r"^howdah is not on the PATH: install it or set HOWDAH_BIN$"):
        testing.Broker()
    monkeypatch.setenv("HOWDAH_BIN", "/nowhere/howdah")
    with pytest.raises(RuntimeError, match=r"^HOWDAH_BIN is '/nowhere/howdah': No such file"):
        testing.Broker()


class Sender:
    async def __call__(self, mail: Mail, job: Unknown) -> str:  # type: ignore[name-defined]  # noqa: F821
        return f"{type(mail).__name__} to {mail.to}"


def test_a_handler_may_be_anything_that_can_be_called() -> None:
    def send_from(sender: str, mail: Mail) -> str:
        return f"{sender} to {mail.to}"

    assert testing.perform(functools.partial(send_from, "ann"), {"to": "bob"}) == "ann to bob"
    assert testing.perform(Sender(), {"to": "bob"}) == "Mail to bob"
    assert testing.perform(Sender().__call__, {"to": "bob"}) == "Mail to bob"


async def test_what_is_enqueued_is_recorded() -> None:
    client = testing.RecordingAsyncClient()
    await client.enqueue("email.send", {"to": "ann"}, delay=60, key="k")
    assert (await client.enqueue("email.send", {"to": "bob"}, key="k")).outcome == "kept"
    testing.assert_enqueued(client, "email.send", {"to": "ann"}, delay=timedelta(minutes=1))
    with pytest.raises(AssertionError, match="only"):
        testing.assert_enqueued(client, "email.send", {"to": "bob"})
    recording = testing.RecordingClient()
    assert recording.enqueue("a", 1).id == 1
    testing.assert_enqueued(recording, "a")


def test_a_recording_client_stores_jobs_nowhere_else() -> None:
    client = testing.RecordingClient()
    with client.producer() as producer:
        futures = [producer.submit("a", n, key="k" if n < 2 else "") for n in range(4)]
        refused = producer.submit("no spaces")
    assert [future.result().outcome for future in futures] == ["new", "kept", "new", "new"]
    error = refused.exception()
    assert isinstance(error, howdah.HowdahError) and error.field == "jobs[0].task_type"
    assert [howdah.decode(job.payload) for job in client.in_store("mail").enqueued] == [0, 2, 3]
    worker = howdah.Worker(client)
    worker.task("a")(send)
    for call in (lambda: client.get(1), lambda: list(client.wait([1])), worker.run):
        with pytest.raises(howdah.HowdahError, match="a recording client has no broker"):
            call()


async def test_a_recording_client_follows_key_policies() -> None:
    client = testing.RecordingAsyncClient()
    for payload, policy, outcome in (("a", "keep", "new"), ("b", "replace", "replaced"), ("c", "keep", "kept")):
        assert (await client.enqueue("t", payload, key="k", key_policy=policy)).outcome == outcome
    newer: howdah.JobOptions = {"key": "k", "key_policy": "replace_if_newer", "key_version": 2}
    assert (await client.enqueue("t", "d", **newer)).outcome == "replaced"
    assert (await client.enqueue("t", "e", **newer)).outcome == "stale"
    with pytest.raises(howdah.HowdahError, match="is held") as caught:
        await client.enqueue_many([howdah.new_job("t", 1), howdah.new_job("t", key="k", key_policy="reject")])
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.ALREADY_EXISTS, "jobs[1].key")
    assert [howdah.decode(job.payload) for job in client.enqueued] == ["d"]


REFUSED: Dict[str, Dict[str, Any]] = {
    "task_type": {"task_type": "no spaces"},
    "payload": {"payload": b"x" * (1 << 20) + b"x"},
    "headers": {"headers": {"a": "x" * 9000}},
    "key": {"key": "k" * 201},
    "limit_key": {"limit_key": "a\nb"},
    "limit_max": {"limit_max": 1},
    "tags[1]": {"tags": ["a", "ü" * 33]},
    "priority": {"priority": 1001},
    "max_attempts": {"max_attempts": 1001},
    "delay": {"delay": "3651 days"},
    "timeout": {"timeout": 0},
    "key_policy": {"key_policy": "replace"},
    "key_version": {"key": "k", "key_policy": "replace_if_newer"},
    "key_hold": {"key_hold": "1h"},
    "key_debounce_limit": {"key": "k", "key_debounce_limit": "1h"},
    "expire_after": {"delay": "2h", "expire_after": "1h"},
    "stage_payload": {"stage_payload": "result"},
    "next_stages[0]": {"next_stages": ["a b"]},
    "fallback": {"fallback": "t"},
    "after_local[0]": {"after_local": ["nothing"]},
    "on_dependency_failure": {"on_dependency_failure": "run"},
    "retry_policy.delays": {"retry_policy": {"kind": "list"}},
    "retry_policy.multiplier": {"retry_policy": {"kind": "fixed", "multiplier": 2}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_recording_client_refuses_what_a_broker_refuses(field: str, client: howdah.Client) -> None:
    options = dict(REFUSED[field])
    task_type, payload = options.pop("task_type", "t"), options.pop("payload", None)
    for each in (testing.RecordingClient(), client):
        with pytest.raises(howdah.HowdahError) as caught:
            each.enqueue(task_type, payload, **options)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert caught.value.field == f"jobs[0].{field}"


def test_an_error_without_a_reason_comes_from_the_connection() -> None:
    broken = howdah.HowdahError("Stream removed", grpc.StatusCode.UNKNOWN)
    bug = howdah.HowdahError("a bug", grpc.StatusCode.INTERNAL, reason="INTERNAL")
    full = howdah.HowdahError("full", grpc.StatusCode.RESOURCE_EXHAUSTED, reason="BACKLOG_FULL", retry_after=1)
    assert broken.retryable and not bug.retryable and full.retryable and not full._retried


# Runs in a new process, because gRPC sometimes hangs in the child of a process that has used gRPC.
FORKED = """
import os, sys, howdah
client = howdah.Client(sys.argv[1])
child = os.fork()
if child == 0:
    os._exit(0 if client.enqueue(sys.argv[2]).is_new else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_client_works_in_a_process_that_was_forked(broker: testing.Broker, task_type: str) -> None:
    subprocess.run([sys.executable, "-I", "-c", FORKED, broker.address, task_type], check=True, timeout=60)


USED = """
import os, sys, howdah
client = howdah.Client(sys.argv[1])
client.enqueue(sys.argv[2])
child = os.fork()
if child == 0:
    for each in (client, howdah.Client(sys.argv[1])):
        try:
            each.enqueue(sys.argv[2])
        except howdah.HowdahError as error:
            if "was forked from one that used it" in str(error):
                continue
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_client_says_that_its_process_was_forked_from_one_that_used_grpc(
    broker: testing.Broker, task_type: str
) -> None:
    subprocess.run([sys.executable, "-I", "-c", USED, broker.address, task_type], check=True, timeout=60)


# `preexec_fn` makes `subprocess` fork in every version of Python. gRPC's fork handlers abort about one in twenty programs.
STARTING = """
import os, subprocess, sys, howdah
howdah.Client(sys.argv[1]).enqueue(sys.argv[2])
assert {subprocess.run(["true"], preexec_fn=int).returncode for _ in range(150)} == {0}
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_grpc_does_not_abort_the_programs_that_a_program_starts(broker: testing.Broker, task_type: str) -> None:
    subprocess.run([sys.executable, "-I", "-c", STARTING, broker.address, task_type], check=True, timeout=60)


@pytest.mark.parametrize(
    ("details", "expected", "code"),
    [
        ("Tls handshake failed: WRONG_VERSION_NUMBER: OK", "use http://", grpc.StatusCode.FAILED_PRECONDITION),
        ("GOAWAY received; Debug Text: this port needs TLS: x", "use https://", grpc.StatusCode.FAILED_PRECONDITION),
        ("CERTIFICATE_VERIFY_FAILED: unable to get", "is not trusted", grpc.StatusCode.FAILED_PRECONDITION),
        ("client certificate needed", "none was shown", grpc.StatusCode.UNAUTHENTICATED),
    ],
)
def test_what_tls_refuses_is_explained_and_not_retried(details: str, expected: str, code: grpc.StatusCode) -> None:
    nothing = grpc.aio.Metadata()
    rpc_error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=details)
    error = howdah.HowdahError._from_rpc(rpc_error, "https://broker:7432")
    assert expected in str(error) and str(error).startswith("https://broker:7432: ")
    assert error.code == code and not error.retryable


def test_windows_are_exact_while_jobs_wait_too_long_for_the_total() -> None:
    types = {name: Slot(Handler(lambda payload: None, 2), 2) for name in "abc"}
    slots = Slots(types, 2)

    def deliver(name: str, now: float) -> None:
        types[name].queue.append(HeldLease(testing.make_job(task_type=name), types[name], now))

    def announce() -> Dict[str, int]:
        for name in slots.resized():
            types[name].announced = slots.window(name)
        return {name: slot.announced for name, slot in types.items()}

    assert announce() == {"a": 2, "b": 2, "c": 2}
    for name in "aab":
        deliver(name, 0)
    assert [held.message.task_type for held in iter(slots.next, None)] == ["a", "a"]
    assert announce() == {"a": 2, "b": 2, "c": 2}, "a short wait changes no window"
    assert slots.next_hand_back() == LONGEST_WAIT
    assert [held.message.task_type for held in slots.hand_back(LONGEST_WAIT)] == ["b"]
    assert announce() == {"a": 2, "b": 0, "c": 0}
    assert not slots.ended(types["a"], 2)
    assert slots.resized() == ["b", "c"]
    assert announce() == {"a": 2, "b": 1, "c": 1}, "each type may use the free slot"
    deliver("b", 2)
    assert slots.next() is not None and announce() == {"a": 1, "b": 1, "c": 0}
    assert not slots.ended(types["a"], 3)
    assert slots.resized() == ["c", "b"], "the type that has not started for longest comes first"
    announce()
    assert slots.ended(types["b"], LONGEST_WAIT + EXACT_TIME)
    assert announce() == {"a": 2, "b": 2, "c": 2}
