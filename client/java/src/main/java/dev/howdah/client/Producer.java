package dev.howdah.client;

import dev.howdah.v1.EnqueuedJob;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.StreamEnqueueRequest;
import dev.howdah.v1.StreamEnqueueResponse;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.regex.Pattern;

/**
 * Enqueues from many threads over one stream. Jobs that gather while requests are in flight form the next request: a
 * single job is sent at once, and requests grow under load. Unanswered requests are repeated under their keys when the
 * stream breaks, so that nothing is enqueued twice. If the broker refuses a job, only that one fails, not the others of
 * its request.
 */
public final class Producer implements AutoCloseable {
    private static final Pattern JOB = Pattern.compile("jobs\\[(\\d+)].*");
    /** A request that is not answered by then: a dead stream. A broker without its Postgres answers within 15 s. */
    private static final long ANSWER_PATIENCE = TimeUnit.SECONDS.toNanos(16);
    /** About the bytes of a job besides its text. */
    private static final int JOB_OVERHEAD = 64;
    /** Errors about the caller, not about jobs: no part of a request would be accepted. */
    private static final Set<Status.Code> FOR_ALL = Set.of(Status.Code.UNAUTHENTICATED, Status.Code.UNIMPLEMENTED);

    /**
     * Limits of a pipeline.
     *
     * @param maxInFlight requests that are sent and not answered
     * @param maxBatchJobs of a request; jobs that were submitted together stay together
     * @param maxBatchBytes of a request with more than one submission
     * @param maxGatheredBytes gathered and in flight; then {@link #submit} waits
     */
    public record Limits(int maxInFlight, int maxBatchJobs, int maxBatchBytes, int maxGatheredBytes) {
        /** 4 requests of 1,000 jobs and 4 MiB; 64 MiB gathered. */
        public Limits() {
            this(4, 1_000, 4 << 20, 64 << 20);
        }
    }

    /** Jobs that were submitted together. */
    private record Submission(List<dev.howdah.v1.NewJob> jobs, int cost,
        CompletableFuture<List<HowdahClient.Enqueued>> answer) {}

    /** One request. It is repeated unchanged, under its key, until it is answered. */
    private record Batch(String key, List<Submission> submissions, long at) {
        Batch(List<Submission> submissions) {
            this(HowdahClient.newRequestKey(), submissions, System.nanoTime());
        }

        List<dev.howdah.v1.NewJob> jobs() {
            return submissions.stream().flatMap(submission -> submission.jobs.stream()).toList();
        }

        boolean isWanted() {
            return submissions.stream().anyMatch(submission -> !submission.answer.isDone());
        }
    }

    private final HowdahClient client;
    private final Connection connection;
    private final Limits limits;
    private final Semaphore room;
    private final ReentrantLock lock = new ReentrantLock();
    private final ArrayDeque<Submission> gathered = new ArrayDeque<>();
    private final ArrayDeque<Batch> again = new ArrayDeque<>();
    private final Map<Long, Batch> sent = new LinkedHashMap<>();
    private final Connection.Backoff backoff = new Connection.Backoff();
    private final Future<?> ticks;
    private List<Runnable> answers = new ArrayList<>();
    private Link link;
    private boolean busy, broken, closed;
    private int broker;
    private long sequence, sentAt;
    private volatile URI address;

    Producer(HowdahClient client, Limits limits) {
        this.client = client;
        this.limits = limits;
        connection = client.connection;
        broker = connection.current();
        address = connection.address(broker);
        // Fair, so that a flush gets its turn.
        room = new Semaphore(limits.maxGatheredBytes, true);
        ticks = connection.timer.scheduleWithFixedDelay(() -> locked(this::tick), 1, 1, TimeUnit.SECONDS);
    }

    /**
     * Enqueues a job, and waits until it is committed.
     *
     * @param job to enqueue
     * @return its id
     */
    public HowdahClient.Enqueued enqueue(NewJob job) {
        try {
            return submit(job).join();
        } catch (RuntimeException error) {
            throw HowdahException.of(error, "");
        }
    }

    /**
     * Submits a job. Waits only while too much is gathered.
     *
     * @param job to enqueue
     * @return completes when it is committed
     */
    public CompletableFuture<HowdahClient.Enqueued> submit(NewJob job) {
        return submitAll(List.of(job)).thenApply(all -> all.get(0));
    }

    /**
     * Submits jobs: all are stored or none.
     *
     * @param jobs to enqueue
     * @return completes when they are committed
     */
    public CompletableFuture<List<HowdahClient.Enqueued>> submitAll(List<NewJob> jobs) {
        return client.wrapped(this::push, () -> address, null).enqueue(jobs);
    }

    private CompletableFuture<List<HowdahClient.Enqueued>> push(List<NewJob> jobs) {
        var timeout = connection.options.requestTimeout;
        var answer = new CompletableFuture<List<HowdahClient.Enqueued>>();
        var encoded = jobs.stream().map(job -> job.encoded(connection.options.json)).toList();
        long bytes = encoded.stream().mapToLong(job -> job.getSerializedSize() + JOB_OVERHEAD).sum();
        int cost = (int) Math.min(bytes, limits.maxGatheredBytes);
        try {
            if (jobs.isEmpty()) {
                return CompletableFuture.completedFuture(List.of());
            } else if (bytes > connection.options.maxMessageBytes) {
                throw HowdahException.invalid("jobs", bytes + " bytes do not fit into a message");
            } else if (!room.tryAcquire(cost, timeout.toNanos(), TimeUnit.NANOSECONDS)) {
                throw HowdahException.late("room for another job", timeout);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return CompletableFuture.failedFuture(new HowdahException(Status.Code.CANCELLED, "", "", "interrupted"));
        } catch (HowdahException error) {
            return CompletableFuture.failedFuture(error);
        }
        var late = connection.timer.schedule(() -> answer.completeExceptionally(
            HowdahException.late("enqueue", timeout)), timeout.toNanos(), TimeUnit.NANOSECONDS);
        answer.whenComplete((ignored, error) -> late.cancel(false));
        locked(() -> {
            if (closed) {
                room.release(cost);
                answer.completeExceptionally(new HowdahException(Status.Code.CANCELLED, "", "",
                    "the pipeline is closed"));
            } else {
                gathered.add(new Submission(encoded, cost, answer));
            }
        });
        return answer;
    }

    /** Waits until everything that was submitted before is answered. */
    public void flush() {
        room.acquireUninterruptibly(limits.maxGatheredBytes);
        room.release(limits.maxGatheredBytes);
    }

    /** Sends what was submitted, waits for the answers, and closes the stream. */
    @Override
    public void close() {
        locked(() -> closed = true);
        flush();
        ticks.cancel(false);
        locked(() -> {
            if (link != null) {
                link.call.onCompleted();
                link.leaveInOrder();
            }
        });
    }

    /** Makes a change and sends what there is. Answers are told without the lock: callers may do anything then. */
    private void locked(Runnable change) {
        List<Runnable> ready;
        lock.lock();
        try {
            change.run();
            send();
            ready = answers;
            answers = new ArrayList<>();
        } finally {
            lock.unlock();
        }
        ready.forEach(Runnable::run);
    }

    private void send() {
        while (link != null && sent.size() < limits.maxInFlight && link.call.isReady()) {
            var batch = next();
            if (batch == null) {
                return;
            }
            sentAt = sent.isEmpty() ? System.nanoTime() : sentAt;
            sent.put(++sequence, batch);
            link.call.onNext(StreamEnqueueRequest.newBuilder().setSequence(sequence).setRequestKey(batch.key)
                .addAllJobs(batch.jobs()).build());
        }
        if (link == null && !busy && !(gathered.isEmpty() && again.isEmpty())) {
            busy = true;
            connection.background.execute(this::open);
        }
    }

    private Batch next() {
        if (!again.isEmpty() || gathered.isEmpty()) {
            return again.poll();
        }
        var submissions = new ArrayList<Submission>();
        int jobs = 0, bytes = 0;
        for (var next = gathered.peek(); next != null; next = gathered.peek()) {
            jobs += next.jobs.size();
            bytes += next.cost;
            if (!submissions.isEmpty() && (jobs > limits.maxBatchJobs || bytes > limits.maxBatchBytes)) {
                break;
            }
            submissions.add(gathered.poll());
        }
        return new Batch(submissions);
    }

    private void open() {
        int index = broker;
        address = connection.address(broken ? index : connection.current());
        try {
            // The first stream is one of the client's own connection. Later ones do not trust it.
            var own = broken ? connection.dial(index) : null;
            locked(() -> {
                busy = false;
                link = new Link(own);
                JobServiceGrpc.newStub(own == null ? connection.channel() : own).streamEnqueue(link);
            });
        } catch (RuntimeException error) {
            locked(() -> broken(HowdahException.of(error, connection.name(index))));
        }
    }

    /** The stream broke: what is unanswered is sent again, before all else. */
    private void broken(HowdahException error) {
        if (link != null) {
            link.leave();
            link = null;
        }
        broken = true;
        var unanswered = new ArrayList<>(sent.values());
        sent.clear();
        for (int last = unanswered.size() - 1; last >= 0; last--) {
            again.addFirst(unanswered.get(last));
        }
        busy = true;
        if (error.isRefusal()) {
            // The stream, or a request on it: the parts find out which, on their own streams.
            var refused = new ArrayList<Batch>();
            for (var batch = next(); batch != null; batch = next()) {
                refused.add(batch);
            }
            refused.forEach(batch -> failed(batch, error));
        }
        broker += error.isRefusal() ? 0 : 1;
        connection.timer.schedule(() -> locked(() -> busy = false), backoff.next(), TimeUnit.NANOSECONDS);
    }

    private void stored(Batch batch, List<EnqueuedJob> jobs) {
        backoff.reset();
        int first = 0;
        for (var submission : batch.submissions) {
            var own = HowdahClient.Enqueued.of(submission.jobs, jobs.subList(first,
                first += submission.jobs.size()), true);
            answer(submission, () -> submission.answer.complete(own));
        }
    }

    private void answer(Submission submission, Runnable answer) {
        room.release(submission.cost);
        answers.add(answer);
    }

    private void failed(Batch batch, HowdahException error) {
        if (error.isPassing() && batch.isWanted()) {
            connection.timer.schedule(() -> locked(() -> again.add(batch)), backoff.next(), TimeUnit.NANOSECONDS);
            return;
        }
        var submissions = batch.submissions;
        var job = JOB.matcher(error.field());
        int blamed = job.matches() ? Integer.parseInt(job.group(1)) : -1, first = 0;
        for (int index = 0; index < submissions.size() && blamed >= 0; index++) {
            var submission = submissions.get(index);
            if (blamed < first + submission.jobs.size()) {
                // Nothing of the request is stored. The others are a new one.
                var own = error.rebased("jobs[" + blamed + "]", "jobs[" + (blamed - first) + "]");
                answer(submission, () -> submission.answer.completeExceptionally(own));
                again(submissions.subList(index + 1, submissions.size()));
                again(submissions.subList(0, index));
                return;
            }
            first += submission.jobs.size();
        }
        if (submissions.size() > 1 && !error.isPassing() && !FOR_ALL.contains(error.code())) {
            again(submissions.subList(submissions.size() / 2, submissions.size()));
            again(submissions.subList(0, submissions.size() / 2));
        } else {
            submissions.forEach(each -> answer(each, () -> each.answer.completeExceptionally(error)));
        }
    }

    private void again(List<Submission> submissions) {
        if (!submissions.isEmpty()) {
            again.addFirst(new Batch(submissions));
        }
    }

    /** Drops what nobody waits for any more, and leaves a stream that does not answer. */
    private void tick() {
        gathered.removeIf(submission -> submission.answer.isDone() && released(submission));
        again.removeIf(batch -> !batch.isWanted() && batch.submissions.stream().allMatch(this::released));
        if (!sent.isEmpty() && System.nanoTime() - sentAt > ANSWER_PATIENCE) {
            broken(HowdahException.broken("the broker does not answer"));
        }
    }

    private boolean released(Submission submission) {
        room.release(submission.cost);
        return true;
    }

    /** One stream. */
    private final class Link implements ClientResponseObserver<StreamEnqueueRequest, StreamEnqueueResponse> {
        private final ManagedChannel channel;
        private ClientCallStreamObserver<StreamEnqueueRequest> call;

        /** The channel is null if it is the client's. */
        Link(ManagedChannel channel) {
            this.channel = channel;
        }

        void leave() {
            call.cancel("the stream is left", null);
            leaveInOrder();
        }

        void leaveInOrder() {
            if (channel != null) {
                channel.shutdown();
            }
        }

        @Override
        public void beforeStart(ClientCallStreamObserver<StreamEnqueueRequest> call) {
            this.call = call;
            call.setOnReadyHandler(() -> locked(() -> { }));
        }

        @Override
        public void onNext(StreamEnqueueResponse answer) {
            locked(() -> {
                var batch = link == this ? sent.remove(answer.getSequence()) : null;
                sentAt = System.nanoTime();
                if (batch != null && answer.hasError()) {
                    failed(batch, HowdahException.of(answer.getError()));
                } else if (batch != null) {
                    stored(batch, answer.getJobsList());
                }
            });
        }

        @Override
        public void onError(Throwable error) {
            locked(() -> {
                boolean done = closed && sent.isEmpty() && again.isEmpty() && gathered.isEmpty();
                if (link == this && !done) {
                    broken(HowdahException.of(error, connection.name(broker)));
                }
            });
        }

        @Override
        public void onCompleted() {
            onError(HowdahException.broken("the broker closed the stream"));
        }
    }
}
