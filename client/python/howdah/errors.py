"""Errors of calls, with what the broker says about them."""

from __future__ import annotations

from typing import Any, Iterable, Optional, Tuple

import grpc
from google.rpc import error_details_pb2, status_pb2

from .v1 import RequestError

_TEMPORARY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)
# Without a reason from the broker, these come from a connection that broke.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
# What trying again does not mend, in words that say what to do.
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
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class HowdahError(Exception):
    """An error of a call, a producer or a worker, with the code, the reason and the field that the broker named."""

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
        #: The gRPC code that fits best.
        self.code = code
        #: The broker's constant for programs, such as ``INVALID_FIELD``; empty if the broker did not answer.
        self.reason = reason
        #: The invalid field, such as ``jobs[3].task_type``; otherwise empty.
        self.field = field
        #: Seconds to wait before another try, if the broker knows.
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed a little later. It may have taken effect already."""
        return self.retry_after is not None or self.code in _TEMPORARY or (not self.reason and self.code in _BROKEN)

    @property
    def _passing(self) -> bool:
        """Whether this package tries again by itself. A full backlog is left to the caller."""
        return self.retryable and self.retry_after is None

    @classmethod
    def _of_rpc(cls, error: grpc.RpcError, address: str = "") -> HowdahError:
        code, text = error.code(), error.details() or error.code().name
        reason, field, retry_after = _details(error.trailing_metadata() or ())
        if not reason:
            if code in _BROKEN:
                code, text = next(((code, said) for seen, said, code in _CAUSES if seen in text), (code, text))
            # It is about the connection, not an answer of the broker.
            text = f"{address}: {text}" if address else text
        return cls(text, code, reason=reason, field=field, retry_after=retry_after)

    @classmethod
    def _of_request(cls, error: RequestError) -> HowdahError:
        after = error.retry_after.ToTimedelta().total_seconds() if error.HasField("retry_after") else None
        code = _BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN)
        return cls(error.message, code, reason=error.reason, field=error.field, retry_after=after)


class LeaseLost(HowdahError):
    """The worker does not hold the job any more: another one may be running it."""

    def __init__(self, job_id: int) -> None:
        text = f"the lease of job {job_id} is lost"
        super().__init__(text, grpc.StatusCode.FAILED_PRECONDITION, reason="LEASE_LOST")


class Stopped(HowdahError):
    """The producer or worker was stopped before the answer came."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is stopped", grpc.StatusCode.CANCELLED, reason="STOPPED")


def broken(message: str) -> HowdahError:
    """A stream that ended without a reason."""
    return HowdahError(message, grpc.StatusCode.UNAVAILABLE)


def deadline(what: str, after: float) -> HowdahError:
    return HowdahError(f"{what}: no answer within {after:g} s", grpc.StatusCode.DEADLINE_EXCEEDED)


def invalid(field: str, message: str) -> HowdahError:
    return HowdahError(message, grpc.StatusCode.INVALID_ARGUMENT, field=field)


def _details(metadata: Iterable[Any]) -> Tuple[str, str, Optional[float]]:
    """Reason, field and retry delay in the metadata of an error."""
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
