package dev.howdah.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.howdah.v1.RequestError;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLException;

/**
 * An error of a call, a producer or a worker. Programs use {@link #code()}, {@link #reason()} and {@link #field()}. The
 * message is for humans: the field, its value, and what to do.
 */
public final class HowdahException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Set<Status.Code> TRANSIENT =
        Set.of(Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.ABORTED);
    private static final Set<Status.Code> REFUSALS = Set.of(Status.Code.INVALID_ARGUMENT,
        Status.Code.FAILED_PRECONDITION, Status.Code.OUT_OF_RANGE, Status.Code.PERMISSION_DENIED,
        Status.Code.UNAUTHENTICATED, Status.Code.UNIMPLEMENTED);

    /**
     * Value of {@code reason} if a proxy refuses a request because of its size. No part of the request has reached a
     * broker.
     */
    private static final String TOO_LARGE = "REQUEST_TOO_LARGE";

    /** The gRPC code. */
    private final Status.Code code;
    /** Machine-readable reason, or empty. */
    private final String reason;
    /** Path of the invalid field, such as {@code jobs[3].task_type}; or empty. */
    private final String field;
    /**
     * Delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded; otherwise null.
     */
    private final Duration retryAfter;
    /** Whether the connection broke. Then {@code code} is a guess, and the call may have taken effect or not. */
    private final boolean broken;

    private HowdahException(Status.Code code, String message, String reason, String field, Duration retryAfter,
            boolean broken, Throwable cause) {
        super(message, cause);
        this.code = code;
        this.reason = reason;
        this.field = field;
        this.retryAfter = retryAfter;
        this.broken = broken;
    }

    HowdahException(Status.Code code, String reason, String field, String message) {
        this(code, message, reason, field, null, false, null);
    }

    static HowdahException invalid(String field, String message) {
        return new HowdahException(Status.Code.INVALID_ARGUMENT, "", field, field + ": " + message);
    }

    static void checkLeast(String field, long value, long least) {
        if (value < least) {
            throw invalid(field, value + " is less than " + least);
        }
    }

    static Duration notNegative(String field, Duration value) {
        if (value.isNegative()) {
            throw invalid(field, value + " is negative");
        }
        return value;
    }

    static HowdahException broken(String message) {
        return new HowdahException(Status.Code.UNAVAILABLE, message, "", "", null, true, null);
    }

    static HowdahException timedOut(String operation, Duration timeout) {
        return new HowdahException(Status.Code.DEADLINE_EXCEEDED, "", "", operation + ": no answer within " + timeout);
    }

    static HowdahException from(RequestError error) {
        var after = error.hasRetryAfter() ? NewJob.read(error.getRetryAfter()) : null;
        var code = Status.fromCodeValue(error.getCode()).getCode();
        return new HowdahException(code, error.getMessage(), error.getReason(), error.getField(), after, false, null);
    }

    /** Converts the error of a call to the broker at {@code address}. */
    static HowdahException from(Throwable thrown, String address) {
        while ((thrown instanceof CompletionException || thrown instanceof ExecutionException)
            && thrown.getCause() != null) {
            thrown = thrown.getCause();
        }
        if (thrown instanceof HowdahException known) {
            return known;
        }
        if (thrown instanceof InterruptedException) {
            Thread.currentThread().interrupt();
            return new HowdahException(Status.Code.CANCELLED, "", "", "interrupted");
        } else if (thrown instanceof CancellationException) {
            return new HowdahException(Status.Code.CANCELLED, "", "", "the worker has ended");
        } else if (thrown instanceof TimeoutException) {
            return new HowdahException(Status.Code.DEADLINE_EXCEEDED, "", "", address + ": no answer in time");
        }
        var status = Status.fromThrowable(thrown);
        String reason = "", field = "";
        Duration after = null;
        var details = StatusProto.fromThrowable(thrown);
        for (Any detail : details == null ? List.<Any>of() : details.getDetailsList()) {
            try {
                if (detail.is(ErrorInfo.class)) {
                    reason = detail.unpack(ErrorInfo.class).getReason();
                } else if (detail.is(BadRequest.class)) {
                    var violations = detail.unpack(BadRequest.class).getFieldViolationsList();
                    field = violations.isEmpty() ? "" : violations.get(0).getField();
                } else if (detail.is(RetryInfo.class)) {
                    after = NewJob.read(detail.unpack(RetryInfo.class).getRetryDelay());
                }
            } catch (InvalidProtocolBufferException ignored) {
                // An error detail that does not parse is ignored, because the code and the message suffice.
            }
        }
        var text = new StringBuilder(status.getDescription() == null ? status.getCode().name()
            : status.getDescription());
        boolean refused = false;
        for (var cause = status.getCause(); cause != null; cause = cause.getCause()) {
            refused |= cause instanceof SSLException;
            text.append(": ").append(cause.getMessage());
        }
        if (reason.isEmpty() && text.indexOf("HTTP status code 413") >= 0) {
            return new HowdahException(Status.Code.RESOURCE_EXHAUSTED, address + ": a proxy between client and broker "
                + "refuses a request of this size (HTTP 413): raise the proxy's limit (nginx: client_max_body_size), "
                + "or send less at once", TOO_LARGE, "", null, false, thrown);
        }
        // Each error of the broker has a reason. An error without a reason comes from the connection.
        boolean broken = reason.isEmpty() && !refused && Set.of(Status.Code.UNAVAILABLE, Status.Code.INTERNAL,
            Status.Code.UNKNOWN).contains(status.getCode());
        var code = refused ? Status.Code.FAILED_PRECONDITION : status.getCode();
        var message = broken || refused ? address + ": " + text : text.toString();
        return new HowdahException(code, message, reason, field, after, broken, thrown);
    }

    /** Replaces the job index in the error's field and message, as if the submission were a separate request. */
    HowdahException rebased(String oldField, String newField) {
        return new HowdahException(code, getMessage().replace(oldField, newField), reason, field.replace(oldField, newField), retryAfter,
            false, this);
    }

    /** {@return the gRPC code of the error. The client chooses it for errors that are not from a broker} */
    public Status.Code code() {
        return code;
    }

    /**
     * {@return the machine-readable reason, such as {@code INVALID_FIELD}; {@code REQUEST_TOO_LARGE} if a proxy refuses
     *     the size of a request; empty if the error comes from neither the broker nor such a proxy}
     */
    public String reason() {
        return reason;
    }

    /**
     * {@return the path of the invalid field, such as {@code jobs[3].task_type}; empty if the error is not about a
     * field}
     */
    public String field() {
        return field;
    }

    /** {@return the delay before a retry, which the broker sends if a backlog is full or a rate limit is exceeded} */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /** {@return whether the same call may succeed later. Repeat an enqueue with the same request key} */
    public boolean isRetryable() {
        return broken || retryAfter != null || TRANSIENT.contains(code);
    }

    /**
     * Whether this library retries the failed call automatically. False for a full backlog, which the producer should
     * handle.
     */
    boolean isTransient() {
        return isRetryable() && retryAfter == null;
    }

    boolean isTooLarge() { return reason.equals(TOO_LARGE); }

    /** Whether the broker refuses the caller or the request, so that a new stream would fail with the same error. */
    boolean isRefusal() {
        return !broken && REFUSALS.contains(code);
    }
}
