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

/** The life of a worker: connect, serve, reconnect, stop. One lock guards all of it, and nothing under it blocks. */
final class Session {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Worker");
    /** How long handlers that were told to stop may take. */
    private static final long HANDLER_PATIENCE = TimeUnit.SECONDS.toNanos(1);
    /** How long the release of their jobs may take. */
    private static final long RELEASE_PATIENCE = TimeUnit.SECONDS.toNanos(5);
    /** A stream that lived this long has shown that its broker works. */
    private static final long PROVEN = TimeUnit.SECONDS.toNanos(30);

    /** NO, waiting for handlers, handlers told to end, their jobs released, to end at once, ended. */
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
    private URI at;
    private List<Runnable> later = new ArrayList<>();

    Session(Worker.Builder config) {
        this.config = config;
        connection = config.client.connection;
        broker = connection.current();
        at = connection.address(broker);
        executor = config.executor == null ? Worker.Builder.threads() : config.executor;
        jobs = new Jobs(this, config, executor);
        ticks = connection.timer.scheduleWithFixedDelay(() -> locked(this::tick), 1, 1, TimeUnit.SECONDS);
    }

    /** Makes a change and does what follows from it. False: the worker has ended. */
    boolean locked(Runnable change) {
        List<Runnable> ready = List.of();
        lock.lock();
        try {
            if (stop == Stop.ENDED) {
                return false;
            }
            change.run();
            step();
            if (lock.getHoldCount() == 1 && !later.isEmpty()) {
                ready = later;
                later = new ArrayList<>();
            }
            return true;
        } finally {
            lock.unlock();
            ready.forEach(Runnable::run);
        }
    }

    /** Runs something when the lock is free again. */
    void later(Runnable action) { later.add(action); }

    /** Where the stream is, or was the last time. */
    URI broker() { return at; }

    /** The same for what happens on a stream, unless it has been left. */
    void locked(Stream of, Runnable change) {
        locked(() -> {
            if (stream == of) {
                change.run();
            }
        });
    }

    /** Looks at the timers at a time, and not only at the next tick. */
    Long at(long time) {
        connection.timer.schedule(() -> locked(this::tick), time - System.nanoTime(), TimeUnit.NANOSECONDS);
        return time;
    }

    static boolean due(Long time) { return time != null && time - System.nanoTime() <= 0; }

    boolean isStopping() { return stop != Stop.NO; }

    Stream stream() { return stream; }

    Jobs jobs() { return jobs; }

    /** The broker has stored an outcome: it works. */
    void stored() { backoff.reset(); }

    String address() { return connection.name(broker); }

    void connect() {
        int index = broker;
        connection.background.execute(() -> {
            try {
                var channel = connection.dial(index);
                boolean used = locked(() -> {
                    stream = new Stream(this, channel);
                    at = connection.address(index);
                    stream.start(WorkRequest.newBuilder().setSubscribe(subscribe()), config.maxMessageBytes);
                });
                if (!used) {
                    channel.shutdownNow();
                }
            } catch (RuntimeException error) {
                locked(() -> broken(HowdahException.of(error, connection.name(index))));
            }
        });
    }

    private Subscribe.Builder subscribe() {
        return Subscribe.newBuilder().setSessionId(id).addAllHeld(jobs.leases()).putAllLabels(config.labels)
            .setMaxMessageBytes(config.maxMessageBytes).addAllWindows(isStopping() ? List.of() : jobs.windows());
    }

    void welcome(Welcome welcome) {
        // Without the session's id: who knows it may take over the session.
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

    /** A stream has ended, or could not be opened. */
    void broken(HowdahException error) {
        Long reconnectAt = stream == null ? null : stream.reconnectAt();
        if (stream != null && stream.isOpen()) {
            lostAt = at(System.nanoTime() + grace);
            if (reconnectAt != null || due(opened + PROVEN)) {
                backoff.reset();
            }
        }
        if (stream != null) {
            stream.close(reconnectAt != null && jobs.isEmpty());
            stream = null;
        }
        boolean unknown = error.code() == Status.Code.UNAUTHENTICATED;
        boolean last = streams == 0 || unknown || error.code() == Status.Code.PERMISSION_DENIED;
        if (error.isRefusal() && last && !(unknown && connection.readTokenAgain())) {
            LOG.log(Level.ERROR, "the broker refuses this worker: {0}", error.getMessage());
            failure = error;
            jobs.cancelAll(CancelReason.CANCEL_REASON_LEASE_LOST);
            stop = Stop.CLOSING;
            stopAt = at(System.nanoTime() + HANDLER_PATIENCE);
            return;
        }
        long pause = reconnectAt != null ? Math.max(0, reconnectAt - System.nanoTime())
            : Math.max(backoff.next(), error.retryAfter().map(Duration::toNanos).orElse(0L));
        LOG.log(reconnectAt != null ? Level.INFO : Level.WARNING,
            "the stream to {0} has ended, the next follows in {1} ms: {2}",
            address(), pause / 1_000_000, error.getMessage());
        broker++;
        connection.timer.schedule(() -> locked(this::connect), pause, TimeUnit.NANOSECONDS);
    }

    /** After each change: sends what there is, and ends the stream or the worker when it is time. */
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
            broken(HowdahException.broken("the broker stops"));
        }
    }

    private void tick() {
        if (stream != null) {
            stream.check();
        }
        if (due(lostAt)) {
            lostAt = null;
            // The broker decides when we are back: it may have kept the leases.
            LOG.log(Level.WARNING, "no stream within the grace time: the leases may be lost");
            jobs.cancelAll(CancelReason.CANCEL_REASON_LEASE_LOST);
        }
        if (due(stopAt)) {
            stopAt = null;
            if (stop == Stop.DRAINING) {
                jobs.cancelAll(CancelReason.CANCEL_REASON_UNSPECIFIED);
                stop = Stop.CANCELLING;
                stopAt = at(System.nanoTime() + HANDLER_PATIENCE);
            } else if (stop == Stop.CANCELLING) {
                jobs.releaseAll();
                stop = Stop.CLOSING;
                stopAt = at(System.nanoTime() + RELEASE_PATIENCE);
            } else {
                stop = Stop.NOW;
            }
        }
    }

    void stop() {
        locked(() -> {
            if (stop == Stop.NO || stop == Stop.DRAINING && stopAt == null) {
                stop = Stop.DRAINING;
                stopAt = at(System.nanoTime() + config.stopTimeout.toNanos());
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
        locked(() -> {
            var window = jobs.resize(type, count);
            if (stream != null && stop == Stop.NO) {
                stream.control(WorkRequest.newBuilder().setWindow(window));
            }
        });
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
        jobs.asks.forEach(ask -> ask.answer.cancel(false));
        var closed = stream == null ? CompletableFuture.<Void>completedFuture(null) : stream.close(orderly);
        jobs.giveUp();
        later(() -> closed.whenCompleteAsync((ignored, error) -> {
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
