package dev.howdah.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Parser;
import dev.howdah.v1.Ack;
import dev.howdah.v1.CancelReason;
import dev.howdah.v1.Extension;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.Nack;
import dev.howdah.v1.ProgressReport;
import dev.howdah.v1.Release;
import dev.howdah.v1.Snooze;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.System.Logger.Level;
import java.lang.System.Logger;
import java.net.URI;
import java.nio.channels.ClosedByInterruptException;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;

/** One attempt of one job, as its handler gets it. All methods may be called from any thread. */
public final class Job {
    private static final Logger LOG = System.getLogger("dev.howdah.client.Worker");
    /** The longest error that is sent. The broker shortens it to 16 KiB, and marks that. */
    private static final int LONGEST_ERROR = 32_768;
    /** What no bytes are, where a value of JSON is asked for. */
    private static final ByteString NULL = ByteString.copyFromUtf8("null");

    private final LeasedJob leased;
    private final JsonMapper json;
    private final Consumer<ProgressReport> report;
    private final Consumer<Extension> extend;
    private final CompletableFuture<CancelReason> cancelled = new CompletableFuture<>();
    /** Whoever is told how the attempt ends. */
    private final List<Attempt> attempts = new CopyOnWriteArrayList<>();
    /** Where the worker is connected; null without a broker. */
    volatile URI broker;
    /** When the handler has ended, or its outcome was decided; 0: not yet. */
    volatile long endedAt;
    private Thread thread;

    /** What is told how an attempt ends. */
    interface Attempt {
        /** The handler has ended; thrown is null if it has returned. */
        void ended(dev.howdah.v1.Outcome outcome, Throwable thrown);

        /** The broker has confirmed the outcome, after so many nanoseconds; or an error: it had no effect. */
        void settled(dev.howdah.v1.Outcome outcome, long took, HowdahException error);
    }

    Job(LeasedJob leased, JsonMapper json, Consumer<ProgressReport> report, Consumer<Extension> extend) {
        this.leased = leased;
        this.json = json;
        this.report = report;
        this.extend = extend;
    }

    /** {@return the job's id, unique in the database} */
    public long id() { return leased.getId(); }

    /** {@return the task type that the worker subscribed to} */
    public String taskType() { return leased.getTaskType(); }

    /** {@return the number of this attempt, from 1} */
    public int attempt() { return leased.getAttempt(); }

    /** {@return the number of attempts after which the job is dead} */
    public int maxAttempts() { return leased.getMaxAttempts(); }

    /** {@return the headers} */
    public Map<String, String> headers() { return leased.getHeadersMap(); }

    /** {@return the tags, each once, in the order of the enqueue} */
    public List<String> tags() { return leased.getTagsList(); }

    /** {@return when the attempt times out unless it is extended, by the database's clock} */
    public Optional<Instant> deadline() {
        return leased.hasDeadline() ? Optional.of(NewJob.read(leased.getDeadline())) : Optional.empty();
    }

    /** {@return the message of the protocol, with everything else. Its token lets SQL complete the job} */
    public LeasedJob message() { return leased; }

    /**
     * {@return the payload as a value of a type}
     *
     * @param <T> the type
     * @param type {@code byte[]}, {@link ByteString} and protobuf messages are taken as they are, all others from JSON; an
     *     empty payload is JSON's null
     * @throws IllegalArgumentException if it is no such value: then the attempt fails for good, because it never will
     *     be
     */
    public <T> T payload(Class<T> type) { return decode(leased.getPayload(), type, json); }

    /**
     * {@return the checkpoint that an earlier attempt stored}
     *
     * @param <T> its type
     * @param type as for {@link #payload}
     */
    public <T> Optional<T> checkpoint(Class<T> type) {
        return leased.getCheckpoint().isEmpty() ? Optional.empty()
            : Optional.of(decode(leased.getCheckpoint(), type, json));
    }

    static <T> T decode(ByteString bytes, Class<T> type, JsonMapper json) {
        try {
            if (type == byte[].class) {
                return type.cast(bytes.toByteArray());
            } else if (type == ByteString.class) {
                return type.cast(bytes);
            } else if (MessageLite.class.isAssignableFrom(type)) {
                return type.cast(((Parser<?>) type.getMethod("parser").invoke(null)).parseFrom(bytes));
            }
            return json.readValue((bytes.isEmpty() ? NULL : bytes).newInput(), type);
        } catch (JacksonException | InvalidProtocolBufferException | ReflectiveOperationException error) {
            throw new IllegalArgumentException("not a " + type.getName() + ": " + error.getMessage(), error);
        }
    }

    /**
     * Stores state for the next attempt, which gets it however this one ends. When this returns, it is stored.
     *
     * @param state at most 64 KiB, in the forms that payloads have; null removes the checkpoint before
     */
    public void storeCheckpoint(Object state) {
        report(ProgressReport.newBuilder().setCheckpoint(NewJob.encode(state, json)).build());
    }

    /**
     * Reports how far the job has come.
     *
     * @param fraction 0 to 1
     * @param text for people: at most 1 KiB
     */
    public void progress(double fraction, String text) {
        report(ProgressReport.newBuilder().setFraction(fraction).setText(text).build());
    }

    /**
     * Reports progress and a checkpoint together.
     *
     * @param progress its id and token are filled in; unset fields stay
     */
    public void report(ProgressReport progress) { report.accept(progress); }

    /**
     * Moves the deadline.
     *
     * @param time from now: 1 ms to 30 days
     */
    public void extend(Duration time) { extend.accept(Extension.newBuilder().setDuration(NewJob.wire(time)).build()); }

    /**
     * {@return whether the handler should give up: the job was cancelled, its time is over, its lease is lost, or the
     * worker stops and has waited long enough} The thread of the handler is interrupted too. What it returns then is
     * dropped, unless the worker only stops.
     */
    public boolean isCancelled() { return cancelled.isDone(); }

    /** {@return why the broker has ended the lease; empty while it has not, also when the worker stops} */
    public Optional<CancelReason> cancelReason() {
        return Optional.ofNullable(cancelled.getNow(null))
            .filter(reason -> reason != CancelReason.CANCEL_REASON_UNSPECIFIED);
    }

    /**
     * Calls back when the handler should give up, at once if it should already.
     *
     * @param action short: it must not block
     */
    public void onCancel(Runnable action) { cancelled.thenRunAsync(action); }

    synchronized void cancel(CancelReason reason) {
        if (cancelled.complete(reason) && thread != null) {
            thread.interrupt();
        }
    }

    /** Between these, the thread may be interrupted. Afterwards it is clean, for its next job. */
    synchronized void enter(Thread handler) {
        thread = handler;
        if (handler == null) {
            Thread.interrupted();
        } else if (cancelled.isDone()) {
            handler.interrupt();
        }
    }

    /**
     * How an attempt ended. Handlers return one, or throw it: any other exception is an {@link Retry} with its text.
     */
    public sealed interface Outcome {
        /**
         * The attempt succeeded.
         *
         * @param result kept with the job
         * @param nextStage instead of the planned one, or empty
         */
        record Ok(Object result, String nextStage) implements Outcome {}

        /**
         * The attempt failed.
         *
         * @param error kept with the job
         * @param delay until the next one; null: by the retry policy
         */
        record Retry(String error, Duration delay) implements Outcome {}

        /**
         * The attempt failed for good.
         *
         * @param error kept with the job
         */
        record Fatal(String error) implements Outcome {}

        /**
         * The job runs again later, and the attempt does not count.
         *
         * @param delay until then
         */
        record Snooze(Duration delay) implements Outcome {}

        /** Another worker runs the job at once, and the attempt does not count. */
        record Release() implements Outcome {}

        /** {@return the attempt succeeded} */
        static Outcome ok() { return new Ok(null, ""); }

        /**
         * {@return the attempt succeeded}
         *
         * @param result kept with the job, in the forms of payloads: at most 1 MiB
         */
        static Outcome ok(Object result) { return new Ok(result, ""); }

        /**
         * {@return the attempt succeeded}
         *
         * @param stage the task type that the job goes on as
         * @param result its payload
         */
        static Outcome nextStage(String stage, Object result) { return new Ok(result, stage); }

        /**
         * {@return the attempt failed}
         *
         * @param error kept with the job
         */
        static Outcome retry(String error) { return new Retry(error, null); }

        /**
         * {@return the attempt failed}
         *
         * @param delay until the next one: at most a year
         * @param error kept with the job
         */
        static Outcome retryAfter(Duration delay, String error) { return new Retry(error, delay); }

        /**
         * {@return the attempt failed for good}
         *
         * @param error kept with the job
         */
        static Outcome fatal(String error) { return new Fatal(error); }

        /**
         * {@return the job runs again later}
         *
         * @param delay until then: at most a year
         */
        static Outcome snooze(Duration delay) { return new Snooze(delay); }

        /** {@return another worker runs the job at once} */
        static Outcome release() { return new Release(); }

        /** {@return this outcome as an exception, to throw where nothing can be returned} */
        default RuntimeException asException() { return new Thrown(this); }

        /**
         * {@return the outcome of a handler that threw}
         *
         * @param thrown by it
         */
        static Outcome of(Throwable thrown) {
            if (thrown instanceof Thrown known) {
                return known.outcome;
            }
            // The first line groups errors; the stack trace is for people.
            var text = new StringWriter();
            thrown.printStackTrace(new PrintWriter(text));
            return retry(text.toString());
        }
    }

    /** An outcome on its way out of a handler. */
    private static final class Thrown extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final transient Outcome outcome;

        Thrown(Outcome outcome) {
            super(outcome.toString(), null, false, false);
            this.outcome = outcome;
        }
    }

    /** Runs the handler. If the worker stops and interrupts it, another worker gets the job. */
    dev.howdah.v1.Outcome perform(Middleware.Handle handler) {
        Outcome outcome;
        Throwable cause = null;
        enter(Thread.currentThread());
        try {
            outcome = Objects.requireNonNull(handler.handle(this), "the handler returned null");
        } catch (Throwable thrown) {
            cause = thrown;
            boolean told = isCancelled() && isInterruption(thrown);
            outcome = told ? Outcome.release() : Outcome.of(thrown);
            if (!told && !(thrown instanceof Thrown)) {
                LOG.log(Level.WARNING, "job " + id() + " of " + taskType() + " failed, attempt " + attempt(), thrown);
            }
        } finally {
            enter(null);
        }
        dev.howdah.v1.Outcome wire;
        try {
            wire = wire(outcome).build();
        } catch (RuntimeException unwritable) {
            cause = unwritable;
            wire = wire(Outcome.fatal("the result cannot be written: " + unwritable)).build();
        }
        decided();
        ended(wire, cause);
        return wire;
    }

    private void ended(dev.howdah.v1.Outcome outcome, Throwable thrown) {
        tell(attempt -> attempt.ended(outcome, thrown));
    }

    void observe(Attempt attempt) { attempts.add(attempt); }

    boolean isObserved() { return !attempts.isEmpty(); }

    void tell(Consumer<Attempt> what) {
        try {
            attempts.forEach(what);
        } catch (RuntimeException error) {
            LOG.log(Level.WARNING, "telemetry of job " + id() + " failed", error);
        }
    }

    /** There is an outcome. Only the first call counts. */
    void decided() { endedAt = endedAt == 0 ? System.nanoTime() : endedAt; }

    private static boolean isInterruption(Throwable thrown) {
        return thrown != null && (thrown instanceof InterruptedException || thrown instanceof ClosedByInterruptException
            || isInterruption(thrown.getCause()));
    }

    dev.howdah.v1.Outcome.Builder wire(Outcome outcome) {
        var wire = dev.howdah.v1.Outcome.newBuilder().setId(id()).setToken(leased.getToken());
        if (outcome instanceof Outcome.Ok ok) {
            var ack = Ack.newBuilder().setResult(NewJob.encode(ok.result(), json)).setNextStage(ok.nextStage());
            return wire.setAck(ack);
        } else if (outcome instanceof Outcome.Retry retry) {
            var nack = Nack.newBuilder().setError(shortened(retry.error()));
            return wire.setNack(retry.delay() == null ? nack : nack.setRetryAfter(NewJob.wire(retry.delay())));
        } else if (outcome instanceof Outcome.Fatal fatal) {
            return wire.setNack(Nack.newBuilder().setError(shortened(fatal.error())).setNoRetry(true));
        } else if (outcome instanceof Outcome.Snooze snooze) {
            return wire.setSnooze(Snooze.newBuilder().setDelay(NewJob.wire(snooze.delay())));
        }
        return wire.setRelease(Release.getDefaultInstance());
    }

    private static String shortened(String text) {
        return text.length() > LONGEST_ERROR ? text.substring(0, LONGEST_ERROR) : text;
    }
}
