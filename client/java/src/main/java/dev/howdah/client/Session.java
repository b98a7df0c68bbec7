package dev.howdah.client;

import dev.howdah.v1.CancelReason;
import dev.howdah.v1.Subscribe;
import dev.howdah.v1.Welcome;
import dev.howdah.v1.WorkRequest;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The lifecycle of a worker: connect, serve, reconnect, stop. One lock guards all state; code that holds the lock never
 * blocks.
 */
final class Session {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Worker");
    /** Time that handlers have to return after they were interrupted. Then their jobs are released. */
    private static final long HANDLER_TIMEOUT = TimeUnit.SECONDS.toNanos(1);
    /** Time that the broker has to confirm the releases of jobs whose handlers did not end. */
    private static final long RELEASE_TIMEOUT = TimeUnit.SECONDS.toNanos(5);
    /**
     * Age of a stream, in nanoseconds, from which its broker counts as working. If the stream then breaks, the backoff
     * starts again.
     */
    private static final long PROVEN_AGE = TimeUnit.SECONDS.toNanos(30);

    /**
     * Progress of a stop. NO: not stopping. DRAINING: waits for handlers. CANCELLING: handlers were told to end.
     * CLOSING: waits for the broker to confirm releases. NOW: ends at once. ENDED: has ended.
     */
    private enum Stop { NO, DRAINING, CANCELLING, CLOSING, NOW, ENDED }

    final CompletableFuture<Void> connected = new CompletableFuture<>();
    final CompletableFuture<Worker.Report> ended = new CompletableFuture<>();
    private final ReentrantLock lock = new ReentrantLock();
    private final Worker.Builder config;
    private final Connection connection;
    private final ExecutorService executor;
    private final Future<?> ticks;
    private final Jobs jobs;
    private final Connection.Backoff backoff = new Connection.Backoff();
    private long streams;
    private Stream stream;
    private int broker;
    private String id = "";
    private long opened, grace;
    private Long lostAt, stopAt;
    private Stop stop = Stop.NO;
    private HowdahException failure;
    private URI brokerAddress;
    private List<Runnable> afterUnlock = new ArrayList<>();

    Session(Worker.Builder config) {
        this.config = config;
        connection = config.client.connection;
        broker = connection.current();
        brokerAddress = connection.address(broker);
        executor = config.executor == null ? Worker.Builder.threads() : config.executor;
        jobs = new Jobs(this, config, executor);
        ticks = connection.timer.scheduleWithFixedDelay(() -> locked(this::tick), 1, 1, TimeUnit.SECONDS);
    }

    /**
     * Makes a change while holding the lock, then sends messages, and ends the worker if it is done. Returns false if
     * the worker has already ended.
     */
    boolean locked(Runnable change) {
        List<Runnable> ready = List.of();
        lock.lock();
        try {
            if (stop == Stop.ENDED) {
                return false;
            }
            change.run();
            step();
            if (lock.getHoldCount() == 1 && !afterUnlock.isEmpty()) {
                ready = afterUnlock;
                afterUnlock = new ArrayList<>();
            }
            return true;
        } finally {
            lock.unlock();
            ready.forEach(Runnable::run);
        }
    }

    /** Runs an action after the lock is released. */
    void afterUnlock(Runnable action) { afterUnlock.add(action); }

    /** Returns the address of the broker of the current or the last stream. */
    URI brokerAddress() { return brokerAddress; }

    /** Makes a change while holding the lock, unless this stream is no longer the current one. */
    void locked(Stream expected, Runnable change) {
        locked(() -> {
            if (stream == expected) {
                change.run();
            }
        });
    }

    /** Schedules a check of the timers at this time and returns the time. The regular checks are a second apart. */
    Long wakeAt(long time) {
        connection.timer.schedule(() -> locked(this::tick), time - System.nanoTime(), TimeUnit.NANOSECONDS);
        return time;
    }

    static boolean due(Long time) { return time != null && time - System.nanoTime() <= 0; }

    boolean isStopping() { return stop != Stop.NO; }

    Stream stream() { return stream; }

    Jobs jobs() { return jobs; }

    /** Records that the broker has stored an outcome. So the broker works, and the backoff starts again. */
    void stored() { backoff.reset(); }

    String address() { return connection.name(broker); }

    void connect() {
        int index = broker;
        connection.background.execute(() -> {
            try {
                var channel = connection.dial(index);
                boolean used = locked(() -> {
                    stream = new Stream(this, channel);
                    brokerAddress = connection.address(index);
                    stream.start(WorkRequest.newBuilder().setSubscribe(subscribe()), config.maxMessageBytes);
                });
                if (!used) {
                    channel.shutdownNow();
                }
            } catch (RuntimeException error) {
                locked(() -> broken(HowdahException.from(error, connection.name(index))));
            }
        });
    }

    private Subscribe.Builder subscribe() {
        var subscribe = Subscribe.newBuilder().setSessionId(id).addAllHeld(jobs.leases()).putAllLabels(config.labels)
            .setMaxMessageBytes(config.maxMessageBytes).addAllWindows(isStopping() ? List.of() : jobs.windows());
        if (config.liveness != null) {
            subscribe.setLiveness(NewJob.wire(config.liveness));
        }
        return subscribe;
    }

    void welcome(Welcome welcome) {
        // The log line has no session id, because anyone who knows the id could take over the session.
        LOG.log(Level.INFO, "connected to {0}, with {1} leases kept and {2} lost", welcome.getBroker(),
            welcome.getKeptCount(), welcome.getLostCount());
        streams++;
        opened = System.nanoTime();
        id = welcome.getSessionId();
        grace = NewJob.read(welcome.getSessionGrace()).toNanos();
        lostAt = null;
        jobs.resume(welcome.getKeptList());
        connected.complete(null);
    }

    /** Handles a stream that has ended or could not be opened: reconnects later, or ends a worker that is refused. */
    void broken(HowdahException error) {
        Long reconnectAt = stream == null ? null : stream.reconnectAt();
        if (stream != null && stream.isOpen()) {
            lostAt = wakeAt(System.nanoTime() + grace);
            if (reconnectAt != null || due(opened + PROVEN_AGE)) {
                backoff.reset();
            }
        }
        if (stream != null) {
            stream.close(reconnectAt != null && jobs.isEmpty());
            stream = null;
        }
        boolean unauthenticated = error.code() == Status.Code.UNAUTHENTICATED;
        boolean isFinal = streams == 0 || unauthenticated || error.code() == Status.Code.PERMISSION_DENIED;
        if (error.isRefusal() && isFinal && !(unauthenticated && connection.rereadToken())) {
            LOG.log(Level.ERROR, "the broker refuses this worker: {0}", error.getMessage());
            failure = error;
            jobs.cancelAll(CancelReason.CANCEL_REASON_LEASE_LOST);
            stop = Stop.CLOSING;
            stopAt = wakeAt(System.nanoTime() + HANDLER_TIMEOUT);
            return;
        }
        long pause = reconnectAt != null ? Math.max(0, reconnectAt - System.nanoTime())
            : Math.max(backoff.next(), error.retryAfter().map(Duration::toNanos).orElse(0L));
        LOG.log(reconnectAt != null ? Level.INFO : Level.WARNING,
            "the stream to {0} has ended; opening the next one in {1} ms: {2}",
            address(), pause / 1_000_000, error.getMessage());
        broker++;
        connection.timer.schedule(() -> locked(this::connect), pause, TimeUnit.NANOSECONDS);
    }

    /**
     * Runs after each change of the session's state. Sends messages, and ends the stream or the worker when it is time.
     */
    private void step() {
        if (jobs.isFull() && stop == Stop.NO) {
            stop = Stop.DRAINING;
        }
        if (stream != null) {
            stream.send(isStopping());
        }
        boolean settled = jobs.isEmpty() && (stream == null || !stream.isOpen() || stream.isDrained());
        if (stop == Stop.NOW || stop != Stop.NO && (failure == null ? settled : jobs.isIdle())) {
            finish();
        } else if (stream != null && stream.reconnectAt() != null && (jobs.isEmpty() || due(stream.reconnectAt()))) {
            broken(HowdahException.broken("the broker is draining this stream"));
        }
    }

    private void tick() {
        if (stream != null) {
            stream.check();
        }
        jobs.tick();
        if (due(lostAt)) {
            lostAt = null;
            // The handlers are told to end, but their outcomes are still sent, because the broker may have kept the
            // leases.
            LOG.log(Level.WARNING, "could not reconnect to a broker within the session's grace time: the leases may be "
                + "lost");
            jobs.cancelAll(CancelReason.CANCEL_REASON_LEASE_LOST);
        }
        if (due(stopAt)) {
            stopAt = null;
            if (stop == Stop.DRAINING) {
                jobs.cancelAll(CancelReason.CANCEL_REASON_UNSPECIFIED);
                stop = Stop.CANCELLING;
                stopAt = wakeAt(System.nanoTime() + HANDLER_TIMEOUT);
            } else if (stop == Stop.CANCELLING) {
                jobs.releaseAll();
                stop = Stop.CLOSING;
                stopAt = wakeAt(System.nanoTime() + RELEASE_TIMEOUT);
            } else {
                stop = Stop.NOW;
            }
        }
    }

    void stop() {
        locked(() -> {
            if (stop == Stop.NO || stop == Stop.DRAINING && stopAt == null) {
                stop = Stop.DRAINING;
                stopAt = wakeAt(System.nanoTime() + config.stopTimeout.toNanos());
                jobs.releaseQueued();
            }
        });
    }

    void abort() {
        locked(() -> {
            stop = Stop.NOW;
            jobs.cancelAll(CancelReason.CANCEL_REASON_UNSPECIFIED);
        });
    }

    void resize(String type, int count) {
        locked(() -> jobs.resize(type, count));
    }

    private void finish() {
        boolean orderly = stop != Stop.NOW;
        stop = Stop.ENDED;
        ticks.cancel(false);
        if (config.executor == null) {
            executor.shutdown();
        }
        var report = report();
        if (report.unconfirmed() > 0) {
            LOG.log(Level.WARNING, "the worker ended before the broker confirmed {0} outcomes", report.unconfirmed());
        }
        jobs.leaseRequests.forEach(request -> request.answer.cancel(false));
        var closed = stream == null ? CompletableFuture.<Void>completedFuture(null) : stream.close(orderly);
        jobs.giveUp();
        afterUnlock(() -> closed.whenCompleteAsync((ignored, error) -> {
            if (failure == null) {
                connected.complete(null);
                ended.complete(report);
            } else {
                connected.completeExceptionally(failure);
                ended.completeExceptionally(failure);
            }
        }));
    }

    Worker.Report report() {
        lock.lock();
        try {
            return jobs.report(Math.max(0, streams - 1));
        } finally {
            lock.unlock();
        }
    }
}
