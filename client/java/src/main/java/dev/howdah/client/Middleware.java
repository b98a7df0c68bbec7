package dev.howdah.client;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanBuilder;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Code around each enqueue and each handler of a client, such as for metrics, tenants or traces. */
public interface Middleware {
    /**
     * Around an enqueue.
     *
     * @param jobs to enqueue
     * @param requestKey of the caller, who may repeat the request: then the jobs must be the same each time; or null
     * @param next sends them
     * @return what {@code next} returned
     */
    default CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey, Enqueue next) {
        return next.enqueue(jobs);
    }

    /**
     * Around a handler.
     *
     * @param job to run
     * @param next runs it
     * @return its outcome
     * @throws Exception of the handler
     */
    default Job.Outcome handle(Job job, Handle next) throws Exception {
        return next.handle(job);
    }

    /** The rest of an enqueue. */
    @FunctionalInterface
    interface Enqueue {
        /**
         * Enqueues.
         *
         * @param jobs to enqueue
         * @return one for each, when they are committed
         */
        CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs);
    }

    /** The rest of a handler. */
    @FunctionalInterface
    interface Handle {
        /**
         * Runs the job.
         *
         * @param job to run
         * @return its outcome
         * @throws Exception of the handler
         */
        Job.Outcome handle(Job job) throws Exception;
    }

    /**
     * Traces by OpenTelemetry: a span for each enqueue and each attempt, by the conventions for messaging. Jobs carry
     * the W3C trace context. Needs {@code opentelemetry-api}, which this library does not bring along.
     */
    final class Tracing implements Middleware {
        private static final W3CTraceContextPropagator W3C = W3CTraceContextPropagator.getInstance();
        private final Tracer tracer;

        /**
         * Traces.
         *
         * @param telemetry of the program
         */
        public Tracing(OpenTelemetry telemetry) {
            tracer = telemetry.getTracer("dev.howdah.client", HowdahClient.VERSION);
        }

        private SpanBuilder span(String operation, String taskType, SpanKind kind) {
            return tracer.spanBuilder(operation + " " + taskType).setSpanKind(kind)
                .setAttribute("messaging.system", "howdah").setAttribute("messaging.operation.name", operation)
                .setAttribute("messaging.operation.type", operation)
                .setAttribute("messaging.destination.name", taskType);
        }

        private static void failed(Span span, String error) {
            span.setStatus(StatusCode.ERROR, error.lines().findFirst().orElse(""));
        }

        @Override
        public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey,
                Enqueue next) {
            if (jobs.isEmpty()) {
                return next.enqueue(jobs);
            }
            var span = span("send", jobs.get(0).taskType(), SpanKind.PRODUCER).startSpan();
            if (jobs.size() > 1) {
                span.setAttribute("messaging.batch.message_count", jobs.size());
            }
            Map<String, String> trace = new HashMap<>();
            if (requestKey == null) {
                W3C.inject(Context.current().with(span), trace, Map::put);
            }
            var traced = jobs.stream().map(job -> job.options().getTraceparent().isEmpty() && !trace.isEmpty()
                ? job.toBuilder().trace(trace.get("traceparent"), trace.getOrDefault("tracestate", "")).build()
                    : job).toList();
            try (var scope = span.makeCurrent()) {
                return next.enqueue(traced).whenComplete((enqueued, error) -> {
                    if (error != null) {
                        failed(span, error.toString());
                    } else if (jobs.size() == 1) {
                        span.setAttribute("messaging.message.id", Long.toString(enqueued.get(0).id()));
                    }
                    span.end();
                });
            } catch (RuntimeException error) {
                failed(span, error.toString());
                span.end();
                throw error;
            }
        }

        @Override
        public Job.Outcome handle(Job job, Handle next) throws Exception {
            var message = job.message();
            var trace = Map.of("traceparent", message.getTraceparent(), "tracestate", message.getTracestate());
            var span = span("process", job.taskType(), SpanKind.CONSUMER).setParent(W3C.extract(Context.root(),
                trace, GETTER))
                .setAttribute("messaging.message.id", Long.toString(job.id())).startSpan();
            try (var scope = span.makeCurrent()) {
                var outcome = next.handle(job);
                observe(span, outcome);
                return outcome;
            } catch (Throwable thrown) {
                observe(span, Job.Outcome.of(thrown));
                throw thrown;
            } finally {
                span.end();
            }
        }

        private static void observe(Span span, Job.Outcome outcome) {
            if (outcome instanceof Job.Outcome.Retry retry) {
                failed(span, retry.error());
            } else if (outcome instanceof Job.Outcome.Fatal fatal) {
                failed(span, fatal.error());
            }
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
}
