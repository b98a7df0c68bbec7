"""Errors of calls, with the broker's code, reason, field and retry delay."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, Optional, Tuple, Type

import grpc
from google.rpc import error_details_pb2, status_pb2

from .v1 import RequestError

_TEMPORARY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)
# gRPC codes that mean a broken connection if the error has no reason from the broker.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
# Connection errors that a retry cannot fix. Each entry has a substring of gRPC's error text, a message that says what
# to do, and the code to return.
_CAUSES = (
    ("this port needs TLS", "this port needs TLS: use https://", grpc.StatusCode.FAILED_PRECONDITION),
    ("WRONG_VERSION_NUMBER", "this port does not speak TLS: use http://", grpc.StatusCode.FAILED_PRECONDITION),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the broker's certificate is not trusted: no authority that this client knows has signed it",
        grpc.StatusCode.FAILED_PRECONDITION,
    ),
    (
        "client certificate needed",
        "the broker asks for a client certificate, and none was shown",
        grpc.StatusCode.UNAUTHENTICATED,
    ),
    (
        "client certificate refused",
        "the broker refused the client certificate; its log says why",
        grpc.StatusCode.UNAUTHENTICATED,
    ),
)
#: Reason of an error if a proxy refuses a request because of its size. No part of the request has reached a broker.
REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
_TOO_LARGE = (
    "a proxy between client and broker refuses a request of this size (HTTP 413): raise the proxy's limit "
    "(nginx: client_max_body_size), or send less at once"
)
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class HowdahError(Exception):
    """An error of a call, a producer or a worker, with the broker's code, reason and field."""

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        *,
        reason: str = "",
        field: str = "",
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(f"{message} ({field})" if field and field not in message else message)
        self.message = message
        #: The gRPC code of the error. The client chooses it for errors that are not from a broker.
        self.code = code
        #: Machine-readable reason: one from the broker, such as ``INVALID_FIELD``; one from this client, such as
        #: ``LEASE_LOST``; or ``REQUEST_TOO_LARGE`` if a proxy refuses the size of a request. Empty without a reason.
        self.reason = reason
        #: Path of the invalid field, such as ``jobs[3].task_type``; empty if the error is not about a field.
        self.field = field
        #: Delay before a retry in seconds, which the broker sends if a backlog is full or a rate limit is exceeded;
        #: otherwise None.
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        # Restores the attributes, because the constructors of subclasses have other parameters.
        return _restored, (type(self), str(self), vars(self))

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later. The failed call may have taken effect."""
        return self.retry_after is not None or self.code in _TEMPORARY or (not self.reason and self.code in _BROKEN)

    @property
    def _retried(self) -> bool:
        """Whether this package retries automatically. It does not for a full backlog: the caller should slow down."""
        return self.retryable and self.retry_after is None

    @classmethod
    def _from_rpc(cls, error: grpc.RpcError, address: str = "") -> HowdahError:
        code, text = error.code(), error.details() or error.code().name
        reason, field, retry_after = _details(error.trailing_metadata() or ())
        if not reason and re.search(r"\bstatus: 413\b", text):
            code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, REQUEST_TOO_LARGE
            text = f"{address}: {_TOO_LARGE}" if address else _TOO_LARGE
        if not reason:
            if code in _BROKEN:
                code, text = next(((code, hint) for pattern, hint, code in _CAUSES if pattern in text), (code, text))
            # Adds the broker's address to the text, because the error comes from the connection and not from the
            # broker.
            text = f"{address}: {text}" if address else text
        return cls(text, code, reason=reason, field=field, retry_after=retry_after)

    @classmethod
    def _from_request(cls, error: RequestError) -> HowdahError:
        after = error.retry_after.ToTimedelta().total_seconds() if error.HasField("retry_after") else None
        code = _BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN)
        return cls(error.message, code, reason=error.reason, field=error.field, retry_after=after)


def _restored(kind: Type[HowdahError], text: str, attributes: Dict[str, Any]) -> HowdahError:
    error = kind.__new__(kind, text)
    vars(error).update(attributes)
    return error


class LeaseLost(HowdahError):
    """The worker no longer holds the job: another worker may be running it.

    A handler that raises it ends without an outcome, because the broker would refuse one.
    """

    def __init__(self, job_id: int, cancel_reason: str = "") -> None:
        why = {"cancelled": ": the job was cancelled", "timeout": ": the attempt timed out"}.get(cancel_reason, "")
        text = f"the lease of job {job_id} is lost{why}"
        super().__init__(text, grpc.StatusCode.FAILED_PRECONDITION, reason="LEASE_LOST")


class Stopped(HowdahError):
    """The producer or worker was stopped before the answer came."""

    def __init__(self, role: str) -> None:
        super().__init__(f"the {role} is stopped", grpc.StatusCode.CANCELLED, reason="STOPPED")


def broken(message: str) -> HowdahError:
    """Returns the error of a stream that ended without a gRPC status."""
    return HowdahError(message, grpc.StatusCode.UNAVAILABLE)


def deadline(operation: str, after: float) -> HowdahError:
    return HowdahError(f"{operation}: no answer within {after:g} s", grpc.StatusCode.DEADLINE_EXCEEDED)


def invalid(field: str, message: str) -> HowdahError:
    return HowdahError(message, grpc.StatusCode.INVALID_ARGUMENT, field=field)


def _details(metadata: Iterable[Any]) -> Tuple[str, str, Optional[float]]:
    """Returns the reason, the field and the retry delay from the metadata of an error."""
    reason, field, retry_after = "", "", None
    info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for key, value in metadata:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    reason = info.reason
                elif detail.Unpack(request) and request.field_violations:
                    field = request.field_violations[0].field
                elif detail.Unpack(retry):
                    retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, field, retry_after
