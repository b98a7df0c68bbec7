package dev.howdah.client;

import dev.howdah.v1.SettleJobsRequest;
import dev.howdah.v1.SettleResult;
import dev.howdah.v1.WorkerServiceGrpc;
import java.lang.System.Logger.Level;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Sends outcomes by unary calls. The session's lock guards the object.
 *
 * <p>To a proxy, a stream is one request, and some proxies limit the bytes of a request. If a stream breaks with many
 * bytes of unanswered outcomes, each further stream may break at the same point. So these outcomes are sent by {@code
 * SettleJobs}, a few at a time. A unary call that is too large fails with HTTP 413; a stream is only cut.
 */
final class UnarySettler {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Worker");
    /**
     * If a stream breaks with at most this many bytes of unanswered outcomes, they are resent on the next stream, not
     * by {@code SettleJobs}.
     */
    static final long THRESHOLD = 4 << 10;
    /** Maximum bytes of a {@code SettleJobs} call with more than one outcome. */
    static final long MAX_CALL_BYTES = 64 << 10;

    final Deque<Jobs.Held> waiting = new ArrayDeque<>();
    private final Session session;
    private final Jobs jobs;
    private final Connection connection;
    private final Connection.Backoff backoff = new Connection.Backoff();
    private long maxBytes = MAX_CALL_BYTES;
    /** Whether a {@code SettleJobs} call is pending, or the backoff before the next call has not passed. */
    private boolean busy;

    UnarySettler(Session session, Jobs jobs, Connection connection) {
        this.session = session;
        this.jobs = jobs;
        this.connection = connection;
    }

    /** Makes the next {@code SettleJobs} call, if outcomes are queued. */
    void start() {
        if (busy || waiting.isEmpty()) {
            return;
        }
        busy = true;
        var sent = next();
        var request = SettleJobsRequest.newBuilder();
        sent.forEach(job -> request.addOutcomes(job.outcome));
        connection.background.execute(() -> {
            try {
                var results = connection.call(connection.options.requestTimeout, Connection.ATTEMPT_TIMEOUT, false,
                    channel -> WorkerServiceGrpc.newBlockingStub(channel).settleJobs(request.build())).getResultsList();
                session.locked(() -> settled(sent, results));
            } catch (RuntimeException thrown) {
                var error = HowdahException.from(thrown, session.address());
                session.locked(() -> failed(sent, error));
            }
        });
    }

    /** Takes the outcomes of the next {@code SettleJobs} call. Takes at least one, and at most one per job. */
    private List<Jobs.Held> next() {
        var next = new ArrayList<Jobs.Held>();
        var ids = new HashSet<Long>();
        long bytes = 0;
        for (var job = waiting.peek(); job != null; job = waiting.peek()) {
            bytes += job.outcome.getSerializedSize();
            if (!next.isEmpty() && bytes > maxBytes || !ids.add(job.key.id())) {
                break;
            }
            next.add(waiting.poll());
        }
        return next;
    }

    private void settled(List<Jobs.Held> sent, List<SettleResult> results) {
        backoff.reset();
        for (var result : results) {
            var job = jobs.unconfirmed(result.getId(), result.getToken());
            if (job != null) {
                job.isUnary = false;
                jobs.handleSettleResult(job, result);
            }
        }
        returnToStream(sent);
        startNext();
    }

    private void failed(List<Jobs.Held> sent, HowdahException error) {
        if (error.isTooLarge() && sent.size() == 1) {
            var job = sent.get(0);
            job.fail("the outcome takes " + job.outcome.getSerializedSize()
                + " bytes and does not reach the broker: " + error.getMessage(), true);
            returnToStream(sent);
        } else if (error.isTooLarge() || error.isTransient()) {
            maxBytes = error.isTooLarge() ? maxBytes / 2 : maxBytes;
            for (int last = sent.size() - 1; last >= 0; last--) {
                waiting.addFirst(sent.get(last));
            }
            if (error.isTransient()) {
                connection.timer.schedule(() -> session.locked(this::startNext), backoff.next(), TimeUnit.NANOSECONDS);
                return;
            }
        } else {
            // The broker refused the call, but it may still accept the outcomes on a stream.
            LOG.log(Level.WARNING, "a call with outcomes was refused; sending the outcomes on the stream: {0}",
                error.getMessage());
            returnToStream(sent);
        }
        startNext();
    }

    private void startNext() {
        busy = false;
        start();
    }

    /** Queues the outcomes of a refused {@code SettleJobs} call for the stream, unless the call has settled them. */
    private void returnToStream(List<Jobs.Held> sent) {
        for (var job : sent) {
            if (job.isUnary) {
                job.isUnary = false;
                jobs.unsent.add(job);
            }
        }
    }
}
