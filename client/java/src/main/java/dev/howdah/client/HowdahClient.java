package dev.howdah.client;

import dev.howdah.v1.CancelJobsRequest;
import dev.howdah.v1.EnqueueJobsRequest;
import dev.howdah.v1.EnqueueOutcome;
import dev.howdah.v1.EnqueuedJob;
import dev.howdah.v1.GetJobRequest;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.WaitJobsRequest;
import io.grpc.Channel;
import io.grpc.Deadline;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractBlockingStub;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * A client of one or more brokers of one database. It may be used by many threads; make one and keep it.
 *
 * <pre>{@code
 * try (var client = HowdahClient.connect("http://127.0.0.1:7432")) {
 *     client.enqueue(NewJob.of("email.send", Map.of("to", "ann@example.com")));
 * }
 * }</pre>
 *
 * <p>When an enqueue returns, the job is committed, and it is never stored twice. Errors are {@link HowdahException}s.
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

    /** {@return a client with the settings of the environment: {@code HOWDAH_SERVER}, {@code HOWDAH_TOKEN}, …} */
    public static HowdahClient connect() {
        return builder().environment(System.getenv()).connect();
    }

    /**
     * {@return a client}
     *
     * @param addresses {@code host:port} or URLs with {@code http://} or {@code https://}
     */
    public static HowdahClient connect(String... addresses) {
        return builder().addresses(addresses).connect();
    }

    /** {@return a builder, for more settings than addresses} */
    public static HowdahClientBuilder builder() {
        return new HowdahClientBuilder();
    }

    /**
     * The same client for one store of a broker that serves several: its calls are about that store alone, and its jobs go
     * there. It shares the connections of this one, so only one of them is closed. Workers get jobs from all stores,
     * whatever this is.
     *
     * @param name of the store
     * @return its client
     */
    public HowdahClient inStore(String name) {
        return new HowdahClient(this, name);
    }

    /**
     * What an enqueue did.
     *
     * @param id of the job
     * @param isNew whether it was stored by this call
     * @param outcome why
     */
    public record Enqueued(long id, boolean isNew, EnqueueOutcome outcome) {
        /** With a key of our own, a job that was there was stored by an earlier try of the same call: it is new. */
        static List<Enqueued> of(List<dev.howdah.v1.NewJob> jobs, List<EnqueuedJob> answers, boolean own) {
            return IntStream.range(0, jobs.size()).mapToObj(index -> {
                var job = answers.get(index);
                boolean isNew = job.getIsNew() || own && jobs.get(index).getKey().isEmpty();
                return new Enqueued(job.getId(), isNew, isNew && !job.getIsNew()
                    ? EnqueueOutcome.ENQUEUE_OUTCOME_NEW : job.getOutcome());
            }).toList();
        }
    }

    /**
     * Enqueues a job.
     *
     * @param job to enqueue
     * @return its id
     */
    public Enqueued enqueue(NewJob job) {
        return enqueueAll(List.of(job)).get(0);
    }

    /**
     * Enqueues jobs: all of them or none.
     *
     * @param jobs at most 10,000
     * @return one for each, in order
     */
    public List<Enqueued> enqueueAll(List<NewJob> jobs) {
        return enqueueAll(jobs, newRequestKey(), null);
    }

    /**
     * The same with a key of the caller, which is safe to repeat for 24 hours from anywhere.
     *
     * @param jobs at most 10,000
     * @param requestKey finds the same request of before; with other jobs, the code is {@code ALREADY_EXISTS}
     * @return one for each, in order
     */
    public List<Enqueued> enqueueAll(List<NewJob> jobs, String requestKey) {
        return enqueueAll(jobs, requestKey, requestKey);
    }

    private List<Enqueued> enqueueAll(List<NewJob> jobs, String key, String keyOfCaller) {
        var broker = new AtomicReference<>(connection.address(connection.current()));
        Middleware.Enqueue last = ready ->
            CompletableFuture.completedFuture(send(ready, key, keyOfCaller == null, broker::set));
        return join(wrapped(last, broker::get, keyOfCaller).enqueue(jobs));
    }

    private static <T> T join(CompletableFuture<T> answer) {
        try {
            return answer.join();
        } catch (CompletionException error) {
            throw HowdahException.of(error, "");
        }
    }

    private List<Enqueued> send(List<NewJob> jobs, String requestKey, boolean own, Consumer<URI> used) {
        if (jobs.isEmpty()) {
            return List.of();
        }
        var request = EnqueueJobsRequest.newBuilder().setRequestKey(requestKey);
        jobs.forEach(job -> request.addJobs(job.encoded(options.json)));
        var answer = connection.call(used,
            channel -> JobServiceGrpc.newBlockingStub(channel).enqueueJobs(request.build()));
        return Enqueued.of(request.getJobsList(), answer.getJobsList(), own);
    }

    /** The rest of an enqueue, which knows the broker that it uses: after a retry, the last one. */
    record Step(Middleware.Enqueue next, Supplier<URI> broker) implements Middleware.Enqueue {
        @Override
        public CompletableFuture<List<Enqueued>> enqueue(List<NewJob> jobs) {
            return next.enqueue(jobs);
        }
    }

    Middleware.Enqueue wrapped(Middleware.Enqueue last, Supplier<URI> broker, String requestKey) {
        var next = last;
        for (int index = options.middleware.size() - 1; index >= 0; index--) {
            var outer = options.middleware.get(index);
            var inner = new Step(next, broker);
            next = jobs -> outer.enqueue(jobs, requestKey, inner);
        }
        return next;
    }

    /** {@return a key for {@link #enqueueAll(List, String)}: the time, and 80 random bits} */
    public static String newRequestKey() {
        // The time first, so that keys of the same minute are neighbours in the index.
        var random = ThreadLocalRandom.current();
        return String.format("%012x%016x%04x", System.currentTimeMillis(), random.nextLong(), random.nextInt(1 << 16));
    }

    /** {@return a pipeline, which enqueues from many threads over one stream. Keep it, and close it} */
    public Producer producer() {
        return new Producer(this, new Producer.Limits());
    }

    /**
     * {@return a pipeline}
     *
     * @param limits of it
     */
    public Producer producer(Producer.Limits limits) {
        return new Producer(this, limits);
    }

    /** {@return a builder of a worker. Each has a stream of its own} */
    public Worker.Builder worker() {
        return new Worker.Builder(this);
    }

    /**
     * {@return the job when it has ended, with its result}
     *
     * @param id of it
     * @param timeout the longest wait: a day
     */
    public dev.howdah.v1.Job await(long id, Duration timeout) {
        var ended = new ArrayList<dev.howdah.v1.Job>();
        awaitAll(List.of(id), timeout, ended::add);
        return ended.get(0);
    }

    /**
     * Waits until jobs have ended, also while brokers are restarted.
     *
     * @param ids at most 10,000
     * @param timeout the longest wait; then the code is {@code DEADLINE_EXCEEDED}
     * @param ended called once for each, with its result, as it ends
     */
    public void awaitAll(Collection<Long> ids, Duration timeout, Consumer<dev.howdah.v1.Job> ended) {
        var left = new LinkedHashSet<>(ids);
        var end = Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
        // The broker keeps the time; it may answer a little later.
        var limit = timeout.plusSeconds(5);
        while (!left.isEmpty()) {
            connection.call(limit, limit, true, channel -> waitOnce(left, end, ended, channel));
        }
    }

    private static Void waitOnce(Collection<Long> left, Deadline end, Consumer<dev.howdah.v1.Job> ended,
            Channel channel) {
        var wait = Duration.ofNanos(Math.max(0, end.timeRemaining(TimeUnit.NANOSECONDS)));
        var request = WaitJobsRequest.newBuilder().addAllIds(left).setTimeout(NewJob.wire(wait)).build();
        try {
            JobServiceGrpc.newBlockingStub(channel).waitJobs(request).forEachRemaining(answer -> {
                left.remove(answer.getJob().getId());
                ended.accept(answer.getJob());
            });
            return null;
        } catch (StatusRuntimeException error) {
            if (end.isExpired()) {
                throw HowdahException.of(error, "");
            }
            throw error;
        }
    }

    /**
     * {@return the result of an ended job}
     *
     * @param <T> its type
     * @param job as it was returned
     * @param type as for payloads
     */
    public <T> T result(dev.howdah.v1.Job job, Class<T> type) {
        return Job.decode(job.getResult(), type, options.json);
    }

    /**
     * Calls an operator's method, within the request timeout, on the next broker if one does not answer: {@code
     * client.call(JobServiceGrpc::newBlockingStub, jobs -> jobs.listJobs(request))}.
     *
     * @param <S> the generated stub
     * @param <R> the answer
     * @param service makes the stub: all services of the protocol are in {@code dev.howdah.v1}
     * @param method called again after errors that pass, so it should be a read, or safe to repeat
     * @return the answer
     */
    public <S extends AbstractBlockingStub<S>, R> R call(Function<Channel, S> service, Function<S, R> method) {
        return connection.call(options.requestTimeout, Connection.LONGEST_TRY, false,
            channel -> method.apply(service.apply(channel)));
    }

    /**
     * {@return a job with payload, result and failures; empty if it is unknown}
     *
     * @param id of it
     */
    public Optional<dev.howdah.v1.Job> job(long id) {
        try {
            var request = GetJobRequest.newBuilder().setId(id).build();
            return Optional.of(call(JobServiceGrpc::newBlockingStub, jobs -> jobs.getJob(request)).getJob());
        } catch (HowdahException error) {
            if (error.code() == Status.Code.NOT_FOUND) {
                return Optional.empty();
            }
            throw error;
        }
    }

    /**
     * Cancels jobs, also those that run.
     *
     * @param ids at most 10,000
     * @return those that this call has cancelled
     */
    public List<Long> cancel(Collection<Long> ids) {
        var request = CancelJobsRequest.newBuilder().addAllIds(ids).build();
        return call(JobServiceGrpc::newBlockingStub, jobs -> jobs.cancelJobs(request)).getCancelledIdsList();
    }

    /** {@return the current connection, for generated stubs: with token and limits, without retries} */
    public Channel channel() {
        return connection.channel();
    }

    /** Closes the connections. Close workers and pipelines before. */
    @Override
    public void close() {
        connection.close();
    }
}
