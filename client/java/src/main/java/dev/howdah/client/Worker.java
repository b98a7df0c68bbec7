package dev.howdah.client;

import dev.howdah.v1.Subscribe;
import dev.howdah.v1.Window;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Runs jobs over one stream. When the stream breaks, the worker resumes at any broker that answers.
 *
 * <pre>{@code
 * var worker = client.worker()
 *     .handle("email.send", Email.class, (email, job) -> {
 *         send(email);
 *         return Outcome.ok();
 *     })
 *     .start();
 * worker.join(); // until SIGTERM, with stopOnShutdown()
 * }</pre>
 *
 * <p>Handlers run on virtual threads where Java has them (21 and later), otherwise on a pool of threads. The worker
 * resends the outcome of a handler until the broker confirms it.
 */
public final class Worker implements AutoCloseable {
    final Session session;

    private Worker(Builder builder) {
        session = new Session(builder);
        session.connect();
    }

    /**
     * A handler, which runs the jobs of a task type.
     *
     * @param <T> type of the payloads
     */
    @FunctionalInterface
    public interface Handler<T> {
        /**
         * Runs a job. An exception fails the attempt, and the job is retried by its retry policy. An exception made by
         * {@link Job.Outcome#asException} has the effect of its outcome.
         *
         * @param payload payload of the job
         * @param job the job, with its other properties
         * @return the outcome of the attempt
         * @throws Exception to fail the attempt
         */
        Job.Outcome handle(T payload, Job job) throws Exception;
    }

    /**
     * Counters of a worker. Outcomes count when the broker has confirmed them.
     *
     * @param received jobs received
     * @param succeeded attempts that succeeded
     * @param failed attempts that failed, with or without a retry
     * @param snoozed attempts that were snoozed
     * @param released jobs that were released, by their handlers or because the worker stopped
     * @param lost leases that were lost before the outcome was stored
     * @param cancelled jobs that were cancelled or passed their deadline before they ended
     * @param unconfirmed outcomes that were not confirmed when the worker ended
     * @param reconnects streams opened after the first one
     */
    public record Report(long received, long succeeded, long failed, long snoozed, long released, long lost,
            long cancelled, long unconfirmed, long reconnects) {}

    /** {@return the current counters} */
    public Report report() { return session.report(); }

    /**
     * {@return a future that completes when the worker's first stream is open, or with the error that ends the worker}
     */
    public CompletableFuture<Void> connected() { return session.connected.copy(); }

    /** {@return a future that completes when the worker has ended, or with an error if the broker refuses the worker} */
    public CompletableFuture<Report> ended() { return session.ended.copy(); }

    /**
     * Begins to stop, and returns at once. The worker takes no more jobs, and waits for handlers. After the stop timeout
     * it interrupts them; see {@link Builder#stopTimeout}.
     */
    public void stop() { session.stop(); }

    /** Ends the worker at once, and interrupts its handlers. Their outcomes are not sent; their attempts may count. */
    public void abort() { session.abort(); }

    /**
     * Changes the concurrency and the window of a task type.
     *
     * @param taskType task type with a handler
     * @param jobs number of concurrent handlers, at most the worker's; 0 pauses the task type in this worker
     */
    public void concurrency(String taskType, int jobs) {
        HowdahException.checkLeast("jobs", jobs, 0);
        session.resize(taskType, jobs);
    }

    /**
     * Waits until the worker has ended. Fails if the broker refuses the worker.
     *
     * @return the counters of the worker
     */
    public Report join() {
        try {
            return session.ended.join();
        } catch (RuntimeException error) {
            throw HowdahException.from(error, "");
        }
    }

    /**
     * Stops the worker when the JVM shuts down (SIGTERM, SIGINT). The shutdown waits until the worker has ended. It also
     * waits at most one second for the calling thread, so that {@code main} can run the code after {@link #join}.
     *
     * @return this
     */
    public Worker stopOnShutdown() {
        var caller = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop();
            session.ended.exceptionally(error -> null).join();
            try {
                caller.join(TimeUnit.SECONDS.toMillis(1));
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }, "howdah-stop"));
        return this;
    }

    /** Stops the worker, and waits until it has ended. */
    @Override
    public void close() {
        stop();
        join();
    }

    record Type(String name, Middleware.Handle handler, int concurrency, int window) {}

    /** Builds a worker from handlers and limits. */
    public static final class Builder {
        private record Entry(Middleware.Handle handler, Integer concurrency) {}

        final HowdahClient client;
        final Map<String, String> labels = new LinkedHashMap<>(Map.of("client",
            "howdah-client-java/" + HowdahClient.VERSION));
        private final Map<String, Entry> handlers = new TreeMap<>();
        int concurrency = 16;
        private int window;
        long windowBytes;
        int maxMessageBytes;
        long maxJobs = Long.MAX_VALUE;
        Duration stopTimeout = Duration.ofSeconds(30);
        Duration liveness;
        ExecutorService executor;

        Builder(HowdahClient client) {
            this.client = client;
            maxMessageBytes = client.options.maxMessageBytes;
        }

        /**
         * {@return this} Sets the handler of a task type.
         *
         * @param <T> type of the payload
         * @param taskType task type to handle
         * @param payload type of the payload, as for {@link Job#payload}
         * @param handler handler of the task type
         */
        public <T> Builder handle(String taskType, Class<T> payload, Handler<? super T> handler) {
            return handle(taskType, null, payload, handler);
        }

        /**
         * Sets the handler of a task type, with a lower concurrency. A second handler of the type is an error.
         *
         * @param <T> type of the payload
         * @param taskType task type to handle
         * @param concurrency number of concurrent handlers of the type, at most the worker's; null: the worker's
         * @param payload type of the payload, as for {@link Job#payload}
         * @param handler handler of the task type
         * @return this
         */
        public <T> Builder handle(String taskType, Integer concurrency, Class<T> payload, Handler<? super T> handler) {
            Objects.requireNonNull(handler, "handler");
            if (concurrency != null) {
                HowdahException.checkLeast("concurrency", concurrency, 1);
            }
            var entry = new Entry(job -> handler.handle(read(job, payload), job), concurrency);
            if (handlers.putIfAbsent(taskType, entry) != null) {
                throw HowdahException.invalid("taskType", taskType + " has two handlers: add one for each task type");
            }
            return this;
        }

        private static <T> T read(Job job, Class<T> type) {
            try {
                return job.payload(type);
            } catch (IllegalArgumentException error) {
                // A payload that does not parse would not parse on a retry either.
                throw Job.Outcome.fatal("the payload is " + error.getMessage()).asException();
            }
        }

        /**
         * Sets the number of concurrent handlers, over all task types. It is also the window of each type, so a worker
         * of several types may receive more jobs than it has slots. A job that has waited for a slot for a second is
         * released for another worker, and the windows shrink to the free slots for a while.
         *
         * @param jobs number of concurrent handlers, by default 16
         * @return this
         */
        public Builder concurrency(int jobs) {
            HowdahException.checkLeast("concurrency", jobs, 1);
            concurrency = jobs;
            return this;
        }

        /**
         * {@return this}
         *
         * @param jobs number of jobs of each task type that the worker holds at once (prefetch), by default its
         *     concurrency. A larger window hides the round trip to the broker when jobs are short
         */
        public Builder window(int jobs) {
            HowdahException.checkLeast("window", jobs, 0);
            window = jobs;
            return this;
        }

        /**
         * {@return this}
         *
         * @param bytes maximum bytes of payloads and headers of each task type that the worker holds at once, by default
         *     64 MiB. A larger job is never sent
         */
        public Builder windowBytes(long bytes) {
            HowdahException.checkLeast("windowBytes", bytes, 0);
            windowBytes = bytes;
            return this;
        }

        /**
         * {@return this}
         *
         * @param bytes the largest message accepted, by default the client's limit. Larger jobs go to other workers
         */
        public Builder maxMessageBytes(int bytes) {
            HowdahException.checkLeast("maxMessageBytes", bytes, 1);
            maxMessageBytes = bytes;
            return this;
        }

        /**
         * {@return this}
         *
         * @param name name of a label for operators, such as host or version. At most 15 labels
         * @param value value of the label, at most 200 bytes
         */
        public Builder label(String name, String value) { labels.put(name, value); return this; }

        /**
         * {@return this}
         *
         * @param jobs number of jobs after which the worker stops
         */
        public Builder maxJobs(long jobs) {
            HowdahException.checkLeast("maxJobs", jobs, 1);
            maxJobs = jobs;
            return this;
        }

        /**
         * {@return this}
         *
         * @param timeout time that a stop waits for handlers before it interrupts them, by default 30 s. A second later,
         *     the jobs of handlers that still run are released
         */
        public Builder stopTimeout(Duration timeout) {
            stopTimeout = HowdahException.notNegative("stopTimeout", timeout);
            return this;
        }

        /**
         * {@return this}
         *
         * @param liveness silence after which the broker counts the worker as lost, 10 s to 1 h; by default the broker's
         *     setting, 60 s. A thread of gRPC answers the broker's heartbeat, also while handlers run
         */
        public Builder liveness(Duration liveness) { this.liveness = liveness; return this; }

        /**
         * {@return this}
         *
         * @param executor executor for handlers, with as many threads as concurrent handlers. The worker does not shut
         *     it down
         */
        public Builder executor(ExecutorService executor) { this.executor = executor; return this; }

        /** {@return a worker, which connects in the background and keeps retrying while no broker answers} */
        public Worker start() {
            if (handlers.isEmpty()) {
                throw HowdahException.invalid("handle", "the worker has no handlers: add one before it starts");
            }
            var texts = Subscribe.newBuilder().putAllLabels(labels);
            handlers.keySet().forEach(name -> texts.addWindows(Window.newBuilder().setTaskType(name)));
            Texts.check(texts.build(), "");
            return new Worker(this);
        }

        Map<String, Type> types() {
            var types = new LinkedHashMap<String, Type>();
            handlers.forEach((name, entry) -> {
                int jobs = entry.concurrency == null ? concurrency : Math.min(concurrency, entry.concurrency);
                types.put(name, new Type(name, wrap(entry.handler), jobs, window == 0 ? jobs : window));
            });
            return types;
        }

        private Middleware.Handle wrap(Middleware.Handle handler) {
            var next = handler;
            for (int index = client.options.middleware.size() - 1; index >= 0; index--) {
                var outer = client.options.middleware.get(index);
                var inner = next;
                next = job -> outer.handle(job, inner);
            }
            return next;
        }

        /** Returns an executor of virtual threads where Java has them, or else of pooled threads without a limit. */
        static ExecutorService threads() {
            try {
                return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
            } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException older) {
                ThreadFactory daemon = task -> {
                    var thread = new Thread(task, "howdah-handler");
                    thread.setDaemon(true);
                    return thread;
                };
                return new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(),
                    daemon);
            }
        }
    }
}
