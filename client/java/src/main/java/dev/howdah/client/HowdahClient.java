package dev.howdah.client;

import dev.howdah.v1.CancelJobsRequest;
import dev.howdah.v1.DiscardJobsRequest;
import dev.howdah.v1.EnqueueJobsRequest;
import dev.howdah.v1.EnqueueOutcome;
import dev.howdah.v1.EnqueuedJob;
import dev.howdah.v1.ExplainJobRequest;
import dev.howdah.v1.ExplainJobResponse;
import dev.howdah.v1.GetJobRequest;
import dev.howdah.v1.JobFilter;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.JobState;
import dev.howdah.v1.ListJobsRequest;
import dev.howdah.v1.RerunJob;
import dev.howdah.v1.RerunJobsRequest;
import dev.howdah.v1.RetryJobsRequest;
import io.grpc.Channel;
import io.grpc.Status;
import io.grpc.stub.AbstractBlockingStub;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * A client of one or more brokers of one database. It is thread-safe; create one and reuse it.
 *
 * <pre>{@code
 * try (var client = HowdahClient.connect("http://127.0.0.1:7432")) {
 *     client.enqueue(NewJob.of("email.send", Map.of("to", "ann@example.com")));
 * }
 * }</pre>
 *
 * <p>When an enqueue returns, the job is committed exactly once. Errors are {@link HowdahException}s.
 */
public final class HowdahClient implements AutoCloseable {
    static final String VERSION = "0.1.0";

    final Connection connection;
    final HowdahClientBuilder options;

    HowdahClient(HowdahClientBuilder options) {
        this.options = options;
        this.connection = new Connection(options);
    }

    private HowdahClient(HowdahClient shared, String store) {
        options = shared.options;
        connection = shared.connection.inStore(store);
    }

    /** {@return a client with settings from the environment: {@code HOWDAH_SERVER}, {@code HOWDAH_TOKEN}, …} */
    public static HowdahClient connect() {
        return builder().environment(System.getenv()).connect();
    }

    /**
     * {@return a client of the brokers with these addresses}
     *
     * @param addresses {@code host:port}, {@code http://host:port} or {@code https://host:port}
     */
    public static HowdahClient connect(String... addresses) {
        return builder().addresses(addresses).connect();
    }

    /** {@return a builder with all settings} */
    public static HowdahClientBuilder builder() {
        return new HowdahClientBuilder();
    }

    /**
     * Returns a client for one of the stores that a broker serves. Its calls, jobs and workers use only that store. A
     * worker of a client without a store gets jobs of all stores. The new client shares the connections of this one, so
     * close only one of the two.
     *
     * @param name name of the store
     * @return the client for the store
     */
    public HowdahClient inStore(String name) {
        return new HowdahClient(this, name);
    }

    /**
     * The result of enqueueing one job.
     *
     * @param id id of the job
     * @param isNew whether this call stored the job
     * @param outcome effect of the enqueue, such as new, or kept because another job holds the key
     */
    public record Enqueued(long id, boolean isNew, EnqueueOutcome outcome) {
        /**
         * Converts the broker's answers to an enqueue. With {@code ownKey}, the client made the unique request key. A
         * job without a job key then counts as new, because only an earlier attempt of the same call can have stored
         * it.
         */
        static List<Enqueued> from(List<dev.howdah.v1.NewJob> jobs, List<EnqueuedJob> answers, boolean ownKey) {
            return IntStream.range(0, jobs.size()).mapToObj(index -> {
                var job = answers.get(index);
                boolean isNew = job.getIsNew() || ownKey && jobs.get(index).getKey().isEmpty();
                return new Enqueued(job.getId(), isNew, isNew && !job.getIsNew()
                    ? EnqueueOutcome.ENQUEUE_OUTCOME_NEW : job.getOutcome());
            }).toList();
        }
    }

    /**
     * Enqueues a job. When this returns, the job is committed. If no broker answers, the client retries until the
     * request timeout, with one request key, so that nothing is stored twice.
     *
     * @param job job to enqueue
     * @return the id of the job, and whether it is new
     */
    public Enqueued enqueue(NewJob job) {
        return enqueueAll(List.of(job)).get(0);
    }

    /**
     * Enqueues jobs in one transaction: all of them or none. Retries like {@link #enqueue}.
     *
     * @param jobs at most 10,000 jobs
     * @return a result for each job, in order
     */
    public List<Enqueued> enqueueAll(List<NewJob> jobs) {
        return enqueueAll(jobs, newRequestKey(), null);
    }

    /**
     * Enqueues jobs with the caller's request key, which makes the call idempotent for 24 hours, from any process. The
     * same key with the same jobs returns the same ids.
     *
     * @param jobs at most 10,000 jobs
     * @param requestKey key of the request; a repetition with other jobs fails with the code {@code ALREADY_EXISTS}
     * @return a result for each job, in order
     */
    public List<Enqueued> enqueueAll(List<NewJob> jobs, String requestKey) {
        return enqueueAll(jobs, requestKey, requestKey);
    }

    private List<Enqueued> enqueueAll(List<NewJob> jobs, String key, String callerKey) {
        var broker = new AtomicReference<>(connection.address(connection.current()));
        Middleware.Enqueue send = ready ->
            CompletableFuture.completedFuture(send(ready, key, callerKey == null, broker::set));
        return join(wrap(send, broker::get, callerKey).enqueue(jobs));
    }

    private static <T> T join(CompletableFuture<T> answer) {
        try {
            return answer.join();
        } catch (CompletionException error) {
            throw HowdahException.from(error, "");
        }
    }

    private List<Enqueued> send(List<NewJob> jobs, String requestKey, boolean ownKey, Consumer<URI> used) {
        if (jobs.isEmpty()) {
            return List.of();
        }
        var request = EnqueueJobsRequest.newBuilder().setRequestKey(requestKey);
        jobs.forEach(job -> request.addJobs(job.encoded(options.json)));
        var answer = connection.call(used,
            channel -> JobServiceGrpc.newBlockingStub(channel).enqueueJobs(request.build()));
        return Enqueued.from(request.getJobsList(), answer.getJobsList(), ownKey);
    }

    /** The next step of an enqueue inside a middleware, with the address of the broker that was called last. */
    record Step(Middleware.Enqueue next, Supplier<URI> broker) implements Middleware.Enqueue {
        @Override
        public CompletableFuture<List<Enqueued>> enqueue(List<NewJob> jobs) {
            return next.enqueue(jobs);
        }
    }

    Middleware.Enqueue wrap(Middleware.Enqueue send, Supplier<URI> broker, String requestKey) {
        var next = send;
        for (int index = options.middleware.size() - 1; index >= 0; index--) {
            var outer = options.middleware.get(index);
            var inner = new Step(next, broker);
            next = jobs -> outer.enqueue(jobs, requestKey, inner);
        }
        return next;
    }

    /** {@return a unique key for {@link #enqueueAll(List, String)}, made of the time and 80 random bits} */
    public static String newRequestKey() {
        // The time comes first, so that keys of the same minute are neighbours in the database's index.
        var random = ThreadLocalRandom.current();
        return String.format("%012x%016x%04x", System.currentTimeMillis(), random.nextLong(), random.nextInt(1 << 16));
    }

    /** {@return a producer, which enqueues from many threads over one stream. Reuse it, and close it after use} */
    public Producer producer() {
        return new Producer(this, new Producer.Limits());
    }

    /**
     * {@return a producer with these limits}
     *
     * @param limits limits of the producer
     */
    public Producer producer(Producer.Limits limits) {
        return new Producer(this, limits);
    }

    /** {@return a builder of a worker. Each worker opens a separate stream} */
    public Worker.Builder worker() {
        return new Worker.Builder(this);
    }

    /**
     * {@return the job with its result, as soon as it is finished or dead}
     *
     * @param id id of the job
     * @param timeout time after which the wait fails, at most a day
     */
    public dev.howdah.v1.Job await(long id, Duration timeout) {
        var ended = new ArrayList<dev.howdah.v1.Job>();
        awaitAll(List.of(id), timeout, ended::add);
        return ended.get(0);
    }

    /**
     * Waits until jobs are finished or dead, and continues while brokers restart.
     *
     * @param ids at most 10,000 job ids
     * @param timeout time after which the wait fails with the code {@code DEADLINE_EXCEEDED}
     * @param ended called once for each job when it has ended, with its result
     */
    public void awaitAll(Collection<Long> ids, Duration timeout, Consumer<dev.howdah.v1.Job> ended) {
        new Waiting(connection, ids, timeout, ended).run();
    }

    /**
     * {@return the result of an ended job as a value of a type}
     *
     * @param <T> type of the result
     * @param job job that has ended
     * @param type type of the result, as for {@link Job#payload}
     */
    public <T> T result(dev.howdah.v1.Job job, Class<T> type) {
        return Job.decode(job.getResult(), type, options.json);
    }

    /**
     * Calls a method of a generated stub within the request timeout, such as {@code
     * client.call(JobServiceGrpc::newBlockingStub, jobs -> jobs.listJobs(request))}. Retries at the next broker after
     * transient errors.
     *
     * @param <S> type of the generated stub
     * @param <R> type of the answer
     * @param service function that makes the stub from a channel; all services of the protocol are in {@code
     *     dev.howdah.v1}
     * @param method the call; it must be idempotent, because it may be repeated
     * @return the answer
     */
    public <S extends AbstractBlockingStub<S>, R> R call(Function<Channel, S> service, Function<S, R> method) {
        return connection.call(options.requestTimeout, Connection.ATTEMPT_TIMEOUT, false,
            channel -> method.apply(service.apply(channel)));
    }

    /**
     * {@return a job with payload, result and failures; empty if no job has this id}
     *
     * @param id id of the job
     */
    public Optional<dev.howdah.v1.Job> job(long id) {
        var request = GetJobRequest.newBuilder().setId(id).build();
        return found(() -> call(JobServiceGrpc::newBlockingStub, jobs -> jobs.getJob(request)).getJob());
    }

    /** Returns the answer of a call; empty if the broker answers NOT_FOUND. */
    static <R> Optional<R> found(Supplier<R> call) {
        try {
            return Optional.of(call.get());
        } catch (HowdahException error) {
            if (error.code() == Status.Code.NOT_FOUND) {
                return Optional.empty();
            }
            throw error;
        }
    }

    /**
     * Cancels jobs, including running ones.
     *
     * @param ids at most 10,000 job ids
     * @return the ids of the jobs that this call has cancelled
     */
    public List<Long> cancel(Collection<Long> ids) {
        var request = CancelJobsRequest.newBuilder().addAllIds(ids).build();
        return ids.isEmpty() ? List.of()
            : call(JobServiceGrpc::newBlockingStub, jobs -> jobs.cancelJobs(request)).getCancelledIdsList();
    }

    /**
     * Cancels all unfinished jobs that a filter selects, including running ones. Makes several calls if there are more than
     * 10,000 jobs. If one fails, the earlier ones have taken effect.
     *
     * @param jobs selects the jobs
     * @return the ids of the jobs that this call has cancelled
     */
    public List<Long> cancel(Filter jobs) {
        var request = CancelJobsRequest.newBuilder().setFilter(jobs.message());
        return pages(token -> {
            var page = call(JobServiceGrpc::newBlockingStub,
                stub -> stub.cancelJobs(request.setPageToken(token).build()));
            return new Page<>(page.getCancelledIdsList(), page.getNextPageToken());
        }).toList();
    }

    /**
     * Makes dead and scheduled jobs run now.
     *
     * @param ids at most 10,000 job ids
     * @return the ids of the jobs that run again. A dead job whose key another job holds stays dead
     */
    public List<Long> retry(Collection<Long> ids) {
        var request = RetryJobsRequest.newBuilder().setFilter(JobFilter.newBuilder().addAllIds(ids)).build();
        return ids.isEmpty() ? List.of()
            : call(JobServiceGrpc::newBlockingStub, jobs -> jobs.retryJobs(request)).getRetriedIdsList();
    }

    /**
     * Makes the jobs that a filter selects run now: dead jobs, and scheduled jobs that have failed. Makes several calls like
     * {@link #cancel(Filter)}.
     *
     * @param jobs selects the jobs
     * @return the ids of the jobs that run again. A dead job whose key another job holds stays dead
     */
    public List<Long> retry(Filter jobs) {
        var request = RetryJobsRequest.newBuilder().setFilter(jobs.message());
        return pages(token -> {
            var page = call(JobServiceGrpc::newBlockingStub,
                stub -> stub.retryJobs(request.setPageToken(token).build()));
            return new Page<>(page.getRetriedIdsList(), page.getNextPageToken());
        }).toList();
    }

    /**
     * Runs finished jobs again, as new jobs.
     *
     * @param ids at most 10,000 job ids
     * @return for each job the id of the new job, or why the job does not run again
     */
    public List<RerunJob> rerun(Collection<Long> ids) {
        var request = RerunJobsRequest.newBuilder().addAllIds(ids).setRequestKey(UUID.randomUUID().toString()).build();
        return ids.isEmpty() ? List.of()
            : call(JobServiceGrpc::newBlockingStub, jobs -> jobs.rerunJobs(request)).getJobsList();
    }

    /**
     * Moves dead jobs to the history.
     *
     * @param ids at most 10,000 job ids
     * @return the ids of the jobs that were dead
     */
    public List<Long> discard(Collection<Long> ids) {
        var request = DiscardJobsRequest.newBuilder().setFilter(JobFilter.newBuilder().addAllIds(ids)).build();
        return ids.isEmpty() ? List.of()
            : call(JobServiceGrpc::newBlockingStub, jobs -> jobs.discardJobs(request)).getDiscardedIdsList();
    }

    /**
     * Moves all dead jobs that a filter selects to the history. Makes several calls like {@link #cancel(Filter)}.
     *
     * @param jobs selects the jobs
     * @return the ids of the jobs that were dead
     */
    public List<Long> discard(Filter jobs) {
        var request = DiscardJobsRequest.newBuilder().setFilter(jobs.message());
        return pages(token -> {
            var page = call(JobServiceGrpc::newBlockingStub,
                stub -> stub.discardJobs(request.setPageToken(token).build()));
            return new Page<>(page.getDiscardedIdsList(), page.getNextPageToken());
        }).toList();
    }

    /**
     * {@return why a job does not run and what must change first, or how it ended}
     *
     * @param id id of the job
     */
    public ExplainJobResponse explain(long id) {
        var request = ExplainJobRequest.newBuilder().setId(id).build();
        return call(JobServiceGrpc::newBlockingStub, jobs -> jobs.explainJob(request));
    }

    /**
     * {@return the jobs of a task type, without payloads and results. The stream calls the broker page by page}
     *
     * @param taskType task type of the jobs
     * @param state state of the jobs; {@code JOB_STATE_UNSPECIFIED} for all
     */
    public Stream<dev.howdah.v1.Job> list(String taskType, JobState state) {
        var request = ListJobsRequest.newBuilder().setTaskType(taskType).setState(state);
        return pages(token -> {
            var page = call(JobServiceGrpc::newBlockingStub, jobs -> jobs.listJobs(request.setPageToken(token).build()));
            return new Page<>(page.getJobsList(), page.getNextPageToken());
        });
    }

    /**
     * {@return the jobs that a search finds, without payloads and results. The stream calls the broker page by page}
     *
     * @param search the search
     */
    public Stream<dev.howdah.v1.Job> search(Search search) {
        var request = search.request().toBuilder();
        return pages(token -> {
            var page = call(JobServiceGrpc::newBlockingStub,
                jobs -> jobs.searchJobs(request.setPageToken(token).build()));
            return new Page<>(page.getJobsList(), page.getNextPageToken());
        });
    }

    record Page<T>(List<T> items, String next) {}

    /** Returns the items of all pages. {@code get} gets the page with a token; the first and the last token are empty. */
    static <T> Stream<T> pages(Function<String, Page<T>> get) {
        return Stream.iterate(get.apply(""), Objects::nonNull, page -> page.next.isEmpty() ? null : get.apply(page.next))
            .flatMap(page -> page.items.stream());
    }

    /** {@return the calls for schedules} */
    public Schedules schedules() {
        return new Schedules(this);
    }

    /** {@return the calls for task types and their settings} */
    public TaskTypes taskTypes() {
        return new TaskTypes(this);
    }

    /**
     * {@return the channel to the broker in use, for generated stubs. It adds token and deadline to calls, and does not
     * retry}
     */
    public Channel channel() {
        return connection.channel();
    }

    /** Closes the connections. Close workers and producers first. */
    @Override
    public void close() {
        connection.close();
    }
}
