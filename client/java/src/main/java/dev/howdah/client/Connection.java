package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.AccessServiceGrpc;
import dev.howdah.v1.GetSettingsRequest;
import dev.howdah.v1.SettingsServiceGrpc;
import dev.howdah.v1.WorkerServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ClientCall.Listener;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.net.InetAddress;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;

/** The brokers of a client. Holds their channels, adds metadata to each call, and retries calls at the next broker. */
final class Connection implements ClientInterceptor {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Connection");
    /**
     * Interval of HTTP/2 pings: short enough that proxies keep an idle connection open, and long enough for servers
     * that close connections with frequent pings.
     */
    private static final long KEEPALIVE_SECONDS = 30;
    private static final long KEEPALIVE_TIMEOUT_SECONDS = 20;
    /** Maximum time of one attempt of a call. A broker that cannot reach Postgres answers within 15 s. */
    static final Duration ATTEMPT_TIMEOUT = Duration.ofSeconds(16);
    /**
     * Longest wait of a PullJobs call. A call of a generated stub without a deadline gets the request timeout plus this
     * time.
     */
    private static final Duration MAX_PULL_WAIT = Duration.ofMinutes(1);
    /** Time that {@link #connect} waits for each broker other than the first, in milliseconds. */
    private static final long OTHER_BROKERS_WAIT_MS = 2_000;
    /**
     * Methods that are not repeated after a lost answer, because that would lease more jobs, make more tokens, or advance
     * the clock twice.
     */
    private static final Set<MethodDescriptor<?, ?>> NOT_IDEMPOTENT = Set.of(WorkerServiceGrpc.getPullJobsMethod(),
        AccessServiceGrpc.getCreateTokenMethod(), SettingsServiceGrpc.getAdvanceClockMethod());
    private static final Metadata.Key<String> TOKEN = Metadata.Key.of("authorization",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> STORE = Metadata.Key.of("howdah-store",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> UNANSWERED = Metadata.Key.of("howdah-unanswered-stores",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> DATABASE = Metadata.Key.of("howdah-database",
        Metadata.ASCII_STRING_MARSHALLER);

    /**
     * A broker and its channel. Clients of several stores share it, so the {@code Connection} of each client adds the
     * token and the store to calls.
     */
    private record Broker(URI address, ManagedChannel channel, AtomicReference<String> database) {}

    final HowdahClientBuilder options;
    /** Runs timeouts and backoffs of workers and producers. */
    final ScheduledThreadPoolExecutor timer;
    /** Runs blocking work, such as opening a connection. */
    final ExecutorService background;
    private final Credential credential;
    private final List<Broker> brokers;
    private final AtomicInteger current;
    /** Name of the store that the calls use; empty: the broker chooses the store. */
    private final String store;

    Connection(HowdahClientBuilder options) {
        this.options = options;
        credential = new Credential(options);
        brokers = options.addresses.stream().map(address -> parse(address.strip()))
            .map(address -> new Broker(address, open(address).build(), new AtomicReference<>())).toList();
        current = new AtomicInteger();
        store = "";
        ThreadFactory daemon = task -> {
            var thread = new Thread(task, "howdah-client");
            thread.setDaemon(true);
            return thread;
        };
        timer = new ScheduledThreadPoolExecutor(1, daemon);
        timer.setRemoveOnCancelPolicy(true);
        // After the close, both executors refuse tasks. Refused tasks are dropped, so that no exception is thrown.
        timer.setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy());
        background = new ThreadPoolExecutor(0, Integer.MAX_VALUE, 10, TimeUnit.SECONDS, new SynchronousQueue<>(),
            daemon, new ThreadPoolExecutor.DiscardPolicy());
    }

    private Connection(Connection shared, String store) {
        options = shared.options;
        credential = shared.credential;
        brokers = shared.brokers;
        current = shared.current;
        timer = shared.timer;
        background = shared.background;
        this.store = store;
    }

    /** Returns a connection for one store, with the same channels and credential. */
    Connection inStore(String name) {
        // The header `howdah-store` permits only printable ASCII, like all text metadata of gRPC. The broker checks
        // whether the store exists.
        if (!name.chars().allMatch(letter -> letter >= ' ' && letter < 0x7f)) {
            throw HowdahException.invalid("store", "\"" + name + "\" is not the name of a store");
        }
        return new Connection(this, name);
    }

    private URI parse(String address) {
        try {
            var uri = URI.create(address.contains("://") ? address : "http://" + address);
            boolean plain = uri.getScheme().equals("http");
            if (uri.getHost() == null || !plain && !uri.getScheme().equals("https")) {
                throw HowdahException.invalid("address",
                    address + " is not host:port, http://host:port or https://host:port");
            }
            boolean exposed = plain && credential.isSet() && !options.insecureToken;
            if (exposed && !uri.getHost().equals("localhost")
                && !InetAddress.getByName(uri.getHost()).isLoopbackAddress()) {
                throw HowdahException.invalid("address", address + ": a token over http:// is readable by anyone on "
                    + "the network path: use https://, or set insecureToken() where the network itself encrypts");
            }
            int port = uri.getPort() >= 0 ? uri.getPort() : plain ? 80 : 443;
            return URI.create(uri.getScheme() + "://" + uri.getHost() + ":" + port);
        } catch (IllegalArgumentException | IOException error) {
            throw HowdahException.invalid("address", address + ": " + error.getMessage());
        }
    }

    private NettyChannelBuilder open(URI address) {
        try {
            var tls = TlsChannelCredentials.newBuilder();
            if (options.ca != null) {
                tls.trustManager(new File(options.ca));
            }
            if (options.certificate != null) {
                tls.keyManager(new File(options.certificate), new File(options.key));
            }
            var credentials = address.getScheme().equals("https") ? tls.build() : InsecureChannelCredentials.create();
            return NettyChannelBuilder.forAddress(address.getHost(), address.getPort(), credentials)
                .withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, (int) options.connectTimeout.toMillis())
                .keepAliveTime(KEEPALIVE_SECONDS, TimeUnit.SECONDS)
                .keepAliveTimeout(KEEPALIVE_TIMEOUT_SECONDS, TimeUnit.SECONDS).keepAliveWithoutCalls(true)
                .maxInboundMessageSize(options.maxMessageBytes).disableRetry()
                .userAgent("howdah-client-java/" + HowdahClient.VERSION);
        } catch (IOException | IllegalArgumentException error) {
            throw HowdahException.invalid("tls", "the certificates cannot be used: " + error);
        }
    }

    String name(int broker) {
        return address(broker).toString();
    }

    URI address(int broker) {
        return brokers.get(broker % brokers.size()).address;
    }

    int current() {
        return current.get();
    }

    Channel channel() {
        return shared(brokers.get(current.get()));
    }

    private Channel shared(Broker broker) {
        return ClientInterceptors.intercept(broker.channel, this);
    }

    /**
     * Opens a separate channel for a stream, because the shared channel may be broken without the client having
     * noticed.
     */
    ManagedChannel dial(int index) {
        var broker = brokers.get(index % brokers.size());
        var channel = open(broker.address).intercept(this).build();
        try {
            checkDatabase(broker, channel, options.connectTimeout);
            return channel;
        } catch (RuntimeException error) {
            channel.shutdownNow();
            switchFrom(index % brokers.size());
            throw HowdahException.from(error, broker.address.toString());
        }
    }

    /** Calls all brokers at once. Fails if no broker answers, or if two brokers serve different databases. */
    void connect() {
        var checks = brokers.stream()
            .map(broker -> CompletableFuture.runAsync(() ->
                compareDatabase(broker, shared(broker), ATTEMPT_TIMEOUT), background))
            .toList();
        HowdahException last = null;
        boolean reached = false;
        for (long timeout : new long[] {options.connectTimeout.toMillis(), ATTEMPT_TIMEOUT.toMillis()}) {
            boolean isDone = reached && timeout > OTHER_BROKERS_WAIT_MS;
            for (int index = 0; index < checks.size() && !(isDone && index == 0); index++) {
                long wait = index == 0 && !reached ? timeout : OTHER_BROKERS_WAIT_MS;
                try {
                    checks.get(index).get(wait, TimeUnit.MILLISECONDS);
                    reached = true;
                } catch (ExecutionException | TimeoutException | InterruptedException thrown) {
                    last = HowdahException.from(thrown, name(index));
                    if (last.isRefusal()) {
                        throw last;
                    }
                }
            }
        }
        if (!reached) {
            throw last;
        }
        // The current broker is the first one in the caller's order that has answered.
        var first = checks.stream().filter(check -> check.isDone() && !check.isCompletedExceptionally()).findFirst();
        current.set(checks.indexOf(first.get()));
    }

    private void checkDatabase(Broker broker, Channel channel, Duration timeout) {
        if (brokers.size() > 1 && broker.database.get() == null) {
            boolean isShort = timeout.compareTo(options.connectTimeout) < 0;
            compareDatabase(broker, channel, isShort ? timeout : options.connectTimeout);
        }
    }

    /**
     * Fails if the broker serves a different database than the others. In a different database, jobs would wait for
     * workers that never come.
     */
    private void compareDatabase(Broker broker, Channel channel, Duration timeout) {
        AtomicReference<Metadata> headers = new AtomicReference<>(), trailers = new AtomicReference<>();
        try {
            SettingsServiceGrpc.newBlockingStub(channel)
                .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(headers, trailers))
                .withDeadlineAfter(timeout).getSettings(GetSettingsRequest.getDefaultInstance());
        } catch (StatusRuntimeException error) {
            // The broker names its database even if it refuses this call. The error is ignored, because the program's
            // own call will return it.
            var refusal = HowdahException.from(error, broker.address.toString());
            if (refusal.reason().isEmpty()) {
                throw refusal;
            }
        }
        var seen = headers.get() != null ? headers.get() : trailers.get();
        var id = seen == null ? null : seen.get(DATABASE);
        synchronized (brokers) {
            for (var other : brokers) {
                if (id != null && other.database.get() != null && !other.database.get().equals(id)) {
                    throw HowdahException.invalid("address", broker.address + " serves another database than "
                        + other.address + "; give only brokers of one database to a client");
                }
            }
            broker.database.set(id);
        }
    }

    private void switchFrom(int index) {
        current.compareAndSet(index, (index + 1) % brokers.size());
    }

    /** Makes an idempotent call, within the request timeout. {@code used} gets the address of each broker called. */
    <R> R call(Consumer<URI> used, Function<Channel, R> send) {
        return call(options.requestTimeout, ATTEMPT_TIMEOUT, true, used, send);
    }

    /** Makes a call, and retries it after transient errors: once at each broker, or until {@code timeout} has passed. */
    <R> R call(Duration timeout, Duration attemptTimeout, boolean untilTimeout, Function<Channel, R> send) {
        return call(timeout, attemptTimeout, untilTimeout, broker -> { }, send);
    }

    private <R> R call(Duration timeout, Duration attemptTimeout, boolean untilTimeout, Consumer<URI> used,
            Function<Channel, R> send) {
        long end = System.nanoTime() + timeout.toNanos();
        var backoff = new Backoff();
        var sentNonIdempotent = new AtomicBoolean();
        for (int attempts = 0, tooLarge = 0; ; attempts++) {
            int index = current.get();
            // The remaining time is divided among the brokers not yet tried in this round, so that a silent broker
            // cannot use it up.
            long share = (end - System.nanoTime()) / (brokers.size() - attempts % brokers.size());
            used.accept(address(index));
            HowdahException error;
            try {
                return attempt(index, Math.min(share, attemptTimeout.toNanos()), sentNonIdempotent, send);
            } catch (HowdahException thrown) {
                error = thrown;
            }
            // A proxy refused the request because of its size. The path to another broker may have a higher limit. If
            // every path refuses the request, no broker has received it.
            tooLarge = error.isTooLarge() ? tooLarge + 1 : 0;
            boolean tryOther = tooLarge > 0 && tooLarge < brokers.size();
            long pause = backoff.next();
            boolean isExhausted = !untilTimeout && attempts >= brokers.size() || System.nanoTime() + pause >= end;
            boolean tokenChanged = error.code() == Status.Code.UNAUTHENTICATED && credential.reread();
            if (isExhausted || sentNonIdempotent.get() && !tokenChanged
                || !error.isTransient() && !tokenChanged && !tryOther) {
                throw error;
            }
            if (!tokenChanged) {
                switchFrom(index);
            }
            try {
                TimeUnit.NANOSECONDS.sleep(pause);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                throw error;
            }
        }
    }

    /** Makes a call without retries. After a transient error, the next call uses the next broker. */
    <R> R callOnce(Duration timeout, Function<Channel, R> send) {
        int index = current.get();
        try {
            return attempt(index, timeout.toNanos(), new AtomicBoolean(), send);
        } catch (HowdahException error) {
            if (error.isTransient() && !error.reason().equals("DEADLINE_EXCEEDED")) {
                switchFrom(index);
            }
            throw error;
        }
    }

    private <R> R attempt(int index, long timeout, AtomicBoolean sentNonIdempotent, Function<Channel, R> send) {
        long deadline = System.nanoTime() + timeout;
        var broker = brokers.get(index);
        try {
            var channel = shared(broker);
            checkDatabase(broker, channel, Duration.ofNanos(timeout));
            var remaining = Duration.ofNanos(Math.max(1, deadline - System.nanoTime()));
            return send.apply(ClientInterceptors.intercept(channel, attemptInterceptor(remaining, sentNonIdempotent)));
        } catch (StatusRuntimeException | HowdahException thrown) {
            throw HowdahException.from(thrown, broker.address.toString());
        }
    }

    int size() {
        return brokers.size();
    }

    /** {@return how long a producer waits for the answer to a request before its stream counts as broken, in ns} */
    long answerTimeout() {
        return Math.min(ATTEMPT_TIMEOUT.toNanos(), options.requestTimeout.toNanos() / brokers.size());
    }

    boolean rereadToken() {
        return credential.reread();
    }

    /**
     * Sets the deadline of an attempt. Sets {@code sentNonIdempotent} if the method must not be repeated after a lost
     * answer.
     */
    private static ClientInterceptor attemptInterceptor(Duration time, AtomicBoolean sentNonIdempotent) {
        return new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options,
                    Channel next) {
                sentNonIdempotent.compareAndSet(false, NOT_IDEMPOTENT.contains(method));
                return next.newCall(method, options.withDeadlineAfter(time));
            }
        };
    }

    /** Adds the token and the store to each call, and a deadline to unary calls without one. */
    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions callOptions, Channel next) {
        boolean unbounded = callOptions.getDeadline() == null && method.getType() == MethodDescriptor.MethodType.UNARY;
        var call = unbounded ? callOptions.withDeadlineAfter(options.requestTimeout.plus(MAX_PULL_WAIT)) : callOptions;
        return new SimpleForwardingClientCall<>(next.newCall(method, call)) {
            @Override
            public void start(Listener<R> listener, Metadata headers) {
                if (credential.isSet()) {
                    headers.put(TOKEN, "Bearer " + credential.token());
                }
                if (!store.isEmpty()) {
                    headers.put(STORE, store);
                }
                super.start(logUnanswered(listener, method), headers);
            }

            @Override
            public void sendMessage(Q message) {
                // Workers and producers check the messages of their streams earlier, so that one bad text does not end a
                // stream.
                if (method.getType().clientSendsOneMessage() && message instanceof Message sent) {
                    Texts.check(sent, "");
                }
                super.sendMessage(message);
            }
        };
    }

    /** Logs the stores that did not answer, because the response of a call for several stores is then incomplete. */
    private static <R> Listener<R> logUnanswered(Listener<R> listener, MethodDescriptor<?, R> method) {
        return new SimpleForwardingClientCallListener<>(listener) {
            @Override
            public void onHeaders(Metadata headers) {
                var stores = headers.get(UNANSWERED);
                if (stores != null) {
                    LOG.log(Level.WARNING, "{0}: these stores did not answer: {1}; the response lacks their data, and "
                        + "a change did not reach them", method.getFullMethodName(), stores);
                }
                super.onHeaders(headers);
            }
        };
    }

    void close() {
        timer.shutdownNow();
        background.shutdownNow();
        brokers.forEach(broker -> broker.channel.shutdownNow());
    }

    /**
     * An exponential backoff from 50 ms to 5 s. Half of each delay is random (jitter), so that clients do not reconnect
     * at the same time.
     */
    static final class Backoff {
        private int failures;

        /** {@return the next delay in nanoseconds} */
        long next() {
            long bound = Math.min(50L << Math.min(failures++, 10), 5_000);
            return TimeUnit.MILLISECONDS.toNanos(ThreadLocalRandom.current().nextLong(bound / 2, bound));
        }

        void reset() {
            failures = 0;
        }
    }
}
