package dev.howdah.client;

import dev.howdah.v1.Outcome;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.common.AttributesBuilder;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Middleware that records spans and metrics of enqueues, attempts and outcomes, according to OpenTelemetry's conventions
 * for messaging. Jobs carry the W3C trace context. It needs {@code opentelemetry-api}, an optional dependency that the
 * program must add.
 *
 * <pre>{@code
 * HowdahClient.builder().middleware(new Telemetry(openTelemetry)).connect();
 * }</pre>
 */
public final class Telemetry implements Middleware {
    private static final W3CTraceContextPropagator W3C = W3CTraceContextPropagator.getInstance();
    private static final AttributeKey<String> SYSTEM = AttributeKey.stringKey("messaging.system");
    private static final AttributeKey<String> NAME = AttributeKey.stringKey("messaging.operation.name");
    private static final AttributeKey<String> TYPE = AttributeKey.stringKey("messaging.operation.type");
    private static final AttributeKey<String> DESTINATION = AttributeKey.stringKey("messaging.destination.name");
    private static final AttributeKey<Long> COUNT = AttributeKey.longKey("messaging.batch.message_count");
    private static final AttributeKey<String> ID = AttributeKey.stringKey("messaging.message.id");
    private static final AttributeKey<Long> ATTEMPT = AttributeKey.longKey("howdah.attempt");
    private static final AttributeKey<String> HOST = AttributeKey.stringKey("server.address");
    private static final AttributeKey<Long> PORT = AttributeKey.longKey("server.port");
    private static final AttributeKey<String> ERROR = AttributeKey.stringKey("error.type");
    private static final List<Double> BUCKETS =
        List.of(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0);
    /** Maximum length of a status text, in bytes. */
    private static final int LONGEST_STATUS = 1 << 10;
    private static final double SECOND = TimeUnit.SECONDS.toNanos(1);

    private final Tracer tracer;
    private final DoubleHistogram operations;
    private final DoubleHistogram processes;
    private final LongCounter sent;
    private final LongCounter consumed;
    private final boolean linked;

    /**
     * Makes the telemetry middleware.
     *
     * @param telemetry OpenTelemetry instance of the program, such as {@code GlobalOpenTelemetry.get()}
     */
    public Telemetry(OpenTelemetry telemetry) {
        tracer = telemetry.getTracer("dev.howdah.client", HowdahClient.VERSION);
        var meter = telemetry.getMeterProvider().meterBuilder("dev.howdah.client")
            .setInstrumentationVersion(HowdahClient.VERSION).build();
        operations = seconds(meter, "messaging.client.operation.duration",
            "Duration of an enqueue, or of settling a job.");
        processes = seconds(meter, "messaging.process.duration", "Run time of a handler.");
        sent = jobs(meter, "messaging.client.sent.messages", "Jobs that were sent.");
        consumed = jobs(meter, "messaging.client.consumed.messages", "Jobs passed to a handler.");
        linked = false;
    }

    private Telemetry(Telemetry other, boolean linked) {
        tracer = other.tracer;
        operations = other.operations;
        processes = other.processes;
        sent = other.sent;
        consumed = other.consumed;
        this.linked = linked;
    }

    /**
     * {@return a copy of this middleware that starts a new trace for each attempt, linked to the producer's trace. This
     * suits jobs that run much later}
     */
    public Telemetry linked() {
        return new Telemetry(this, true);
    }

    private static DoubleHistogram seconds(Meter meter, String name, String description) {
        return meter.histogramBuilder(name).setUnit("s").setDescription(description)
            .setExplicitBucketBoundariesAdvice(BUCKETS).build();
    }

    private static LongCounter jobs(Meter meter, String name, String description) {
        return meter.counterBuilder(name).setUnit("{message}").setDescription(description).build();
    }

    @Override
    public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey, Enqueue next) {
        if (jobs.isEmpty()) {
            return next.enqueue(jobs);
        }
        var send = new Send(jobs, requestKey != null, next);
        try (var scope = send.span.makeCurrent()) {
            return next.enqueue(send.jobs).whenComplete(send::end);
        } catch (RuntimeException error) {
            send.end(null, error);
            throw error;
        }
    }

    @Override
    public Job.Outcome handle(Job job, Handle next) throws Exception {
        var attempt = new Attempt(job);
        job.observe(attempt);
        try (var scope = attempt.span.makeCurrent()) {
            return next.handle(job);
        }
    }

    /** Telemetry of an enqueue of one job or several. */
    private final class Send {
        private final long began = System.nanoTime();
        private final Enqueue next;
        private final Map<String, Long> types = new TreeMap<>();
        private final Map<Integer, Span> creates = new HashMap<>();
        private final List<NewJob> jobs = new ArrayList<>();
        private final boolean single;
        private final Span span;

        Send(List<NewJob> enqueued, boolean hasKey, Enqueue next) {
            this.next = next;
            single = enqueued.size() == 1;
            enqueued.forEach(job -> types.merge(job.taskType(), 1L, Long::sum));
            // Jobs get no trace context if the caller passes a request key, because repeated calls must then send
            // identical jobs.
            var needsContext = enqueued.stream()
                .map(job -> !hasKey && job.options().getTraceparent().isEmpty()).toList();
            var name = types.size() == 1 ? "send " + enqueued.get(0).taskType() : "send";
            var builder = tracer.spanBuilder(name).setAllAttributes(attributes().build())
                .setSpanKind(single && needsContext.get(0) ? SpanKind.PRODUCER : SpanKind.CLIENT);
            if (!single) {
                builder.setAttribute(COUNT, (long) enqueued.size());
            }
            for (var job : enqueued) {
                var origin = context(job.options().getTraceparent(), job.options().getTracestate());
                if (origin.isValid()) {
                    builder.addLink(origin);
                }
            }
            span = builder.startSpan();
            for (int index = 0; index < enqueued.size(); index++) {
                var job = enqueued.get(index);
                jobs.add(needsContext.get(index) ? withContext(job, single || !span.isRecording() ? span
                    : create(index, job.taskType())) : job);
            }
        }

        private Span create(int index, String taskType) {
            var create = tracer.spanBuilder("create " + taskType).setSpanKind(SpanKind.PRODUCER)
                .setParent(Context.current().with(span)).setAllAttributes(operation("create", "create")
                    .put(DESTINATION, taskType).putAll(server(broker())).build()).startSpan();
            span.addLink(create.getSpanContext());
            creates.put(index, create);
            return create;
        }

        private URI broker() {
            return next instanceof HowdahClient.Step step ? step.broker().get() : null;
        }

        private AttributesBuilder attributes() {
            var attributes = operation("send", "send").putAll(server(broker()));
            return types.size() == 1 ? attributes.put(DESTINATION, types.keySet().iterator().next()) : attributes;
        }

        void end(List<HowdahClient.Enqueued> answers, Throwable thrown) {
            var server = server(broker());
            creates.forEach((index, create) -> {
                create.setAllAttributes(server);
                if (answers != null) {
                    create.setAttribute(ID, Long.toString(answers.get(index).id()));
                }
                create.end();
            });
            span.setAllAttributes(server);
            if (single && answers != null) {
                span.setAttribute(ID, Long.toString(answers.get(0).id()));
            }
            var errorType = Attributes.empty();
            if (thrown != null) {
                var error = HowdahException.from(thrown, "");
                errorType = errorType(error);
                recordError(span, errorType, error.getMessage(), error);
            }
            span.end();
            operations.record((System.nanoTime() - began) / SECOND, attributes().putAll(errorType).build());
            for (var type : types.entrySet()) {
                sent.add(type.getValue(), operation("send", null).put(DESTINATION, type.getKey()).putAll(server)
                    .putAll(errorType).build());
            }
        }
    }

    /** Telemetry of an attempt, and of settling its outcome. */
    private final class Attempt implements Job.AttemptObserver {
        private final long began = System.nanoTime();
        /** Start of the attempt in nanoseconds since 1970. All span times are based on it, so that they are in order. */
        private final long epoch;
        private final Job job;
        private final Attributes server;
        private final Span span;
        private final boolean recorded;
        private volatile long ended;

        Attempt(Job job) {
            this.job = job;
            var now = Instant.now();
            epoch = TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
            server = server(job.broker);
            var message = job.message();
            var origin = context(message.getTraceparent(), message.getTracestate());
            var builder = tracer.spanBuilder("process " + job.taskType()).setSpanKind(SpanKind.CONSUMER)
                .setStartTimestamp(epoch, TimeUnit.NANOSECONDS)
                .setAllAttributes(putJob(operation("process", "process").putAll(server)).build());
            // Sets the parent explicitly. Otherwise the span that was current when the worker started would be the
            // parent.
            if (linked || !origin.isValid()) {
                builder.setNoParent();
            } else {
                builder.setParent(Context.root().with(Span.wrap(origin)));
            }
            if (origin.isValid()) {
                builder.addLink(origin);
            }
            span = builder.startSpan();
            recorded = span.isRecording();
            consumed.add(1, operation("process", null).put(DESTINATION, job.taskType()).putAll(server).build());
        }

        private AttributesBuilder putJob(AttributesBuilder attributes) {
            return attributes.put(DESTINATION, job.taskType()).put(ID, Long.toString(job.id()))
                .put(ATTEMPT, (long) job.attempt());
        }

        @Override
        public void ended(Outcome outcome, Throwable thrown) {
            var errorType = Attributes.empty();
            if (outcome.hasNack()) {
                var nack = outcome.getNack();
                errorType = Attributes.of(ERROR, nack.getNoRetry() ? "fatal" : "retry");
                recordError(span, errorType, nack.getError(), thrown != null ? thrown
                    : Job.Outcome.fatal(nack.getError()).asException());
            }
            long nanos = System.nanoTime() - began;
            ended = epoch + nanos;
            span.end(ended, TimeUnit.NANOSECONDS);
            processes.record(nanos / SECOND, operation("process", null).put(DESTINATION, job.taskType())
                .putAll(server).putAll(errorType).build());
        }

        @Override
        public void settled(Outcome outcome, long nanos, HowdahException error) {
            var name = outcome.getOutcomeCase().name().toLowerCase(Locale.ROOT);
            var errorType = error == null ? Attributes.empty() : errorType(error);
            var currentServer = server(job.broker);
            operations.record(nanos / SECOND, operation(name, "settle").put(DESTINATION, job.taskType())
                .putAll(currentServer).putAll(errorType).build());
            if (!recorded) {
                return;
            }
            long end = epoch + System.nanoTime() - began;
            // If the worker released the job before the handler ended, the span of the release starts at the release.
            long start = ended == 0 ? end - nanos : ended;
            var settle = tracer.spanBuilder(name + " " + job.taskType()).setSpanKind(SpanKind.CLIENT)
                .setParent(Context.root().with(span)).setStartTimestamp(start, TimeUnit.NANOSECONDS)
                .setAllAttributes(putJob(operation(name, "settle").putAll(currentServer)).build()).startSpan();
            if (error != null) {
                recordError(settle, errorType, error.getMessage(), error);
            }
            settle.end(end, TimeUnit.NANOSECONDS);
        }
    }

    private static AttributesBuilder operation(String name, String type) {
        var attributes = Attributes.builder().put(SYSTEM, "howdah").put(NAME, name);
        return type == null ? attributes : attributes.put(TYPE, type);
    }

    private static Attributes server(URI broker) {
        if (broker == null) {
            return Attributes.empty();
        }
        // OpenTelemetry's conventions want an IPv6 address without brackets.
        return Attributes.of(HOST, broker.getHost().replaceAll("[\\[\\]]", ""), PORT, (long) broker.getPort());
    }

    private static Attributes errorType(HowdahException error) {
        return Attributes.of(ERROR, error.reason().isEmpty() ? error.code().name() : error.reason());
    }

    private static void recordError(Span span, Attributes errorType, String text, Throwable thrown) {
        span.recordException(thrown);
        span.setAllAttributes(errorType);
        span.setStatus(StatusCode.ERROR, shorten(text));
    }

    /** Shortens a text to {@code LONGEST_STATUS} bytes, without splitting a character. */
    private static String shorten(String text) {
        var shortened = CharBuffer.wrap(new char[LONGEST_STATUS]);
        var bytes = text.getBytes(StandardCharsets.UTF_8);
        StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes, 0, Math.min(bytes.length, LONGEST_STATUS)),
            shortened, false);
        return shortened.flip().toString();
    }

    private static NewJob withContext(NewJob job, Span span) {
        Map<String, String> trace = new HashMap<>();
        W3C.inject(Context.root().with(span), trace, Map::put);
        return trace.isEmpty() ? job : job.toBuilder().trace(trace.get("traceparent"),
            trace.getOrDefault("tracestate", "")).build();
    }

    /** Parses the trace context that a job carries. If the job has none, the returned context is invalid. */
    private static SpanContext context(String traceparent, String tracestate) {
        if (traceparent.isEmpty()) {
            return SpanContext.getInvalid();
        }
        var trace = Map.of("traceparent", traceparent, "tracestate", tracestate);
        return Span.fromContext(W3C.extract(Context.root(), trace, GETTER)).getSpanContext();
    }

    private static final TextMapGetter<Map<String, String>> GETTER = new TextMapGetter<>() {
        @Override
        @SuppressWarnings("deprecation")
        public Iterable<String> keys(Map<String, String> trace) {
            return trace.keySet();
        }

        @Override
        public String get(Map<String, String> trace, String key) {
            return trace.get(key);
        }
    };
}
