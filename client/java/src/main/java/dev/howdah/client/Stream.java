package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.Drain;
import dev.howdah.v1.DrainReason;
import dev.howdah.v1.DrainRequest;
import dev.howdah.v1.Extend;
import dev.howdah.v1.Extension;
import dev.howdah.v1.Limits;
import dev.howdah.v1.Pong;
import dev.howdah.v1.Progress;
import dev.howdah.v1.ProgressReport;
import dev.howdah.v1.Settle;
import dev.howdah.v1.SettleResult;
import dev.howdah.v1.WorkRequest;
import dev.howdah.v1.WorkResponse;
import dev.howdah.v1.WorkerServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** One stream of a worker's session, on a separate connection. The session's lock guards the object. */
final class Stream implements ClientResponseObserver<WorkRequest, WorkResponse> {
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    /**
     * Timeout of the Welcome. Before the broker sends it, it looks up the leases of an earlier stream in the database.
     */
    private static final long WELCOME_TIMEOUT = 15 * SECOND;
    /**
     * Timeout of a Settle message without an answer, after which the stream counts as dead. A broker without Postgres
     * answers within 15 s.
     */
    private static final long SETTLE_TIMEOUT = 60 * SECOND;
    /** Time that a stopping worker waits for the broker's answer to its drain request. */
    private static final long DRAIN_TIMEOUT = 5 * SECOND;
    /** Time in which the broker must end a stream that the client has half-closed. */
    private static final long CLOSE_TIMEOUT = 2 * SECOND;
    /**
     * While at least this many Settle messages are unanswered, outcomes accumulate until they number a quarter of the
     * slots. The next message then takes all of them. So messages grow under load, and few slots are idle because their
     * outcomes wait.
     */
    private static final int EAGER_SETTLES = 4;
    /** While this many Settle messages are unanswered, no outcome is sent. */
    private static final int MAX_SETTLES = 16;
    /** Divisor: outcomes accumulate until they number a quarter of the slots. */
    private static final int SLOT_FRACTION = 4;
    /**
     * Maximum number of extensions or progress reports in a message. Even with the largest checkpoints, they fit into
     * one message.
     */
    private static final int MAX_LEASE_REQUESTS = 50;
    /** Bytes of a message that are reserved for its framing, because the sizes of outcomes do not include it. */
    private static final int RESERVED_BYTES = 1024;

    /** A Settle message with unanswered outcomes. */
    static final class Batch {
        private final long sentAt = System.nanoTime();
        private int unanswered;
    }

    private final Session session;
    private final Jobs jobs;
    private final ManagedChannel channel;
    private final Deque<WorkRequest.Builder> control = new ArrayDeque<>();
    private final Deque<Batch> batches = new ArrayDeque<>();
    private final CompletableFuture<Void> closed = new CompletableFuture<>();
    private ClientCallStreamObserver<WorkRequest> call;
    private long lastReceived = System.nanoTime();
    private long pingInterval = 10 * SECOND;
    private int maxOutcomes = 10_000;
    private int maxBytes = Integer.MAX_VALUE;
    private boolean open;
    private boolean drained;
    private Long drainRequestedAt;
    private Long reconnectAt;

    Stream(Session session, ManagedChannel channel) {
        this.session = session;
        jobs = session.jobs();
        this.channel = channel;
    }

    void start(WorkRequest.Builder subscribe, int maxMessageBytes) {
        WorkerServiceGrpc.newStub(channel).withMaxInboundMessageSize(maxMessageBytes).work(this);
        call.onNext(subscribe.build());
    }

    /** Requests the broker's messages one by one (flow control), so that they do not accumulate in a slow worker. */
    @Override
    public void beforeStart(ClientCallStreamObserver<WorkRequest> stream) {
        call = stream;
        call.disableAutoRequestWithInitial(1);
        call.setOnReadyHandler(() -> session.locked(() -> { }));
    }

    @Override
    public void onNext(WorkResponse message) {
        session.locked(this, () -> receive(message));
        call.request(1);
    }

    @Override
    public void onError(Throwable error) {
        closed.complete(null);
        session.locked(this, () -> session.broken(HowdahException.from(error, session.address())));
    }

    @Override
    public void onCompleted() {
        onError(HowdahException.broken("the broker closed the stream"));
    }

    private void receive(WorkResponse message) {
        lastReceived = System.nanoTime();
        switch (message.getMessageCase()) {
            case WELCOME -> {
                open = true;
                limit(message.getWelcome().getLimits());
                var ping = NewJob.read(message.getWelcome().getPingInterval()).toNanos();
                pingInterval = ping > 0 ? ping : pingInterval;
                session.welcome(message.getWelcome());
            }
            case JOBS -> jobs.receive(message.getJobs().getJobsList());
            case SETTLED -> message.getSettled().getResultsList().forEach(this::handleSettleResult);
            case EXTENDED -> handleLeaseResults(Extension.class, message.getExtended().getResultsList());
            case PROGRESSED -> handleLeaseResults(ProgressReport.class, message.getProgressed().getResultsList());
            case CANCEL -> message.getCancel().getJobsList().forEach(jobs::cancelled);
            case DRAIN -> drain(message.getDrain());
            // A gRPC thread runs this callback, so a blocking handler cannot delay the Pong. The Pong is sent at the
            // end of the callback.
            case PING -> control.add(WorkRequest.newBuilder().setPong(Pong.getDefaultInstance()));
            default -> { }
        }
    }

    private void limit(Limits limits) {
        maxOutcomes = limits.getMaxSettleOutcomes() > 0 ? limits.getMaxSettleOutcomes() : maxOutcomes;
        maxBytes = limits.getMaxMessageBytes() > 0 ? (int) Math.min(limits.getMaxMessageBytes(), maxBytes) : maxBytes;
        maxBytes = Math.max(RESERVED_BYTES, maxBytes - RESERVED_BYTES);
    }

    private void drain(Drain drain) {
        drained = true;
        if (drain.hasReconnectAfter() || drain.getReason() == DrainReason.DRAIN_REASON_SHUTDOWN) {
            reconnectAt = session.wakeAt(System.nanoTime() + NewJob.read(drain.getReconnectAfter()).toNanos());
        }
    }

    private void handleSettleResult(SettleResult result) {
        var job = jobs.unconfirmed(result.getId(), result.getToken());
        if (job != null && job.sentIn != null && --job.sentIn.unanswered == 0) {
            batches.remove(job.sentIn);
        }
        if (job != null) {
            job.sentIn = null;
            jobs.handleSettleResult(job, result);
        }
    }

    /** Sends messages while the transport accepts them. While it does not, outcomes accumulate for a larger message. */
    void send(boolean stopping) {
        if (open && stopping && drainRequestedAt == null && !drained) {
            drainRequestedAt = System.nanoTime();
            control.add(WorkRequest.newBuilder().setDrain(DrainRequest.getDefaultInstance()));
        }
        while (open && call.isReady()) {
            if (!control.isEmpty()) {
                call.onNext(control.poll().build());
                continue;
            }
            var next = WorkRequest.newBuilder();
            // A smaller window precedes the outcomes that make room in it.
            var window = stopping || drained ? null : jobs.nextWindow();
            var extensions = window == null ? nextLeaseRequests(Extension.class) : List.<Extension>of();
            var reports = window == null && extensions.isEmpty() ? nextLeaseRequests(ProgressReport.class)
                : List.<ProgressReport>of();
            if (window != null) {
                next.setWindow(window);
            } else if (!extensions.isEmpty()) {
                next.setExtend(Extend.newBuilder().addAllExtensions(extensions));
            } else if (!reports.isEmpty()) {
                next.setProgress(Progress.newBuilder().addAllReports(reports));
            } else if (maySettle()) {
                next.setSettle(settle(jobs.unsent));
            } else {
                return;
            }
            call.onNext(next.build());
        }
    }

    private boolean maySettle() {
        int outcomes = jobs.unsent.size();
        return outcomes > 0 && (batches.size() < EAGER_SETTLES
            || batches.size() < MAX_SETTLES && (long) outcomes * SLOT_FRACTION >= jobs.slots());
    }

    /**
     * Takes extensions or progress reports to send. A message may name a job only once, so a second request for a job
     * waits until the first is answered.
     */
    private <T extends Message> List<T> nextLeaseRequests(Class<T> kind) {
        jobs.leaseRequests.removeIf(request -> request.answer.isDone());
        if (jobs.oneByOne && jobs.leaseRequests.stream().anyMatch(request -> request.sentOn == this)) {
            return List.of();
        }
        var keys = new HashSet<Jobs.Key>();
        var next = jobs.leaseRequests.stream().filter(request -> kind.isInstance(request.message)
            && keys.add(request.key) && request.sentOn != this)
            .limit(jobs.oneByOne ? 1 : MAX_LEASE_REQUESTS).toList();
        next.forEach(request -> request.sentOn = this);
        return next.stream().map(request -> kind.cast(request.message)).toList();
    }

    private void handleLeaseResults(Class<? extends Message> kind, List<SettleResult> results) {
        for (var result : results) {
            jobs.leaseRequests.stream().filter(request -> request.sentOn == this && kind.isInstance(request.message)
                && request.key.id() == result.getId() && request.key.token() == result.getToken())
                .findFirst().ifPresent(request -> jobs.handleLeaseResult(request, result));
        }
    }

    private Settle settle(Deque<Jobs.Held> unsent) {
        var settle = Settle.newBuilder();
        var batch = new Batch();
        var ids = new HashSet<Long>();
        long bytes = 0;
        for (var job = unsent.peek(); job != null && batch.unanswered < maxOutcomes; job = unsent.peek()) {
            long size = job.outcome.getSerializedSize() + 8L;
            if (size > maxBytes) {
                // The outcome is too large for a message. The broker would end every stream on which it is sent, so a
                // failure replaces it.
                job.fail("the result takes " + size + " bytes; the broker accepts at most " + maxBytes, false);
                continue;
            }
            // A Settle may name a job only once. A job that was delivered again after a lost lease may have two
            // outcomes, so the second one waits for the next message.
            if (bytes + size > maxBytes || !ids.add(job.key.id())) {
                break;
            }
            bytes += size;
            settle.addOutcomes(job.outcome);
            job.sentIn = batch;
            batch.unanswered++;
            unsent.poll();
        }
        batches.add(batch);
        return settle.build();
    }

    /** Ends the stream if the broker sends nothing or does not answer a Settle in time. */
    void check() {
        if (Session.due(lastReceived + (open ? 3 * pingInterval : WELCOME_TIMEOUT))) {
            session.broken(HowdahException.broken("the broker is silent: no message for three ping intervals"));
        } else if (!batches.isEmpty() && Session.due(batches.peek().sentAt + SETTLE_TIMEOUT)) {
            session.broken(HowdahException.broken("the broker has not answered a Settle message in time"));
        }
    }

    boolean isOpen() { return open; }

    /** Returns whether the broker will send no more jobs on this stream, or the drain request has timed out. */
    boolean isDrained() { return drained || drainRequestedAt != null && Session.due(drainRequestedAt + DRAIN_TIMEOUT); }

    /** Returns when to open another stream; null if the broker has not asked the worker to reconnect. */
    Long reconnectAt() { return reconnectAt; }

    /**
     * Closes the stream. {@code orderly}: by a half-close, so that the last messages are delivered. Otherwise by
     * cancelling it.
     */
    CompletableFuture<Void> close(boolean orderly) {
        if (orderly && !closed.isDone()) {
            call.onCompleted();
        }
        var end = orderly ? closed.completeOnTimeout(null, CLOSE_TIMEOUT, TimeUnit.NANOSECONDS)
            : CompletableFuture.<Void>completedFuture(null);
        return end.whenComplete((ignored, error) -> channel.shutdownNow());
    }
}
