package dev.howdah.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Parser;
import dev.howdah.v1.Ack;
import dev.howdah.v1.CancelReason;
import dev.howdah.v1.DependencyResult;
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
import java.util.function.IntFunction;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;

/** One attempt of one job, as its handler receives it. All methods may be called from any thread. */
public final class Job {
    private static final Logger LOG = System.getLogger("dev.howdah.client.Worker");
    /**
     * Maximum length of an error text that the client sends. The broker truncates the text to 16 KiB and marks it as
     * truncated.
     */
    private static final int LONGEST_ERROR = 32_768;
    /** The JSON value of an empty payload. */
    private static final ByteString NULL = ByteString.copyFromUtf8("null");

    private final LeasedJob leased;
    private final JsonMapper json;
    private final Consumer<ProgressReport> report;
    private final Consumer<Extension> extend;
    /** Gets a page of results, without those of the first dependencies. */
    private final IntFunction<List<DependencyResult>> pages;
    private final CompletableFuture<CancelReason> cancelled = new CompletableFuture<>();
    /** Observers of the attempt, which record its telemetry. */
    private final List<AttemptObserver> observers = new CopyOnWriteArrayList<>();
    /** Address of the broker that sent the job; null without a broker. */
    volatile URI broker;
    /** Time at which the outcome was decided, usually at the end of the handler; 0 before. */
    volatile long endedAt;
    private Thread thread;

    /** An observer of an attempt, which records its telemetry. */
    interface AttemptObserver {
        /** Called when the handler has ended; {@code thrown} is null if it has returned. */
        void ended(dev.howdah.v1.Outcome outcome, Throwable thrown);

        /**
         * Called when the broker has confirmed the outcome, {@code nanos} nanoseconds after it was decided. If the
         * outcome had no effect, {@code error} is the reason; otherwise it is null.
         */
        void settled(dev.howdah.v1.Outcome outcome, long nanos, HowdahException error);
    }

    Job(LeasedJob leased, JsonMapper json, Consumer<ProgressReport> report, Consumer<Extension> extend,
            IntFunction<List<DependencyResult>> pages) {
        this.leased = leased;
        this.json = json;
        this.report = report;
        this.extend = extend;
        this.pages = pages;
    }

    /** {@return the job's id, unique in the database} */
    public long id() { return leased.getId(); }

    /** {@return the task type to which the worker subscribed} */
    public String taskType() { return leased.getTaskType(); }

    /** {@return the number of this attempt, from 1} */
    public int attempt() { return leased.getAttempt(); }

    /** {@return the maximum number of attempts, after which the job is dead} */
    public int maxAttempts() { return leased.getMaxAttempts(); }

    /** {@return the headers} */
    public Map<String, String> headers() { return leased.getHeadersMap(); }

    /** {@return the tags without duplicates, in the order of the enqueue} */
    public List<String> tags() { return leased.getTagsList(); }

    /** {@return the time at which the attempt times out unless it is extended, by the database's clock; may be empty} */
    public Optional<Instant> deadline() {
        return leased.hasDeadline() ? Optional.of(NewJob.read(leased.getDeadline())) : Optional.empty();
    }

    /** {@return the protocol message, with all fields. The SQL function howdah.complete takes its id and token} */
    public LeasedJob message() { return leased; }

    /**
     * {@return the payload as a value of a type}
     *
     * @param <T> the type
     * @param type {@code byte[]}, {@link ByteString} or a class of protobuf messages. For any other type, the payload is
     *     parsed as JSON, and an empty payload is {@code null}
     * @throws IllegalArgumentException if the payload does not parse. If the worker parses the payload for the handler,
     *     the job is then dead at once, because a retry could not succeed
     */
    public <T> T payload(Class<T> type) { return decode(leased.getPayload(), type, json); }

    /**
     * {@return the checkpoint that an earlier attempt stored}
     *
     * @param <T> type of the checkpoint
     * @param type type of the checkpoint, as for {@link #payload}
     */
    public <T> Optional<T> checkpoint(Class<T> type) {
        return leased.getCheckpoint().isEmpty() ? Optional.empty()
            : Optional.of(decode(leased.getCheckpoint(), type, json));
    }

    /**
     * {@return the jobs that this job ran after, with their results, in order: those of {@code after}, then those of
     * {@code afterLocal}} With {@code DEPENDENCY_FAILURE_RUN}, look at the state: a dependency may have failed. A result
     * is unknown ({@code missing}) if the database no longer contains the dependency. The stream is lazy: it gets
     * results that did not come with the job from the broker, page by page, and then throws {@link HowdahException} if
     * that fails. {@link #result} decodes a result.
     */
    public Stream<DependencyResult> results() {
        var sent = leased.getAfterList().stream().takeWhile(result -> !result.getTruncated()).toList();
        return StreamSupport.stream(new Results(sent, leased.getDependencyCount(), pages), false);
    }

    /**
     * {@return the result of a dependency as a value of a type}
     *
     * @param <T> the type
     * @param dependency a dependency of {@link #results}
     * @param type the type, as for {@link #payload}
     */
    public <T> T result(DependencyResult dependency, Class<T> type) { return decode(dependency.getResult(), type, json); }

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
            throw new IllegalArgumentException("not a " + type.getName() + ": " + reason(error), error);
        }
    }

    /** Returns why a value does not parse: of Jackson's text, the reason and the path, without the hidden source. */
    private static String reason(Exception error) {
        if (!(error instanceof JacksonException refused)) {
            return Objects.requireNonNullElse(error.getMessage(), error.toString());
        }
        var path = refused.getPathReference();
        return refused.getOriginalMessage() + (path.isEmpty() ? "" : " at " + path);
    }

    /**
     * Stores a checkpoint with the job, replacing the previous one. The next attempt of the job gets it, however this
     * attempt ends. When this returns, the checkpoint is stored.
     *
     * @param state state of at most 64 KiB, encoded like a payload; null removes the stored checkpoint
     */
    public void storeCheckpoint(Object state) {
        report(ProgressReport.newBuilder().setCheckpoint(NewJob.encode(state, json)).build());
    }

    /**
     * Reports the progress of the job. {@code howdah job ID} shows it.
     *
     * @param fraction completed fraction, 0 to 1
     * @param text text for operators, at most 1 KiB
     */
    public void progress(double fraction, String text) {
        report(ProgressReport.newBuilder().setFraction(fraction).setText(text).build());
    }

    /**
     * Reports progress and a checkpoint together.
     *
     * @param progress the report. Its id and token are set; unset fields keep their values
     */
    public void report(ProgressReport progress) {
        Texts.check(progress, "");
        report.accept(progress);
    }

    /**
     * Sets the deadline of the attempt.
     *
     * @param time time from now, 1 ms to 30 days
     */
    public void extend(Duration time) { extend.accept(Extension.newBuilder().setDuration(NewJob.wire(time)).build()); }

    /**
     * {@return whether the handler should abandon the job: it was cancelled, its deadline passed, its lease was lost,
     * or the stop timeout of the worker passed} The thread of the handler is interrupted too. The handler's outcome
     * then has no effect, unless only the stop timeout has passed, or the broker has kept a lease that the worker
     * considers lost.
     */
    public boolean isCancelled() { return cancelled.isDone(); }

    /** {@return the reason why the broker ended the lease; empty while the lease exists, even when the worker stops} */
    public Optional<CancelReason> cancelReason() {
        return Optional.ofNullable(cancelled.getNow(null))
            .filter(reason -> reason != CancelReason.CANCEL_REASON_UNSPECIFIED);
    }

    /**
     * Calls an action when the handler should abandon the job. If it already should, calls it at once.
     *
     * @param action the action. It must not block
     */
    public void onCancel(Runnable action) { cancelled.thenRunAsync(action); }

    synchronized void cancel(CancelReason reason) {
        if (cancelled.complete(reason) && thread != null) {
            thread.interrupt();
        }
    }

    /**
     * Sets the handler's thread, which {@link #cancel} interrupts. A null thread prevents interrupts, and clears the
     * thread's interrupt flag.
     */
    synchronized void setInterruptible(Thread handler) {
        thread = handler;
        if (handler == null) {
            Thread.interrupted();
        } else if (cancelled.isDone()) {
            handler.interrupt();
        }
    }

    /**
     * The outcome of an attempt. Handlers return one, or throw it (see {@link #asException}). Any other exception is a
     * {@link Retry} with the text of the exception.
     */
    public sealed interface Outcome {
        /**
         * The attempt succeeded.
         *
         * @param result result to keep with the job
         * @param nextStage task type of the next stage, instead of the planned one; may be empty
         */
        record Ok(Object result, String nextStage) implements Outcome {}

        /**
         * The attempt failed, and the job is retried.
         *
         * @param error error to keep with the job
         * @param delay delay until the next attempt; null: set by the retry policy
         * @param details stack trace to keep with the job; may be empty
         * @param place method that failed; may be empty. Equal errors of different methods are in different error groups.
         */
        record Retry(String error, Duration delay, String details, String place) implements Outcome {
            /**
             * Creates the outcome.
             *
             * @param error error to keep with the job
             * @param delay delay until the next attempt; null: set by the retry policy
             * @param details stack trace to keep with the job; may be null
             * @param place method that failed; may be null
             */
            public Retry {
                details = Objects.requireNonNullElse(details, "");
                place = Objects.requireNonNullElse(place, "");
            }
        }

        /**
         * The attempt failed for good, and the job is not retried.
         *
         * @param error error to keep with the job
         */
        record Fatal(String error) implements Outcome {}

        /**
         * The job runs again later, and the attempt does not count.
         *
         * @param delay delay until the job runs again
         */
        record Snooze(Duration delay) implements Outcome {}

        /** Another worker runs the job at once, and the attempt does not count. */
        record Release() implements Outcome {}

        /** {@return a success without a result} */
        static Outcome ok() { return new Ok(null, ""); }

        /**
         * {@return a success}
         *
         * @param result result to keep with the job, at most 1 MiB, encoded like a payload
         */
        static Outcome ok(Object result) { return new Ok(result, ""); }

        /**
         * {@return a success after which the job continues in this stage instead of the planned one}
         *
         * @param stage task type of the next stage
         * @param result result of the attempt, by default the payload of the next stage
         */
        static Outcome nextStage(String stage, Object result) { return new Ok(result, stage); }

        /**
         * {@return a failure after which the job is retried by its retry policy}
         *
         * @param error error to keep with the job
         */
        static Outcome retry(String error) { return new Retry(error, null, "", ""); }

        /**
         * {@return a failure after which the job is retried after this delay}
         *
         * @param delay delay until the next attempt, at most a year
         * @param error error to keep with the job
         */
        static Outcome retryAfter(Duration delay, String error) { return new Retry(error, delay, "", ""); }

        /**
         * {@return a failure after which the job is not retried}
         *
         * @param error error to keep with the job
         */
        static Outcome fatal(String error) { return new Fatal(error); }

        /**
         * {@return an outcome with which the job runs again later, and the attempt does not count}
         *
         * @param delay delay until the job runs again, at most a year
         */
        static Outcome snooze(Duration delay) { return new Snooze(delay); }

        /** {@return an outcome with which another worker runs the job at once, and the attempt does not count} */
        static Outcome release() { return new Release(); }

        /** {@return this outcome as an exception, to throw where the handler cannot return it} */
        default RuntimeException asException() { return new Thrown(this); }

        /**
         * {@return the outcome of a handler that threw an exception}
         *
         * @param thrown the exception
         */
        static Outcome of(Throwable thrown) {
            if (thrown instanceof Thrown known) {
                return known.outcome;
            }
            var stack = new StringWriter();
            thrown.printStackTrace(new PrintWriter(stack));
            return new Retry(thrown.toString(), null, stack.toString(), place(thrown));
        }

        /** Returns the method that threw the innermost cause; empty if unknown. */
        private static String place(Throwable thrown) {
            // An exception can be its own cause in a circle.
            for (int depth = 0; thrown.getCause() != null && depth < 100; depth++) {
                thrown = thrown.getCause();
            }
            var frames = thrown.getStackTrace();
            return frames.length == 0 ? "" : frames[0].getClassName() + "." + frames[0].getMethodName();
        }
    }

    /** An outcome that a handler throws. */
    private static final class Thrown extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final transient Outcome outcome;

        Thrown(Outcome outcome) {
            super(outcome.toString(), null, false, false);
            this.outcome = outcome;
        }
    }

    /**
     * Runs the handler, and returns its outcome. If the stopping worker interrupts the handler, the outcome is a
     * release.
     */
    dev.howdah.v1.Outcome perform(Middleware.Handle handler) {
        Outcome outcome;
        Throwable cause = null;
        setInterruptible(Thread.currentThread());
        try {
            outcome = Objects.requireNonNull(handler.handle(this), "the handler returned null");
        } catch (Throwable thrown) {
            cause = thrown;
            boolean isInterrupted = isCancelled() && isInterruption(thrown);
            outcome = isInterrupted ? Outcome.release() : Outcome.of(thrown);
        } finally {
            setInterruptible(null);
        }
        dev.howdah.v1.Outcome wire;
        try {
            wire = wire(outcome).build();
            Texts.check(wire, "");
        } catch (RuntimeException error) {
            cause = error;
            wire = wire(Outcome.fatal("the result cannot be written: " + reason(error))).build();
        }
        if (wire.hasNack()) {
            logFailure(wire.getNack().getError(), cause instanceof Thrown ? null : cause, wire.getNack().getNoRetry());
        }
        markDecided();
        ended(wire, cause);
        return wire;
    }

    /**
     * Logs a failed attempt: as an error if the job is not retried or out of attempts, otherwise as a warning. Call it once
     * for each attempt: when the handler has ended, or when its outcome is replaced.
     */
    void logFailure(String error, Throwable thrown, boolean noRetry) {
        var level = noRetry || attempt() >= maxAttempts() ? Level.ERROR : Level.WARNING;
        LOG.log(level, "job " + id() + " of " + taskType() + " failed, attempt " + attempt() + ": " + error, thrown);
    }

    private void ended(dev.howdah.v1.Outcome outcome, Throwable thrown) {
        notifyObservers(observer -> observer.ended(outcome, thrown));
    }

    void observe(AttemptObserver observer) { observers.add(observer); }

    boolean isObserved() { return !observers.isEmpty(); }

    void notifyObservers(Consumer<AttemptObserver> call) {
        try {
            observers.forEach(call);
        } catch (RuntimeException error) {
            LOG.log(Level.WARNING, "telemetry of job " + id() + " failed", error);
        }
    }

    /** Records the time at which the outcome was decided. Only the first call has an effect. */
    void markDecided() { endedAt = endedAt == 0 ? System.nanoTime() : endedAt; }

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
            var nack = Nack.newBuilder().setError(shorten(retry.error())).setDetails(shorten(retry.details()))
                .setPlace(shorten(retry.place()));
            return wire.setNack(retry.delay() == null ? nack : nack.setRetryAfter(NewJob.wire(retry.delay())));
        } else if (outcome instanceof Outcome.Fatal fatal) {
            return wire.setNack(Nack.newBuilder().setError(shorten(fatal.error())).setNoRetry(true));
        } else if (outcome instanceof Outcome.Snooze snooze) {
            return wire.setSnooze(Snooze.newBuilder().setDelay(NewJob.wire(snooze.delay())));
        }
        return wire.setRelease(Release.getDefaultInstance());
    }

    /** Returns an error text that can be sent: truncated, and with U+FFFD instead of unpaired surrogates. */
    private static String shorten(String text) {
        return Texts.repaired(text.length() > LONGEST_ERROR ? text.substring(0, LONGEST_ERROR) : text);
    }
}
