package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.Drain;
import dev.howdah.v1.DrainReason;
import dev.howdah.v1.DrainRequest;
import dev.howdah.v1.Extend;
import dev.howdah.v1.Extension;
import dev.howdah.v1.Limits;
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

/** One stream of a session, on a connection of its own. The session's lock guards it. */
final class Stream implements ClientResponseObserver<WorkRequest, WorkResponse> {
    private static final long SECOND = TimeUnit.SECONDS.toNanos(1);
    /** How long the broker may take to send its welcome; it looks up earlier leases meanwhile. */
    private static final long WELCOME_PATIENCE = 15 * SECOND;
    /** A Settle that is not answered by then means a dead stream: a broker without its Postgres answers within 15 s. */
    private static final long ANSWER_PATIENCE = 60 * SECOND;
    private static final long DRAIN_PATIENCE = 5 * SECOND;
    private static final long CLOSE_PATIENCE = 2 * SECOND;
    /**
     * While a few Settle messages are unanswered, outcomes gather until a quarter of the slots have ended with one, and
     * the next message takes them all. So messages grow under load, and few slots stand idle because their outcomes wait.
     */
    private static final int FEW_SETTLES = 4;
    /** With so many unanswered, nothing is sent until an answer comes. */
    private static final int MOST_SETTLES = 16;
    /** The slots whose outcomes gather are one in so many. */
    private static final int PART_OF_SLOTS = 4;
    /** With the largest checkpoints, so many extensions or reports fit into a message. */
    private static final int MOST_ASKS = 50;
    /** The part of a message that is kept for what is not counted. */
    private static final int SLACK = 1024;

    /** A Settle that is not fully answered. */
    static final class Batch {
        private final long at = System.nanoTime();
        private int left;
    }

    private final Session session;
    private final Jobs jobs;
    private final ManagedChannel channel;
    private final Deque<WorkRequest.Builder> control = new ArrayDeque<>();
    private final Deque<Batch> batches = new ArrayDeque<>();
    private final CompletableFuture<Void> closed = new CompletableFuture<>();
    private ClientCallStreamObserver<WorkRequest> call;
    private long heard = System.nanoTime();
    private long pingInterval = 10 * SECOND;
    private int maxOutcomes = 10_000;
    private int maxBytes = Integer.MAX_VALUE;
    private boolean open;
    private boolean drained;
    private Long drainAsked;
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

    /** The next message is read when this one is done, so that a slow worker does not gather messages. */
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
        session.locked(this, () -> session.broken(HowdahException.of(error, session.address())));
    }

    @Override
    public void onCompleted() {
        onError(HowdahException.broken("the broker closed the stream"));
    }

    private void receive(WorkResponse message) {
        heard = System.nanoTime();
        switch (message.getMessageCase()) {
            case WELCOME -> {
                open = true;
                limit(message.getWelcome().getLimits());
                var ping = NewJob.read(message.getWelcome().getPingInterval()).toNanos();
                pingInterval = ping > 0 ? ping : pingInterval;
                session.welcome(message.getWelcome());
            }
            case JOBS -> jobs.receive(message.getJobs().getJobsList());
            case SETTLED -> message.getSettled().getResultsList().forEach(this::settled);
            case EXTENDED -> answered(Extension.class, message.getExtended().getResultsList());
            case PROGRESSED -> answered(ProgressReport.class, message.getProgressed().getResultsList());
            case CANCEL -> message.getCancel().getJobsList().forEach(jobs::cancelled);
            case DRAIN -> drain(message.getDrain());
            default -> { }
        }
    }

    private void limit(Limits limits) {
        maxOutcomes = limits.getMaxSettleOutcomes() > 0 ? limits.getMaxSettleOutcomes() : maxOutcomes;
        maxBytes = limits.getMaxMessageBytes() > 0 ? (int) Math.min(limits.getMaxMessageBytes(), maxBytes) : maxBytes;
        maxBytes = Math.max(SLACK, maxBytes - SLACK);
    }

    private void drain(Drain drain) {
        drained = true;
        if (drain.hasReconnectAfter() || drain.getReason() == DrainReason.DRAIN_REASON_SHUTDOWN) {
            reconnectAt = session.at(System.nanoTime() + NewJob.read(drain.getReconnectAfter()).toNanos());
        }
    }

    private void settled(SettleResult result) {
        var job = jobs.unconfirmed(result.getId(), result.getToken());
        if (job != null && job.sentIn != null && --job.sentIn.left == 0) {
            batches.remove(job.sentIn);
        }
        if (job != null) {
            job.sentIn = null;
            jobs.settled(job, result);
        }
    }

    void control(WorkRequest.Builder message) { control.add(message); }

    /** Sends what there is while the transport takes it. Until then outcomes gather. */
    void send(boolean stopping) {
        if (open && stopping && drainAsked == null && !drained) {
            drainAsked = System.nanoTime();
            control.add(WorkRequest.newBuilder().setDrain(DrainRequest.getDefaultInstance()));
        }
        while (open && call.isReady()) {
            if (!control.isEmpty()) {
                call.onNext(control.poll().build());
                continue;
            }
            var next = WorkRequest.newBuilder();
            var extensions = asks(Extension.class);
            var reports = extensions.isEmpty() ? asks(ProgressReport.class) : List.<ProgressReport>of();
            if (!extensions.isEmpty()) {
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
        return outcomes > 0 && (batches.size() < FEW_SETTLES
            || batches.size() < MOST_SETTLES && (long) outcomes * PART_OF_SLOTS >= jobs.slots());
    }

    /** Extensions or reports to send. A message names a job once: a second one waits for the answer to the first. */
    private <T extends Message> List<T> asks(Class<T> kind) {
        jobs.asks.removeIf(ask -> ask.answer.isDone());
        var ahead = new HashSet<Jobs.Key>();
        var next = jobs.asks.stream().filter(ask -> kind.isInstance(ask.message) && ahead.add(ask.key)
            && ask.sentOn != this)
            .limit(MOST_ASKS).toList();
        next.forEach(ask -> ask.sentOn = this);
        return next.stream().map(ask -> kind.cast(ask.message)).toList();
    }

    private void answered(Class<? extends Message> kind, List<SettleResult> results) {
        for (var result : results) {
            jobs.asks.stream().filter(ask -> ask.sentOn == this && kind.isInstance(ask.message)
                && ask.key.id() == result.getId() && ask.key.token() == result.getToken())
                .findFirst().ifPresent(ask -> jobs.answered(ask, result));
        }
    }

    private Settle settle(Deque<Jobs.Held> unsent) {
        var settle = Settle.newBuilder();
        var batch = new Batch();
        var ids = new HashSet<Long>();
        long bytes = 0;
        for (var job = unsent.peek(); job != null && batch.left < maxOutcomes; job = unsent.peek()) {
            long size = job.outcome.getSerializedSize() + 8L;
            if (size > maxBytes) {
                // It would end the stream, and the next one too.
                job.fail("the result takes " + size + " bytes; the broker accepts " + maxBytes);
                continue;
            }
            // After a lost lease there may be two outcomes of a job; a message names a job once.
            if (bytes + size > maxBytes || !ids.add(job.key.id())) {
                break;
            }
            bytes += size;
            settle.addOutcomes(job.outcome);
            job.sentIn = batch;
            batch.left++;
            unsent.poll();
        }
        batches.add(batch);
        return settle.build();
    }

    /** Ends the stream if the broker is silent or does not answer. */
    void check() {
        if (Session.due(heard + (open ? 3 * pingInterval : WELCOME_PATIENCE))) {
            session.broken(HowdahException.broken("the broker is silent"));
        } else if (!batches.isEmpty() && Session.due(batches.peek().at + ANSWER_PATIENCE)) {
            session.broken(HowdahException.broken("the broker does not answer"));
        }
    }

    boolean isOpen() { return open; }

    /** Whether no more jobs will come, or the broker had enough time to say so. */
    boolean isDrained() { return drained || drainAsked != null && Session.due(drainAsked + DRAIN_PATIENCE); }

    /** When to open another stream; null: the broker has not asked for it. */
    Long reconnectAt() { return reconnectAt; }

    /** In order: our side is closed, and the broker has a moment to end the stream, so that all has arrived. */
    CompletableFuture<Void> close(boolean orderly) {
        if (orderly && !closed.isDone()) {
            call.onCompleted();
        }
        var end = orderly ? closed.completeOnTimeout(null, CLOSE_PATIENCE, TimeUnit.NANOSECONDS)
            : CompletableFuture.<Void>completedFuture(null);
        return end.whenComplete((ignored, error) -> channel.shutdownNow());
    }
}
