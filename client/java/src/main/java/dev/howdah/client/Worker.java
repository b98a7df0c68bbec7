package dev.howdah.client;

import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Runs jobs over one stream, which is opened again when it breaks, at whichever broker answers.
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
 * <p>Handlers run on virtual threads where Java has them (21 and later), otherwise on a pool of threads. The outcome of
 * a handler is sent until the broker confirms it.
 */
public final class Worker implements AutoCloseable {
    final Session session;

    private Worker(Builder builder) {
        session = new Session(builder);
        session.connect();
    }

    /**
     * The code for jobs of a type.
     *
     * @param <T> the type of their payloads
     */
    @FunctionalInterface
    public interface Handler<T> {
        /**
         * Runs a job. Any exception is a failure: the job is tried again, unless it is {@link Job.Outcome#asException}.
         *
         * @param payload of the job
         * @param job everything else
         * @return how the attempt ended
         * @throws Exception to fail
         */
        Job.Outcome handle(T payload, Job job) throws Exception;
    }

    /**
     * Counters of a worker. Outcomes count when the broker has confirmed them.
     *
     * @param received jobs
     * @param succeeded attempts
     * @param failed attempts, with or without another one
     * @param snoozed attempts
     * @param released jobs that have not run here
     * @param lost leases that ended while the job ran or before its outcome was stored
     * @param cancelled jobs that the broker took back while they ran: cancelled, or past their deadline
     * @param unconfirmed outcomes when the worker ended
     * @param reconnects streams after the first
     */
    public record Report(long received, long succeeded, long failed, long snoozed, long released, long lost,
            long cancelled, long unconfirmed, long reconnects) {}

    /** {@return the counters} */
    public Report report() { return session.report(); }

    /** {@return completes when a stream is open for the first time, or with the error that ends the worker} */
    public CompletableFuture<Void> connected() { return session.connected.copy(); }

    /** {@return completes when the worker has ended; with an error if the broker refuses it} */
    public CompletableFuture<Report> ended() { return session.ended.copy(); }

    /**
     * Begins to stop: takes no more jobs, waits for handlers, then interrupts them; see {@link Builder#stopTimeout}.
     */
    public void stop() { session.stop(); }

    /** Ends now. Jobs that run are released if that is still possible; their attempts may count. */
    public void abort() { session.abort(); }

    /**
     * Changes a concurrency, and the window with it.
     *
     * @param taskType with a handler
     * @param jobs 0 pauses the type
     */
    public void concurrency(String taskType, int jobs) { session.resize(taskType, jobs); }

    /**
     * Waits until the worker has ended.
     *
     * @return its counters
     */
    public Report join() {
        try {
            return session.ended.join();
        } catch (RuntimeException error) {
            throw HowdahException.of(error, "");
        }
    }

    /**
     * Stops when the program is told to end (SIGTERM, SIGINT). The program waits for that, and a second for the calling
     * thread to end too, so that what follows {@link #join} in {@code main} is done.
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
            } catch (InterruptedException hurried) {
                Thread.currentThread().interrupt();
            }
        }, "howdah-stop"));
        return this;
    }

    /** Stops, and waits for the end. */
    @Override
    public void close() {
        stop();
        join();
    }

    record Type(String name, Middleware.Handle handler, int concurrency, int window) {}

    /** Sets handlers and limits of a worker. */
    public static final class Builder {
        private record Entry(Middleware.Handle handler, Integer concurrency) {}

        final HowdahClient client;
        final Map<String, String> labels = new LinkedHashMap<>(Map.of("client",
            "howdah-client-java/" + HowdahClient.VERSION));
        private final Map<String, Entry> handlers = new TreeMap<>();
        private int concurrency = 16;
        private int window;
        long windowBytes;
        int maxMessageBytes;
        long maxJobs = Long.MAX_VALUE;
        Duration stopTimeout = Duration.ofSeconds(30);
        ExecutorService executor;

        Builder(HowdahClient client) {
            this.client = client;
            maxMessageBytes = client.options.maxMessageBytes;
        }

        /**
         * {@return this}
         *
         * @param <T> the payload
         * @param taskType to handle
         * @param payload its type
         * @param handler the code
         */
        public <T> Builder handle(String taskType, Class<T> payload, Handler<? super T> handler) {
            return handle(taskType, null, payload, handler);
        }

        /**
         * Handles a type with a concurrency of its own.
         *
         * @param <T> the payload
         * @param taskType to handle
         * @param concurrency how many run at once; null: that of {@link #concurrency(int)}
         * @param payload as for {@link Job#payload}
         * @param handler the code
         * @return this
         */
        public <T> Builder handle(String taskType, Integer concurrency, Class<T> payload, Handler<? super T> handler) {
            handlers.put(taskType, new Entry(job -> handler.handle(read(job, payload), job), concurrency));
            return this;
        }

        private static <T> T read(Job job, Class<T> type) {
            try {
                return job.payload(type);
            } catch (IllegalArgumentException error) {
                // It would not be one the next time either.
                throw Job.Outcome.fatal("the payload is " + error.getMessage()).asException();
            }
        }

        /**
         * {@return this}
         *
         * @param jobs of each type that run at once, by default 16; this is also the window
         */
        public Builder concurrency(int jobs) { concurrency = jobs; return this; }

        /**
         * {@return this}
         *
         * @param jobs of each type to hold at once, if more than run: this hides the way to the broker
         */
        public Builder window(int jobs) { window = jobs; return this; }

        /**
         * {@return this}
         *
         * @param bytes of payloads and headers of each type to hold at once, by default 64 MiB
         */
        public Builder windowBytes(long bytes) { windowBytes = bytes; return this; }

        /**
         * {@return this}
         *
         * @param bytes of the largest message, by default that of the client; larger jobs go elsewhere
         */
        public Builder maxMessageBytes(int bytes) { maxMessageBytes = bytes; return this; }

        /**
         * {@return this}
         *
         * @param name of a label for people: at most 15
         * @param value of it
         */
        public Builder label(String name, String value) { labels.put(name, value); return this; }

        /**
         * {@return this}
         *
         * @param jobs after which the worker stops by itself
         */
        public Builder maxJobs(long jobs) { maxJobs = jobs; return this; }

        /**
         * {@return this}
         *
         * @param timeout how long a stop waits before it interrupts handlers, by default 30 s
         */
        public Builder stopTimeout(Duration timeout) { stopTimeout = timeout; return this; }

        /**
         * {@return this}
         *
         * @param executor for handlers, with as many threads as jobs run at once; it is not shut down
         */
        public Builder executor(ExecutorService executor) { this.executor = executor; return this; }

        /** {@return a worker, which connects in the background and keeps trying while no broker answers} */
        public Worker start() {
            return new Worker(this);
        }

        Map<String, Type> types() {
            var types = new LinkedHashMap<String, Type>();
            handlers.forEach((name, entry) -> {
                int jobs = entry.concurrency == null ? concurrency : entry.concurrency;
                types.put(name, new Type(name, wrapped(entry.handler), jobs, window == 0 ? jobs : window));
            });
            return types;
        }

        private Middleware.Handle wrapped(Middleware.Handle handler) {
            var next = handler;
            for (int index = client.options.middleware.size() - 1; index >= 0; index--) {
                var outer = client.options.middleware.get(index);
                var inner = next;
                next = job -> outer.handle(job, inner);
            }
            return next;
        }

        /** Virtual threads where Java has them. Otherwise threads; no more than the concurrency are in use. */
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
