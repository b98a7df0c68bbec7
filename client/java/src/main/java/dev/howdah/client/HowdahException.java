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
 * An error of a call, a pipeline or a worker. {@link #code()}, {@link #reason()} and {@link #field()} are for programs,
 * the message is for people: it names the field, its value, and what to do.
 */
public final class HowdahException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Set<Status.Code> PASSING =
        Set.of(Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.ABORTED);
    private static final Set<Status.Code> REFUSING = Set.of(Status.Code.INVALID_ARGUMENT,
        Status.Code.FAILED_PRECONDITION, Status.Code.OUT_OF_RANGE, Status.Code.PERMISSION_DENIED,
        Status.Code.UNAUTHENTICATED, Status.Code.UNIMPLEMENTED);

    /** The code of gRPC. */
    private final Status.Code code;
    /** A constant, or empty. */
    private final String reason;
    /** The invalid field, or empty. */
    private final String field;
    /** When to try again, or null. */
    private final Duration retryAfter;
    /** The connection broke: the code is a guess. */
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

    static HowdahException broken(String message) {
        return new HowdahException(Status.Code.UNAVAILABLE, message, "", "", null, true, null);
    }

    static HowdahException late(String what, Duration after) {
        return new HowdahException(Status.Code.DEADLINE_EXCEEDED, "", "", what + ": no answer within " + after);
    }

    static HowdahException of(RequestError error) {
        var after = error.hasRetryAfter() ? NewJob.read(error.getRetryAfter()) : null;
        var code = Status.fromCodeValue(error.getCode()).getCode();
        return new HowdahException(code, error.getMessage(), error.getReason(), error.getField(), after, false, null);
    }

    /** Reads the error of a call to {@code address}. */
    static HowdahException of(Throwable thrown, String address) {
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
                // A detail that cannot be read says nothing; the code and the text are there.
            }
        }
        var text = new StringBuilder(status.getDescription() == null ? status.getCode().name()
            : status.getDescription());
        boolean refused = false;
        for (var cause = status.getCause(); cause != null; cause = cause.getCause()) {
            refused |= cause instanceof SSLException;
            text.append(": ").append(cause.getMessage());
        }
        // The broker gives a reason with each error; without one, the error comes from the connection.
        boolean broken = reason.isEmpty() && !refused && Set.of(Status.Code.UNAVAILABLE, Status.Code.INTERNAL,
            Status.Code.UNKNOWN).contains(status.getCode());
        var code = refused ? Status.Code.FAILED_PRECONDITION : status.getCode();
        var message = broken || refused ? address + ": " + text : text.toString();
        return new HowdahException(code, message, reason, field, after, broken, thrown);
    }

    /** The error of one submission in a request, as if it had been a request of its own. */
    HowdahException rebased(String old, String own) {
        return new HowdahException(code, getMessage().replace(old, own), reason, field.replace(old, own), retryAfter,
            false, this);
    }

    /** {@return the code of gRPC that fits best} */
    public Status.Code code() {
        return code;
    }

    /**
     * {@return the broker's constant for this error, such as {@code INVALID_FIELD}; empty if it is not from a broker}
     */
    public String reason() {
        return reason;
    }

    /** {@return the invalid field, such as {@code jobs[3].task_type}; empty if none is} */
    public String field() {
        return field;
    }

    /** {@return how long to wait before the next try, if the broker knows: a backlog is full} */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /** {@return whether the same call may succeed later. Repeat an enqueue with the same request key} */
    public boolean isRetryable() {
        return broken || retryAfter != null || PASSING.contains(code);
    }

    /** Whether this library tries again: not for a full backlog, which the producer should know about. */
    boolean isPassing() {
        return isRetryable() && retryAfter == null;
    }

    /** Whether the broker refuses the caller or the call, so that the same again would end the same way. */
    boolean isRefusal() {
        return !broken && REFUSING.contains(code);
    }
}
