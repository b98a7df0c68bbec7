package dev.howdah.client;

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

/** The brokers of a client: channels to them, what goes with each call, and calls that go on to the next broker. */
final class Connection implements ClientInterceptor {
    private static final System.Logger LOG = System.getLogger("dev.howdah.client.Connection");
    /** Short enough for proxies, long enough for servers that refuse frequent pings. */
    private static final long KEEPALIVE_SECONDS = 30;
    private static final long KEEPALIVE_TIMEOUT_SECONDS = 20;
    /** One attempt is no longer, before the next broker is tried: a broker without its Postgres answers within 15 s. */
    static final Duration LONGEST_TRY = Duration.ofSeconds(16);
    /** How much longer than the client's own calls those of generated stubs may take: the longest wait of PullJobs. */
    private static final Duration LONGEST_WAIT = Duration.ofMinutes(1);
    /** How long to wait for brokers that may never be used, in milliseconds. */
    private static final long SOON = 2_000;
    /** Repeated after a lost answer, they lease more jobs, or make more tokens, than the caller gets. */
    private static final Set<MethodDescriptor<?, ?>> ONCE = Set.of(WorkerServiceGrpc.getPullJobsMethod(),
        AccessServiceGrpc.getCreateTokenMethod());
    private static final Metadata.Key<String> TOKEN = Metadata.Key.of("authorization",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> STORE = Metadata.Key.of("howdah-store",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> UNANSWERED = Metadata.Key.of("howdah-unanswered-stores",
        Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> DATABASE = Metadata.Key.of("howdah-database",
        Metadata.ASCII_STRING_MARSHALLER);

    /** The channel is shared by all connections to the broker: what goes with a call is added by the one that calls. */
    private record Broker(URI address, ManagedChannel channel, AtomicReference<String> database) {}

    final HowdahClientBuilder options;
    /** Deadlines and pauses of workers and pipelines. */
    final ScheduledThreadPoolExecutor timer;
    /** For what blocks, such as to open a connection. */
    final ExecutorService background;
    private final Credential credential;
    private final List<Broker> brokers;
    private final AtomicInteger current;
    /** The store that its calls are about; empty: the broker chooses. */
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
        // After the close, what is left to do is not done.
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

    /** The same channels and credential, for calls about this store. */
    Connection inStore(String name) {
        // What metadata may have in it. Whether there is such a store, the broker says.
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
                throw HowdahException.invalid("address", address + ": everybody on the way could read the token: use "
                    + "https://, or allow it by insecureToken() where the network itself encrypts");
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

    /** A channel of its own for a stream: the one before may be on a connection whose death nobody has noticed. */
    ManagedChannel dial(int index) {
        var broker = brokers.get(index % brokers.size());
        var channel = open(broker.address).intercept(this).build();
        try {
            checkDatabase(broker, channel);
            return channel;
        } catch (RuntimeException error) {
            channel.shutdownNow();
            moveOnFrom(index % brokers.size());
            throw HowdahException.of(error, broker.address.toString());
        }
    }

    /** Looks at all brokers at once. Fails if none answers, or if two serve different databases. */
    void connect() {
        var asked = brokers.stream()
            .map(broker -> CompletableFuture.runAsync(() -> ask(broker, shared(broker)), background)).toList();
        HowdahException last = null;
        boolean reached = false;
        for (long patience : new long[] {options.connectTimeout.toMillis(), LONGEST_TRY.toMillis()}) {
            for (int index = 0; index < asked.size() && !(reached && patience > SOON && index == 0); index++) {
                try {
                    asked.get(index).get(index == 0 && !reached ? patience : SOON, TimeUnit.MILLISECONDS);
                    reached = true;
                } catch (ExecutionException | TimeoutException | InterruptedException thrown) {
                    last = HowdahException.of(thrown, name(index));
                    if (last.isRefusal()) {
                        throw last;
                    }
                }
            }
        }
        if (!reached) {
            throw last;
        }
        // The first in the caller's order.
        var first = asked.stream().filter(check -> check.isDone() && !check.isCompletedExceptionally()).findFirst();
        current.set(asked.indexOf(first.get()));
    }

    private void checkDatabase(Broker broker, Channel channel) {
        if (brokers.size() > 1 && broker.database.get() == null) {
            ask(broker, channel);
        }
    }

    /** Brokers of one client serve one database: in another, jobs would wait for workers that never come. */
    private void ask(Broker broker, Channel channel) {
        AtomicReference<Metadata> headers = new AtomicReference<>(), trailers = new AtomicReference<>();
        try {
            SettingsServiceGrpc.newBlockingStub(channel)
                .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(headers, trailers))
                .withDeadlineAfter(LONGEST_TRY).getSettings(GetSettingsRequest.getDefaultInstance());
        } catch (StatusRuntimeException error) {
            // Any answer tells, a refusal too; but the first call will say more about that.
            var told = HowdahException.of(error, broker.address.toString());
            if (told.reason().isEmpty()) {
                throw told;
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

    private void moveOnFrom(int seen) {
        current.compareAndSet(seen, (seen + 1) % brokers.size());
    }

    /** Makes a call that is safe to repeat, within the request timeout, and tells which broker it uses. */
    <R> R call(Consumer<URI> used, Function<Channel, R> send) {
        return call(options.requestTimeout, LONGEST_TRY, true, used, send);
    }

    /** Makes a call, and repeats it after errors that pass: once on each broker, or until the time is over. */
    <R> R call(Duration limit, Duration longestTry, boolean untilLate, Function<Channel, R> send) {
        return call(limit, longestTry, untilLate, broker -> { }, send);
    }

    private <R> R call(Duration limit, Duration longestTry, boolean untilLate, Consumer<URI> used,
            Function<Channel, R> send) {
        long end = System.nanoTime() + limit.toNanos();
        var backoff = new Backoff();
        var sentOnce = new AtomicBoolean();
        for (int left = brokers.size(); ; left--) {
            int index = current.get();
            var broker = brokers.get(index);
            long patience = Math.min(end - System.nanoTime(), longestTry.toNanos());
            HowdahException error;
            used.accept(broker.address);
            try {
                var channel = shared(broker);
                checkDatabase(broker, channel);
                return send.apply(ClientInterceptors.intercept(channel, each(Duration.ofNanos(patience), sentOnce)));
            } catch (StatusRuntimeException | HowdahException thrown) {
                error = HowdahException.of(thrown, broker.address.toString());
            }
            long pause = backoff.next();
            boolean over = !untilLate && left <= 0 || System.nanoTime() + pause >= end;
            boolean renewed = error.code() == Status.Code.UNAUTHENTICATED && credential.readAgain();
            if (over || sentOnce.get() && !renewed || !error.isPassing() && !renewed) {
                throw error;
            }
            if (!renewed) {
                moveOnFrom(index);
            }
            try {
                TimeUnit.NANOSECONDS.sleep(pause);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                throw error;
            }
        }
    }

    boolean readTokenAgain() {
        return credential.readAgain();
    }

    /** Gives a try its deadline, and notes whether it must be the only one. */
    private static ClientInterceptor each(Duration time, AtomicBoolean sentOnce) {
        return new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options,
                    Channel next) {
                sentOnce.compareAndSet(false, ONCE.contains(method));
                return next.newCall(method, options.withDeadlineAfter(time));
            }
        };
    }

    /** Adds the token and the store, and a deadline to calls that have none. */
    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions given, Channel next) {
        boolean unbounded = given.getDeadline() == null && method.getType() == MethodDescriptor.MethodType.UNARY;
        var call = unbounded ? given.withDeadlineAfter(options.requestTimeout.plus(LONGEST_WAIT)) : given;
        return new SimpleForwardingClientCall<>(next.newCall(method, call)) {
            @Override
            public void start(Listener<R> listener, Metadata headers) {
                if (credential.isSet()) {
                    headers.put(TOKEN, "Bearer " + credential.token());
                }
                if (!store.isEmpty()) {
                    headers.put(STORE, store);
                }
                super.start(noting(listener, method), headers);
            }
        };
    }

    /** Logs which stores an answer leaves out: nobody has to guess whether a list is complete. */
    private static <R> Listener<R> noting(Listener<R> listener, MethodDescriptor<?, R> method) {
        return new SimpleForwardingClientCallListener<>(listener) {
            @Override
            public void onHeaders(Metadata headers) {
                var stores = headers.get(UNANSWERED);
                if (stores != null) {
                    LOG.log(Level.WARNING, "{0}: these stores did not answer: {1}; what they have is missing, and a "
                        + "change has not reached them", method.getFullMethodName(), stores);
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

    /** Pauses that double from 50 ms to 5 s. Half of each is random, so that clients do not come back together. */
    static final class Backoff {
        private int failures;

        /** {@return the next pause in nanoseconds} */
        long next() {
            long bound = Math.min(50L << Math.min(failures++, 10), 5_000);
            return TimeUnit.MILLISECONDS.toNanos(ThreadLocalRandom.current().nextLong(bound / 2, bound));
        }

        void reset() {
            failures = 0;
        }
    }
}
