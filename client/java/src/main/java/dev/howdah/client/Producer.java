package dev.howdah.client;

import dev.howdah.v1.EnqueueJobsRequest;
import dev.howdah.v1.EnqueuedJob;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.StreamEnqueueRequest;
import dev.howdah.v1.StreamEnqueueResponse;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.net.URI;
import java.time.Duration;
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
 * A producer, which enqueues from many threads over one stream. Jobs that arrive while requests are in flight form the
 * next request. So a single job is sent at once, and batches grow under load. When the stream breaks, unanswered
 * requests are repeated with their request keys, so that nothing is enqueued twice. If the broker refuses a job, only
 * the jobs of the same submission fail, not the others of its request.
 */
public final class Producer implements AutoCloseable {
    private static final Pattern JOB = Pattern.compile("jobs\\[(\\d+)].*");
    /** Approximate overhead of a job on the wire and in memory, in bytes. */
    private static final int JOB_OVERHEAD = 64;
    /**
     * Codes of errors that concern the caller or the whole call, not one job. Every part of a split request would fail
     * with them too.
     */
    private static final Set<Status.Code> CALLER_ERRORS = Set.of(Status.Code.UNAUTHENTICATED, Status.Code.UNIMPLEMENTED);

    /**
     * Limits of a producer.
     *
     * @param maxInFlight maximum number of unanswered requests
     * @param maxBatchJobs maximum number of jobs per request. Jobs of one submission stay together
     * @param maxBatchBytes maximum bytes of a request with more than one submission
     * @param maxQueuedBytes maximum bytes queued and in flight; beyond it, {@link #submit} waits (backpressure)
     */
    public record Limits(int maxInFlight, int maxBatchJobs, int maxBatchBytes, int maxQueuedBytes) {
        /**
         * Creates the limits. Each must be at least 1.
         *
         * @param maxInFlight maximum number of unanswered requests
         * @param maxBatchJobs maximum number of jobs per request
         * @param maxBatchBytes maximum bytes of a request with more than one submission
         * @param maxQueuedBytes maximum bytes queued and in flight
         */
        public Limits {
            HowdahException.checkLeast("maxInFlight", maxInFlight, 1);
            HowdahException.checkLeast("maxBatchJobs", maxBatchJobs, 1);
            HowdahException.checkLeast("maxBatchBytes", maxBatchBytes, 1);
            HowdahException.checkLeast("maxQueuedBytes", maxQueuedBytes, 1);
        }

        /** The defaults: 4 requests, 1,000 jobs and 4 MiB per request, 64 MiB queued and in flight. */
        public Limits() {
            this(4, 1_000, 4 << 20, 64 << 20);
        }
    }

    /** Jobs that were submitted together and are stored atomically. */
    private record Submission(List<dev.howdah.v1.NewJob> jobs, int cost,
        CompletableFuture<List<HowdahClient.Enqueued>> answer) {}

    /** One request. It is repeated unchanged, with its request key, until it is answered. */
    private record Batch(String key, List<Submission> submissions) {
        Batch(List<Submission> submissions) {
            this(HowdahClient.newRequestKey(), submissions);
        }

        List<dev.howdah.v1.NewJob> jobs() {
            return submissions.stream().flatMap(submission -> submission.jobs.stream()).toList();
        }

        long cost() {
            return submissions.stream().mapToLong(Submission::cost).sum();
        }

        boolean isWanted() {
            return submissions.stream().anyMatch(submission -> !submission.answer.isDone());
        }
    }

    private final HowdahClient client;
    private final Connection connection;
    private final Limits limits;
    private final Semaphore budget;
    private final ReentrantLock lock = new ReentrantLock();
    private final ArrayDeque<Submission> queue = new ArrayDeque<>();
    private final ArrayDeque<Batch> resend = new ArrayDeque<>();
    private final Map<Long, Batch> sent = new LinkedHashMap<>();
    private final Connection.Backoff backoff = new Connection.Backoff();
    private final Future<?> ticks;
    private List<Runnable> completions = new ArrayList<>();
    private Link link;
    private boolean busy, broken, closed;
    private int broker;
    private long sequence, sentAt;
    /**
     * Maximum bytes of a request with more than one submission. The producer reduces it if a proxy refuses a request
     * because of its size.
     */
    private long maxBatchBytes;
    private volatile URI address;

    Producer(HowdahClient client, Limits limits) {
        this.client = client;
        this.limits = limits;
        maxBatchBytes = limits.maxBatchBytes;
        connection = client.connection;
        broker = connection.current();
        address = connection.address(broker);
        // A fair semaphore serves waiters in order, so that submissions cannot starve a flush.
        budget = new Semaphore(limits.maxQueuedBytes, true);
        ticks = connection.timer.scheduleWithFixedDelay(() -> locked(this::tick), 1, 1, TimeUnit.SECONDS);
    }

    /**
     * Enqueues a job, and waits until it is committed.
     *
     * @param job job to enqueue
     * @return the id of the job, and whether it is new
     */
    public HowdahClient.Enqueued enqueue(NewJob job) {
        try {
            return submit(job).join();
        } catch (RuntimeException error) {
            throw HowdahException.from(error, "");
        }
    }

    /**
     * Submits a job. Waits only while the queue is full (backpressure), at most for the request timeout.
     *
     * @param job job to enqueue
     * @return a future that completes when the job is committed
     */
    public CompletableFuture<HowdahClient.Enqueued> submit(NewJob job) {
        return submitAll(List.of(job)).thenApply(all -> all.get(0));
    }

    /**
     * Submits jobs, which are stored atomically. Waits like {@link #submit}.
     *
     * @param jobs jobs to enqueue
     * @return a future that completes when the jobs are committed
     */
    public CompletableFuture<List<HowdahClient.Enqueued>> submitAll(List<NewJob> jobs) {
        return client.wrap(this::push, () -> address, null).enqueue(jobs);
    }

    private CompletableFuture<List<HowdahClient.Enqueued>> push(List<NewJob> jobs) {
        var timeout = connection.options.requestTimeout;
        var answer = new CompletableFuture<List<HowdahClient.Enqueued>>();
        List<dev.howdah.v1.NewJob> encoded;
        int cost;
        try {
            encoded = jobs.stream().map(job -> job.encoded(connection.options.json)).toList();
            for (int index = 0; index < encoded.size(); index++) {
                Texts.check(encoded.get(index), "jobs[" + index + "].");
            }
            long bytes = encoded.stream().mapToLong(job -> job.getSerializedSize() + JOB_OVERHEAD).sum();
            cost = (int) Math.min(bytes, limits.maxQueuedBytes);
            if (jobs.isEmpty()) {
                return CompletableFuture.completedFuture(List.of());
            } else if (bytes > connection.options.maxMessageBytes) {
                throw HowdahException.invalid("jobs", bytes + " bytes are more than maxMessageBytes, which is "
                    + connection.options.maxMessageBytes);
            } else if (!budget.tryAcquire(cost, timeout.toNanos(), TimeUnit.NANOSECONDS)) {
                throw HowdahException.timedOut("waiting for room in the producer's queue", timeout);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return CompletableFuture.failedFuture(new HowdahException(Status.Code.CANCELLED, "", "", "interrupted"));
        } catch (HowdahException error) {
            return CompletableFuture.failedFuture(error);
        }
        var timeoutTask = connection.timer.schedule(() -> answer.completeExceptionally(
            HowdahException.timedOut("enqueue", timeout)), timeout.toNanos(), TimeUnit.NANOSECONDS);
        answer.whenComplete((ignored, error) -> timeoutTask.cancel(false));
        locked(() -> {
            if (closed) {
                budget.release(cost);
                answer.completeExceptionally(new HowdahException(Status.Code.CANCELLED, "", "",
                    "the producer is closed"));
            } else {
                queue.add(new Submission(encoded, cost, answer));
            }
        });
        return answer;
    }

    /** Waits until all earlier submissions are answered. Submissions made during a flush wait until it ends. */
    public void flush() {
        budget.acquireUninterruptibly(limits.maxQueuedBytes);
        budget.release(limits.maxQueuedBytes);
    }

    /**
     * Waits like {@link #flush()}, at most for this time.
     *
     * @param timeout time after which the flush fails with the code {@code DEADLINE_EXCEEDED}. The producer still
     *     enqueues the unanswered jobs
     */
    public void flush(Duration timeout) {
        try {
            if (!budget.tryAcquire(limits.maxQueuedBytes, timeout.toNanos(), TimeUnit.NANOSECONDS)) {
                throw HowdahException.timedOut("flush", timeout);
            }
        } catch (InterruptedException interrupted) {
            throw HowdahException.from(interrupted, "");
        }
        budget.release(limits.maxQueuedBytes);
    }

    /** Sends all submitted jobs, waits for the answers, and closes the stream. */
    @Override
    public void close() {
        locked(() -> closed = true);
        flush();
        ticks.cancel(false);
        locked(() -> {
            if (link != null) {
                link.call.onCompleted();
                link.close();
            }
        });
    }

    /**
     * Makes a change and sends requests while holding the lock. Then completes futures without the lock, because their
     * callbacks run at once.
     */
    private void locked(Runnable change) {
        List<Runnable> ready;
        lock.lock();
        try {
            change.run();
            send();
            ready = completions;
            completions = new ArrayList<>();
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
        if (link == null && !busy && !(queue.isEmpty() && resend.isEmpty())) {
            busy = true;
            connection.background.execute(this::open);
        }
    }

    private Batch next() {
        if (!resend.isEmpty() || queue.isEmpty()) {
            return resend.poll();
        }
        var submissions = new ArrayList<Submission>();
        int jobs = 0, bytes = 0;
        for (var next = queue.peek(); next != null; next = queue.peek()) {
            jobs += next.jobs.size();
            bytes += next.cost;
            if (!submissions.isEmpty() && (jobs > limits.maxBatchJobs || bytes > maxBatchBytes)) {
                break;
            }
            submissions.add(queue.poll());
        }
        return new Batch(submissions);
    }

    private void open() {
        int index = broker;
        address = connection.address(broken ? index : connection.current());
        try {
            // The first stream uses the client's shared channel. After a broken stream that channel may be broken too,
            // so later streams open a new one.
            var separate = broken ? connection.dial(index) : null;
            locked(() -> {
                busy = false;
                link = new Link(separate);
                JobServiceGrpc.newStub(separate == null ? connection.channel() : separate).streamEnqueue(link);
            });
        } catch (RuntimeException error) {
            locked(() -> broken(HowdahException.from(error, connection.name(index))));
        }
    }

    /** Handles a broken stream. The next stream resends its unanswered requests first. */
    private void broken(HowdahException error) {
        if (link != null) {
            link.cancel();
            link = null;
        }
        broken = true;
        var unanswered = new ArrayList<>(sent.values());
        sent.clear();
        if (!error.isRefusal() && unanswered.stream().mapToLong(Batch::cost).sum() > UnarySettler.THRESHOLD) {
            // A proxy may have cut the stream because it limits the bytes of a request. So these requests are sent by
            // unary calls, which succeed or fail with HTTP 413.
            busy = true;
            broker++;
            connection.background.execute(() -> callEach(unanswered));
            return;
        }
        for (int last = unanswered.size() - 1; last >= 0; last--) {
            resend.addFirst(unanswered.get(last));
        }
        busy = true;
        if (error.isRefusal()) {
            // The broker refuses either the whole stream or one request. Smaller requests on new streams show which.
            var refused = new ArrayList<Batch>();
            for (var batch = next(); batch != null; batch = next()) {
                refused.add(batch);
            }
            refused.forEach(batch -> failed(batch, error));
        }
        broker += error.isRefusal() ? 0 : 1;
        connection.timer.schedule(() -> locked(() -> busy = false), backoff.next(), TimeUnit.NANOSECONDS);
    }

    /** Sends the unanswered requests of a broken stream by unary calls. Then the next stream may open. */
    private void callEach(List<Batch> unanswered) {
        for (var batch : unanswered) {
            var request = EnqueueJobsRequest.newBuilder().setRequestKey(batch.key).addAllJobs(batch.jobs()).build();
            try {
                var answer = connection.call(used -> address = used,
                    channel -> JobServiceGrpc.newBlockingStub(channel).enqueueJobs(request));
                locked(() -> stored(batch, answer.getJobsList()));
            } catch (RuntimeException thrown) {
                locked(() -> failed(batch, HowdahException.from(thrown, address.toString())));
            }
        }
        locked(() -> busy = false);
    }

    private void stored(Batch batch, List<EnqueuedJob> jobs) {
        backoff.reset();
        int first = 0;
        for (var submission : batch.submissions) {
            var results = HowdahClient.Enqueued.from(submission.jobs, jobs.subList(first,
                first += submission.jobs.size()), true);
            complete(submission, () -> submission.answer.complete(results));
        }
    }

    private void complete(Submission submission, Runnable answer) {
        budget.release(submission.cost);
        completions.add(answer);
    }

    private void failed(Batch batch, HowdahException error) {
        if (error.isTransient() && batch.isWanted()) {
            connection.timer.schedule(() -> locked(() -> resend.add(batch)), backoff.next(), TimeUnit.NANOSECONDS);
            return;
        }
        maxBatchBytes = error.isTooLarge() ? batch.cost() / 2 : maxBatchBytes;
        var submissions = batch.submissions;
        var job = JOB.matcher(error.field());
        int blamed = job.matches() ? Integer.parseInt(job.group(1)) : -1, first = 0;
        for (int index = 0; index < submissions.size() && blamed >= 0; index++) {
            var submission = submissions.get(index);
            if (blamed < first + submission.jobs.size()) {
                // The broker has stored no job of the request. Only the submission with the refused job fails.
                var rebased = error.rebased("jobs[" + blamed + "]", "jobs[" + (blamed - first) + "]");
                complete(submission, () -> submission.answer.completeExceptionally(rebased));
                requeue(submissions.subList(index + 1, submissions.size()));
                requeue(submissions.subList(0, index));
                return;
            }
            first += submission.jobs.size();
        }
        if (submissions.size() > 1 && !error.isTransient() && !CALLER_ERRORS.contains(error.code())) {
            requeue(submissions.subList(submissions.size() / 2, submissions.size()));
            requeue(submissions.subList(0, submissions.size() / 2));
        } else {
            submissions.forEach(each -> complete(each, () -> each.answer.completeExceptionally(error)));
        }
    }

    private void requeue(List<Submission> submissions) {
        if (!submissions.isEmpty()) {
            resend.addFirst(new Batch(submissions));
        }
    }

    /** Drops queued jobs whose callers no longer wait. Closes a stream whose broker has not answered in time. */
    private void tick() {
        queue.removeIf(submission -> submission.answer.isDone() && releaseBudget(submission));
        resend.removeIf(batch -> !batch.isWanted() && batch.submissions.stream().allMatch(this::releaseBudget));
        if (!sent.isEmpty() && System.nanoTime() - sentAt > connection.answerTimeout()) {
            broken(HowdahException.broken("the broker does not answer enqueue requests"));
        }
    }

    private boolean releaseBudget(Submission submission) {
        budget.release(submission.cost);
        return true;
    }

    /** One {@code StreamEnqueue} stream. */
    private final class Link implements ClientResponseObserver<StreamEnqueueRequest, StreamEnqueueResponse> {
        private final ManagedChannel channel;
        private ClientCallStreamObserver<StreamEnqueueRequest> call;

        /**
         * Makes a stream. {@code channel} is used by this stream alone; null if the stream uses the client's shared
         * channel.
         */
        Link(ManagedChannel channel) {
            this.channel = channel;
        }

        void cancel() {
            call.cancel("the producer has left the stream", null);
            close();
        }

        void close() {
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
                    failed(batch, HowdahException.from(answer.getError()));
                } else if (batch != null) {
                    stored(batch, answer.getJobsList());
                }
            });
        }

        @Override
        public void onError(Throwable error) {
            locked(() -> {
                boolean done = closed && sent.isEmpty() && resend.isEmpty() && queue.isEmpty();
                if (link == this && !done) {
                    broken(HowdahException.from(error, connection.name(broker)));
                }
            });
        }

        @Override
        public void onCompleted() {
            onError(HowdahException.broken("the broker closed the stream"));
        }
    }
}
