package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.CancelReason;
import dev.howdah.v1.CancelledJob;
import dev.howdah.v1.DependencyResult;
import dev.howdah.v1.GetResultsRequest;
import dev.howdah.v1.Lease;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.Nack;
import dev.howdah.v1.Outcome;
import dev.howdah.v1.Release;
import dev.howdah.v1.SettleResult;
import dev.howdah.v1.SettleStatus;
import dev.howdah.v1.Window;
import dev.howdah.v1.WorkerServiceGrpc;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
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
 * The jobs that a worker holds: queued for a slot, running, or ended with an unconfirmed outcome. The session's lock
 * guards the object.
 */
final class Jobs {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Worker");

    /**
     * Maximum time that a job waits although its task type has a free slot, because other types use all slots of the
     * worker. Then the job is released.
     */
    private static final long SLOT_TIMEOUT = TimeUnit.SECONDS.toNanos(1);
    /** Time after the last such release for which the windows are exact. */
    private static final long EXACT_TIME = TimeUnit.SECONDS.toNanos(30);

    private enum State { QUEUED, RUNNING, LEASE_LOST, ENDED }

    record Key(long id, long token) {}

    /**
     * A job that the worker holds until its outcome is confirmed. The broker may deliver a job again while an earlier
     * handler of the same job still runs; each delivery has its own object.
     */
    static final class Held {
        final Key key;
        final Job job;
        /** The outcome; null until the handler has ended or the job is released. */
        Outcome outcome;
        /** The Settle message with which the outcome was sent; null if it was not sent on this stream. */
        Stream.Batch sentIn;
        private State state = State.QUEUED;
        /** The slots of the task type; null if the job was never queued for a slot. */
        private Slots slots;
        private final long receivedAt = System.nanoTime();
        private boolean refused;
        /** Whether the outcome is sent by {@code SettleJobs} instead of the stream. */
        boolean isUnary;

        private Held(Key key, Job job) {
            this.key = key;
            this.job = job;
        }

        private boolean isLive() { return state == State.QUEUED || state == State.RUNNING; }

        /** Replaces the outcome, which cannot be sent, by a failure. */
        void fail(String error, boolean isFinal) {
            job.logFailure(error, null, isFinal);
            var nack = Nack.newBuilder().setError(error).setNoRetry(isFinal);
            outcome = outcome.toBuilder().setNack(nack).build();
        }
    }

    /** An unanswered extension or progress report, and the future for which the handler waits. */
    static final class LeaseRequest {
        final Key key;
        final Message message;
        final CompletableFuture<Void> answer = new CompletableFuture<>();
        /**
         * The stream on which the request was sent; null if it was not sent. If that stream breaks, the request is
         * resent on the next one.
         */
        Stream sentOn;

        private LeaseRequest(Key key, Message message) {
            this.key = key;
            this.message = message;
        }
    }

    /** The slots of a task type for concurrent handlers, and the jobs that wait for a slot. */
    private static final class Slots {
        private final Worker.Type type;
        private final Deque<Held> queue = new ArrayDeque<>();
        private int limit;
        private int window;
        private int running;
        /** Number of jobs that run or wait for a slot and whose lease is not lost. */
        private int held;
        /** The window that was sent last on the stream. */
        private int sentWindow;

        private Slots(Worker.Type type) {
            this.type = type;
            limit = type.concurrency();
            window = type.window();
        }
    }

    final Deque<Held> unsent = new ArrayDeque<>();
    final List<LeaseRequest> leaseRequests = new ArrayList<>();
    /**
     * Set after a stream broke with many bytes of unanswered extensions and progress reports, which are then sent one
     * by one.
     */
    boolean oneByOne;
    private final UnarySettler unarySettler;
    private final Session session;
    private final Worker.Builder config;
    private final ExecutorService executor;
    private final ScheduledExecutorService timer;
    private final Map<String, Slots> slots = new HashMap<>();
    private final Map<Key, Held> held = new HashMap<>();
    private final Connection.Backoff retryBackoff = new Connection.Backoff();
    /** Number of running handlers, without ({@code running}) and with ({@code active}) the jobs that wait for a slot. */
    private int running, active;
    /**
     * Whether the windows have only the jobs that the worker holds and the free slots. Otherwise the window of a type
     * may be as large as all slots. Jobs that find no free slot wait, which saves messages while handlers are short.
     */
    private boolean exact;
    private long exactUntil;
    private long received, succeeded, failed, snoozed, released, lost, cancelled, taken;

    Jobs(Session session, Worker.Builder config, ExecutorService executor) {
        this.session = session;
        this.config = config;
        this.executor = executor;
        timer = config.client.connection.timer;
        unarySettler = new UnarySettler(session, this, config.client.connection);
        config.types().forEach((name, type) -> slots.put(name, new Slots(type)));
    }

    boolean isEmpty() { return held.isEmpty(); }

    /** Returns how many handlers may run at once. */
    long slots() {
        return Math.min(config.concurrency, slots.values().stream().mapToLong(slot -> slot.limit).sum());
    }

    /** Returns whether no handler runs. */
    boolean isIdle() {
        return held.values().stream().noneMatch(job -> job.state == State.RUNNING || job.state == State.LEASE_LOST);
    }

    boolean isFull() { return taken >= config.maxJobs; }

    List<Window> windows() { return slots.values().stream().map(this::window).toList(); }

    /** Returns a window that has changed since it was sent, or null. */
    Window nextWindow() {
        return slots.values().stream().filter(slot -> slot.sentWindow != windowJobs(slot)).findFirst()
            .map(this::window).orElse(null);
    }

    private Window window(Slots slot) {
        slot.sentWindow = windowJobs(slot);
        return Window.newBuilder().setTaskType(slot.type.name()).setBytes(config.windowBytes)
            .setJobs((int) Math.min(slot.sentWindow, config.maxJobs - taken)).build();
    }

    private int windowJobs(Slots slot) {
        return exact ? Math.min(slot.window, slot.held + Math.max(0, config.concurrency - active)) : slot.window;
    }

    void resize(String type, int jobs) {
        var slot = slots.get(type);
        if (slot == null) {
            throw HowdahException.invalid("taskType", "the worker has no handler of " + type);
        }
        slot.limit = slot.window = Math.min(jobs, config.concurrency);
        fill();
    }

    /**
     * Returns the leases to name in the Subscribe that resumes a session, one per job. If a job has two leases, the
     * lease of the queued or running delivery is named.
     */
    Collection<Lease> leases() {
        var leases = new HashMap<Long, Lease>();
        held.values().stream().filter(job -> job.state != State.LEASE_LOST).forEach(job -> leases.merge(job.key.id,
            Lease.newBuilder().setId(job.key.id).setToken(job.key.token).build(), (one, two) -> job.isLive() ? two
                : one));
        return leases.values();
    }

    /** Resumes the session on a new stream. The broker has kept these leases; jobs with other leases are cancelled. */
    void resume(List<Lease> leases) {
        var kept = leases.stream().map(lease -> new Key(lease.getId(), lease.getToken())).collect(Collectors.toSet());
        var missing = held.values().stream().filter(job -> job.isLive() && !kept.contains(job.key)).toList();
        missing.forEach(job -> end(job, CancelReason.CANCEL_REASON_LEASE_LOST));
        // Resends all outcomes. If the broker stored one before the stream broke, it answers OK again.
        unsent.clear();
        var ended = held.values().stream().filter(job -> job.state == State.ENDED && !job.isUnary).toList();
        long unanswered = ended.stream().filter(job -> job.sentIn != null)
            .mapToLong(job -> job.outcome.getSerializedSize()).sum();
        for (var job : ended) {
            job.isUnary = job.sentIn != null && unanswered > UnarySettler.THRESHOLD;
            job.sentIn = null;
            (job.isUnary ? unarySettler.waiting : unsent).add(job);
        }
        unarySettler.start();
        long requestBytes = leaseRequests.stream().filter(request -> request.sentOn != null)
            .mapToLong(request -> request.message.getSerializedSize()).sum();
        oneByOne = oneByOne && !leaseRequests.isEmpty() || requestBytes > UnarySettler.MAX_CALL_BYTES;
    }

    void releaseQueued() { held.values().stream().filter(job -> job.state == State.QUEUED).forEach(this::release); }

    /** Releases the jobs of handlers that still run. The worker no longer waits for these handlers. */
    void releaseAll() {
        held.values().removeIf(job -> job.state == State.LEASE_LOST);
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
                report -> sendLeaseRequest(key, report.toBuilder().setId(key.id).setToken(key.token).build()),
                extension -> sendLeaseRequest(key, extension.toBuilder().setId(key.id).setToken(key.token).build()),
                start -> results(key.id, start)));
            job.job.broker = session.brokerAddress();
            var slot = slots.get(leased.getTaskType());
            if (held.putIfAbsent(job.key, job) != null) {
                LOG.log(Level.WARNING, "received job {0} twice with the same token", leased.getId());
            } else if (slot == null || session.isStopping() || isFull()) {
                release(job);
            } else {
                taken++;
                job.slots = slot;
                slot.held++;
                active++;
                slot.queue.add(job);
                fill();
            }
        }
    }

    private List<DependencyResult> results(long id, int start) {
        var connection = config.client.connection;
        var request = GetResultsRequest.newBuilder().setId(id).setStart(start).build();
        try {
            return connection.call(connection.options.requestTimeout, Connection.ATTEMPT_TIMEOUT, false,
                channel -> WorkerServiceGrpc.newBlockingStub(channel).getResults(request)).getResultsList();
        } catch (RuntimeException thrown) {
            throw HowdahException.from(thrown, session.address());
        }
    }

    private void sendLeaseRequest(Key key, Message message) {
        var request = new LeaseRequest(key, message);
        try {
            if (!session.locked(() -> leaseRequests.add(request))) {
                throw new CancellationException();
            }
            request.answer.get(config.client.options.requestTimeout.toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException | TimeoutException | InterruptedException | CancellationException error) {
            request.answer.cancel(false);
            throw HowdahException.from(error, session.address());
        }
    }

    void handleLeaseResult(LeaseRequest request, SettleResult result) {
        if (result.getStatus() == SettleStatus.SETTLE_STATUS_UNAVAILABLE) {
            timer.schedule(() -> session.locked(() -> request.sentOn = null), retryBackoff.next(), TimeUnit.NANOSECONDS);
            return;
        }
        leaseRequests.remove(request);
        switch (result.getStatus()) {
            case SETTLE_STATUS_OK -> request.answer.complete(null);
            case SETTLE_STATUS_INVALID -> request.answer.completeExceptionally(
                new HowdahException(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD", "", result.getMessage()));
            default -> request.answer.completeExceptionally(new HowdahException(Status.Code.FAILED_PRECONDITION,
                "LEASE_LOST", "",
                "the lease of job " + result.getId() + " is lost"));
        }
    }

    /** Starts queued jobs while slots are free. The job that has waited longest starts first. */
    private void fill() {
        while (running < config.concurrency) {
            var first = slots.values().stream().filter(slot -> slot.running < slot.limit && !slot.queue.isEmpty())
                .min(Comparator.comparingLong(slot -> slot.queue.peek().receivedAt));
            if (first.isEmpty()) {
                return;
            }
            var next = first.get().queue.poll();
            if (next.state == State.QUEUED) {
                start(next);
            }
        }
    }

    private void start(Held job) {
        job.state = State.RUNNING;
        job.slots.running++;
        running++;
        try {
            executor.execute(() -> perform(job));
        } catch (RejectedExecutionException error) {
            leaveSlots(job);
            release(job);
        }
    }

    private void leaveSlots(Held job) {
        job.slots.running--;
        running--;
        active--;
    }

    /** Releases jobs that have waited too long though their task type has a free slot. Another worker may run them. */
    void tick() {
        exact &= !Session.due(exactUntil);
        for (var slot : slots.values()) {
            while (slot.running < slot.limit && !slot.queue.isEmpty()
                    && Session.due(slot.queue.peek().receivedAt + SLOT_TIMEOUT)) {
                var job = slot.queue.poll();
                if (job.state == State.QUEUED) {
                    release(job);
                    exact = true;
                    exactUntil = System.nanoTime() + EXACT_TIME;
                }
            }
        }
    }

    private void perform(Held job) {
        var outcome = job.job.perform(job.slots.type.handler());
        session.locked(() -> {
            if (job.state == State.RUNNING) {
                end(job, outcome);
            } else if (job.state == State.LEASE_LOST) {
                held.remove(job.key, job);
            }
            leaveSlots(job);
            fill();
        });
    }

    /** Records that a queued or running job leaves the window of its task type. */
    private void leaveWindow(Held job) {
        if (job.slots != null) {
            job.slots.held--;
            active -= job.state == State.QUEUED ? 1 : 0;
        }
    }

    private void end(Held job, Outcome outcome) {
        job.job.markDecided();
        leaveWindow(job);
        job.state = State.ENDED;
        job.outcome = outcome;
        unsent.add(job);
    }

    private void release(Held job) {
        var outcome = Outcome.newBuilder().setId(job.key.id).setToken(job.key.token);
        end(job, outcome.setRelease(Release.getDefaultInstance()).build());
    }

    /** Cancels a queued or running job, because its lease has ended. */
    private void end(Held job, CancelReason reason) {
        lost += reason == CancelReason.CANCEL_REASON_LEASE_LOST ? 1 : 0;
        cancelled += reason == CancelReason.CANCEL_REASON_LEASE_LOST ? 0 : 1;
        leaveWindow(job);
        if (job.state == State.QUEUED) {
            held.remove(job.key);
        }
        job.state = State.LEASE_LOST;
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

    void handleSettleResult(Held job, SettleResult result) {
        if (result.getStatus() == SettleStatus.SETTLE_STATUS_UNAVAILABLE) {
            var same = session.stream();
            timer.schedule(() -> session.locked(same, () -> unsent.add(job)), retryBackoff.next(), TimeUnit.NANOSECONDS);
        } else if (result.getStatus() == SettleStatus.SETTLE_STATUS_INVALID && !job.refused) {
            job.refused = true;
            job.fail("the broker refused the outcome: " + result.getMessage(), false);
            unsent.add(job);
        } else {
            held.remove(job.key);
            notifySettled(job, failure(job.key, result));
            if (result.getStatus() != SettleStatus.SETTLE_STATUS_OK) {
                lost++;
                job.job.logFailure("the lease was lost before the outcome arrived", null, false);
                return;
            }
            retryBackoff.reset();
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

    /** Tells the observers of unconfirmed outcomes that the worker ends without a confirmation. */
    void giveUp() {
        held.values().stream().filter(job -> job.state == State.ENDED).forEach(job -> notifySettled(job,
            new HowdahException(Status.Code.CANCELLED, "UNCONFIRMED", "",
                "the worker ended before the broker confirmed the outcome of job " + job.key.id)));
    }

    private void notifySettled(Held job, HowdahException error) {
        if (job.job.isObserved()) {
            var outcome = job.outcome;
            long nanos = System.nanoTime() - job.job.endedAt;
            job.job.broker = session.brokerAddress();
            session.afterUnlock(() -> job.job.notifyObservers(observer -> observer.settled(outcome, nanos, error)));
        }
    }
}
