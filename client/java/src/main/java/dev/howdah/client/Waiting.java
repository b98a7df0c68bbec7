package dev.howdah.client;

import dev.howdah.v1.Job;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.WaitJobsRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** Waits until jobs have ended, by consecutive {@code WaitJobs} calls. */
final class Waiting {
    /**
     * Longest single {@code WaitJobs} call. A wait consists of many calls, because proxies end calls after 15 s (Envoy)
     * to a minute. Also, a broker that disappears silently is noticed only at the end of a call.
     */
    private static final long LONGEST_CALL = TimeUnit.SECONDS.toNanos(10);
    /**
     * Time that the broker has to answer after the wait time of a {@code WaitJobs} call has passed, before it counts as
     * silent.
     */
    private static final long SLACK = TimeUnit.SECONDS.toNanos(2);

    private final Connection connection;
    private final Duration timeout;
    private final Consumer<Job> onEnded;
    private final Set<Long> pending;
    private final long deadline;
    private final Connection.Backoff backoff = new Connection.Backoff();
    private int failedCalls;
    /** Whether the broker that was called last has answered a call of this wait. */
    private boolean proven;

    Waiting(Connection connection, Collection<Long> ids, Duration timeout, Consumer<Job> onEnded) {
        this.connection = connection;
        this.timeout = timeout;
        this.onEnded = onEnded;
        pending = new LinkedHashSet<>(ids);
        deadline = System.nanoTime() + timeout.toNanos();
    }

    void run() {
        while (!pending.isEmpty()) {
            long began = System.nanoTime();
            long remaining = Math.max(0, deadline - began);
            // Until the broker has answered, the remaining time is divided among the brokers not yet tried in this
            // round.
            int untried = proven ? 1 : connection.size() - failedCalls % connection.size();
            long share = remaining / untried;
            long wait = Math.min(untried == 1 ? share : share * 3 / 4, LONGEST_CALL);
            long callTimeout = untried == 1 ? wait + SLACK : Math.max(SLACK / 2, Math.min(share, LONGEST_CALL + SLACK));
            try {
                call(wait, callTimeout);
                return;
            } catch (HowdahException error) {
                handleError(error, System.nanoTime() - began > wait - SLACK);
            }
        }
    }

    private void call(long wait, long timeout) {
        var request = WaitJobsRequest.newBuilder().addAllIds(pending)
            .setTimeout(NewJob.wire(Duration.ofNanos(wait))).build();
        connection.callOnce(Duration.ofNanos(timeout), channel -> {
            JobServiceGrpc.newBlockingStub(channel).waitJobs(request).forEachRemaining(answer -> {
                backoff.reset();
                if (pending.remove(answer.getJob().getId())) {
                    onEnded.accept(answer.getJob());
                }
            });
            return null;
        });
    }

    private void handleError(HowdahException error, boolean inTime) {
        if (!error.isTransient()) {
            throw error;
        }
        // Only a broker sends this reason: the wait time of the call has passed. So the broker works, and the next call
        // goes to it. After other transient errors, the next call goes to the next broker.
        proven = error.reason().equals("DEADLINE_EXCEEDED");
        failedCalls += proven ? 0 : 1;
        long remaining = deadline - System.nanoTime();
        if (remaining <= 0 && proven) {
            throw error;
        }
        if (remaining <= 0 && failedCalls >= connection.size()) {
            throw HowdahException.timedOut("wait", timeout);
        }
        if (proven && inTime) {
            backoff.reset();
            return;
        }
        try {
            TimeUnit.NANOSECONDS.sleep(Math.max(0, Math.min(backoff.next(), remaining)));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new HowdahException(Status.Code.CANCELLED, "", "", "interrupted");
        }
    }
}
