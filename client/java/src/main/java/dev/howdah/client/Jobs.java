package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.CancelReason;
import dev.howdah.v1.CancelledJob;
import dev.howdah.v1.Lease;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.Nack;
import dev.howdah.v1.Outcome;
import dev.howdah.v1.Release;
import dev.howdah.v1.SettleResult;
import dev.howdah.v1.SettleStatus;
import dev.howdah.v1.Window;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * The jobs of a session: those that run or wait for a slot, and outcomes that are not confirmed. The session's lock
 * guards it.
 */
final class Jobs {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Worker");

    private enum State { QUEUED, RUNNING, OVER, ENDED }

    record Key(long id, long token) {}

    /**
     * A job in this worker, until its outcome is confirmed. It may come again while an older handler of it still runs.
     */
    static final class Held {
        final Key key;
        final Job job;
        /** When its handler has ended. */
        Outcome outcome;
        /** The message that the outcome went with on this stream. */
        Stream.Batch sentIn;
        private State state = State.QUEUED;
        private boolean refused;

        private Held(Key key, Job job) {
            this.key = key;
            this.job = job;
        }

        private boolean isLive() { return state == State.QUEUED || state == State.RUNNING; }

        void fail(String error) { outcome = outcome.toBuilder().setNack(Nack.newBuilder().setError(error)).build(); }
    }

    /** An extension or a progress report, and the handler that waits for the answer. */
    static final class Ask {
        final Key key;
        final Message message;
        final CompletableFuture<Void> answer = new CompletableFuture<>();
        /** Where it waits for its answer; on another stream it is sent again. */
        Stream sentOn;

        private Ask(Key key, Message message) {
            this.key = key;
            this.message = message;
        }
    }

    /** The handlers of a type that run, and the jobs that wait for one of them to end. */
    private static final class Slots {
        private final Worker.Type type;
        private final Deque<Held> queue = new ArrayDeque<>();
        private int limit;
        private int window;
        private int running;

        private Slots(Worker.Type type) {
            this.type = type;
            limit = type.concurrency();
            window = type.window();
        }
    }

    final Deque<Held> unsent = new ArrayDeque<>();
    final List<Ask> asks = new ArrayList<>();
    private final Session session;
    private final Worker.Builder config;
    private final ExecutorService executor;
    private final ScheduledExecutorService timer;
    private final Map<String, Slots> slots = new HashMap<>();
    private final Map<Key, Held> held = new HashMap<>();
    private final Connection.Backoff again = new Connection.Backoff();
    private long received, succeeded, failed, snoozed, released, lost, cancelled, taken;

    Jobs(Session session, Worker.Builder config, ExecutorService executor) {
        this.session = session;
        this.config = config;
        this.executor = executor;
        timer = config.client.connection.timer;
        config.types().forEach((name, type) -> slots.put(name, new Slots(type)));
    }

    boolean isEmpty() { return held.isEmpty(); }

    /** How many handlers may run at once. */
    long slots() { return slots.values().stream().mapToLong(slot -> slot.limit).sum(); }

    /** Whether no handler runs. */
    boolean isIdle() {
        return held.values().stream().noneMatch(job -> job.state == State.RUNNING || job.state == State.OVER);
    }

    boolean isFull() { return taken >= config.maxJobs; }

    List<Window> windows() { return slots.values().stream().map(this::window).toList(); }

    private Window window(Slots slot) {
        return Window.newBuilder().setTaskType(slot.type.name()).setBytes(config.windowBytes)
            .setJobs((int) Math.min(slot.window, config.maxJobs - taken)).build();
    }

    Window resize(String type, int jobs) {
        var slot = slots.get(type);
        slot.limit = slot.window = jobs;
        fill(slot);
        return window(slot);
    }

    /** The leases to name when resuming, each job once: of two leases, the one whose handler runs. */
    Collection<Lease> leases() {
        var leases = new HashMap<Long, Lease>();
        held.values().stream().filter(job -> job.state != State.OVER).forEach(job -> leases.merge(job.key.id,
            Lease.newBuilder().setId(job.key.id).setToken(job.key.token).build(), (one, two) -> job.isLive() ? two
                : one));
        return leases.values();
    }

    /** A stream has started, and the session has these leases. */
    void resume(List<Lease> leases) {
        var kept = leases.stream().map(lease -> new Key(lease.getId(), lease.getToken())).collect(Collectors.toSet());
        var gone = held.values().stream().filter(job -> job.isLive() && !kept.contains(job.key)).toList();
        gone.forEach(job -> end(job, CancelReason.CANCEL_REASON_LEASE_LOST));
        // They may have been stored before the stream broke; then the answer is OK again.
        unsent.clear();
        held.values().stream().filter(job -> job.state == State.ENDED).forEach(unsent::add);
    }

    void releaseQueued() { held.values().stream().filter(job -> job.state == State.QUEUED).forEach(this::release); }

    /** Gives up what still runs: the handlers are not waited for any more. */
    void releaseAll() {
        held.values().removeIf(job -> job.state == State.OVER);
        held.values().stream().filter(Held::isLive).forEach(this::release);
    }

    Worker.Report report(long reconnects) {
        long unconfirmed = held.values().stream().filter(job -> job.state == State.ENDED).count();
        return new Worker.Report(received, succeeded, failed, snoozed, released, lost, cancelled, unconfirmed,
            reconnects);
    }

    void receive(List<LeasedJob> jobs) {
        for (var leased : jobs) {
            received++;
            var key = new Key(leased.getId(), leased.getToken());
            var job = new Held(key, new Job(leased, config.client.options.json,
                report -> ask(key, report.toBuilder().setId(key.id).setToken(key.token).build()),
                extension -> ask(key, extension.toBuilder().setId(key.id).setToken(key.token).build())));
            job.job.broker = session.broker();
            var slot = slots.get(leased.getTaskType());
            if (held.putIfAbsent(job.key, job) != null) {
                LOG.log(Level.WARNING, "received job {0} twice with one token", leased.getId());
            } else if (slot == null || session.isStopping() || isFull()) {
                release(job);
            } else {
                taken++;
                slot.queue.add(job);
                fill(slot);
            }
        }
    }

    private void ask(Key key, Message message) {
        var ask = new Ask(key, message);
        try {
            if (!session.locked(() -> asks.add(ask))) {
                throw new CancellationException();
            }
            ask.answer.get(config.client.options.requestTimeout.toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException | TimeoutException | InterruptedException | CancellationException error) {
            ask.answer.cancel(false);
            throw HowdahException.of(error, session.address());
        }
    }

    void answered(Ask ask, SettleResult result) {
        if (result.getStatus() == SettleStatus.SETTLE_STATUS_UNAVAILABLE) {
            timer.schedule(() -> session.locked(() -> ask.sentOn = null), again.next(), TimeUnit.NANOSECONDS);
            return;
        }
        asks.remove(ask);
        switch (result.getStatus()) {
            case SETTLE_STATUS_OK -> ask.answer.complete(null);
            case SETTLE_STATUS_INVALID -> ask.answer.completeExceptionally(
                new HowdahException(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD", "", result.getMessage()));
            default -> ask.answer.completeExceptionally(new HowdahException(Status.Code.FAILED_PRECONDITION,
                "LEASE_LOST", "",
                "the lease of job " + result.getId() + " is lost"));
        }
    }

    /** Starts waiting jobs while there are slots. */
    private void fill(Slots slot) {
        while (slot.running < slot.limit && !slot.queue.isEmpty()) {
            var next = slot.queue.poll();
            if (next.state == State.QUEUED) {
                next.state = State.RUNNING;
                slot.running++;
                try {
                    executor.execute(() -> perform(next, slot));
                } catch (RejectedExecutionException error) {
                    slot.running--;
                    release(next);
                }
            }
        }
    }

    private void perform(Held job, Slots slot) {
        var outcome = job.job.perform(slot.type.handler());
        session.locked(() -> {
            if (job.state == State.RUNNING) {
                end(job, outcome);
            } else if (job.state == State.OVER) {
                held.remove(job.key, job);
            }
            slot.running--;
            fill(slot);
        });
    }

    private void end(Held job, Outcome outcome) {
        job.job.decided();
        job.state = State.ENDED;
        job.outcome = outcome;
        unsent.add(job);
    }

    private void release(Held job) {
        var outcome = Outcome.newBuilder().setId(job.key.id).setToken(job.key.token);
        end(job, outcome.setRelease(Release.getDefaultInstance()).build());
    }

    /** The broker has ended a lease. An outcome on its way has its own answer. */
    private void end(Held job, CancelReason reason) {
        lost += reason == CancelReason.CANCEL_REASON_LEASE_LOST ? 1 : 0;
        cancelled += reason == CancelReason.CANCEL_REASON_LEASE_LOST ? 0 : 1;
        if (job.state == State.QUEUED) {
            held.remove(job.key);
        }
        job.state = State.OVER;
        job.job.cancel(reason);
    }

    void cancelled(CancelledJob notice) {
        var job = held.get(new Key(notice.getId(), notice.getToken()));
        LOG.log(Level.DEBUG, "the broker has ended the lease of job {0}: {1}", notice.getId(), notice.getReason());
        if (job != null && job.isLive()) {
            end(job, notice.getReason());
        }
    }

    void cancelAll(CancelReason reason) { held.values().forEach(job -> job.job.cancel(reason)); }

    Held unconfirmed(long id, long token) {
        var job = held.get(new Key(id, token));
        return job != null && job.state == State.ENDED ? job : null;
    }

    void settled(Held job, SettleResult result) {
        if (result.getStatus() == SettleStatus.SETTLE_STATUS_UNAVAILABLE) {
            var same = session.stream();
            timer.schedule(() -> session.locked(same, () -> unsent.add(job)), again.next(), TimeUnit.NANOSECONDS);
        } else if (result.getStatus() == SettleStatus.SETTLE_STATUS_INVALID && !job.refused) {
            LOG.log(Level.WARNING, "the broker refused the outcome of job {0}: {1}", job.key.id, result.getMessage());
            job.refused = true;
            job.fail("the outcome was refused: " + result.getMessage());
            unsent.add(job);
        } else {
            held.remove(job.key);
            tell(job, failure(job.key, result));
            if (result.getStatus() != SettleStatus.SETTLE_STATUS_OK) {
                lost++;
                LOG.log(Level.WARNING, "the lease of job {0} was lost before its outcome arrived", job.key.id);
                return;
            }
            again.reset();
            session.stored();
            switch (job.outcome.getOutcomeCase()) {
                case ACK -> succeeded++;
                case NACK -> failed++;
                case SNOOZE -> snoozed++;
                default -> released++;
            }
        }
    }

    private static HowdahException failure(Key key, SettleResult result) {
        return switch (result.getStatus()) {
            case SETTLE_STATUS_OK -> null;
            case SETTLE_STATUS_INVALID -> new HowdahException(Status.Code.INVALID_ARGUMENT, "INVALID", "",
                result.getMessage());
            default -> new HowdahException(Status.Code.FAILED_PRECONDITION, "LEASE_LOST", "",
                "the lease of job " + key.id + " is lost");
        };
    }

    /** The worker ends: no more answers will come. */
    void giveUp() {
        held.values().stream().filter(job -> job.state == State.ENDED).forEach(job -> tell(job,
            new HowdahException(Status.Code.CANCELLED, "UNCONFIRMED", "",
                "the worker ended before the broker confirmed the outcome of job " + job.key.id)));
    }

    private void tell(Held job, HowdahException error) {
        if (job.job.isObserved()) {
            var outcome = job.outcome;
            long took = System.nanoTime() - job.job.endedAt;
            job.job.broker = session.broker();
            session.later(() -> job.job.tell(attempt -> attempt.settled(outcome, took, error)));
        }
    }
}
