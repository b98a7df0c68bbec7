package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.PullJobsRequest;
import dev.howdah.v1.RetryPolicy;
import dev.howdah.v1.WorkerServiceGrpc;
import io.grpc.Status;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * Tests of the spans and metrics of {@link Telemetry}, with a broker and in-memory exporters. docs/operate/tracing.md
 * lists them.
 */
class TelemetryTest extends TelemetryTestBase {
    private static final String TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    private static final SpanContext REMOTE = SpanContext.createFromRemoteParent("1af7651916cd43dd8448eb211c80319d",
        "c7ad6b7169203332", TraceFlags.getSampled(), TraceState.getDefault());

    private final HowdahClient client = client(new Telemetry(sdk), Brokers.address());
    private final String type = Brokers.newType();

    private static HowdahClient client(Telemetry telemetry, String... addresses) {
        return HowdahClient.builder().addresses(addresses).requestTimeout(Duration.ofSeconds(20)).middleware(telemetry)
            .build();
    }

    @AfterEach
    void close() {
        client.close();
        sdk.close();
    }

    /** Returns the trace contexts of ready jobs by job id. */
    private Map<Long, String> contexts(String... taskTypes) {
        var request = PullJobsRequest.newBuilder().addAllTaskTypes(List.of(taskTypes)).setMaxJobs(100).build();
        return client.call(WorkerServiceGrpc::newBlockingStub, workers -> workers.pullJobs(request)).getJobsList()
            .stream().collect(Collectors.toMap(job -> job.getId(), job -> job.getTraceparent()));
    }

    private Worker work(HowdahClient client, Worker.Handler<Object> handler) {
        return client.worker().handle(type, Object.class, handler).start();
    }

    @Test
    void one_job_is_one_trace_from_the_request_to_the_confirmation() {
        var inside = new AtomicReference<String>();
        long id;
        try (var worker = work(client, (payload, job) -> {
            inside.set(Span.current().getSpanContext().getSpanId());
            return Outcome.ok();
        })) {
            try (var scope = Span.wrap(REMOTE).makeCurrent()) {
                id = client.enqueue(NewJob.of(type, 1)).id();
            }
            client.await(id, Brokers.TIMEOUT);
        }
        var send = span("send " + type);
        var process = span("process " + type);
        var ack = span("ack " + type);
        for (var each : List.of(send, process, ack)) {
            assertEquals(REMOTE.getTraceId(), each.getTraceId());
            assertEquals(StatusCode.UNSET, each.getStatus().getStatusCode());
            assertEquals(HowdahClient.VERSION, each.getInstrumentationScopeInfo().getVersion());
        }
        assertEquals(List.of(SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT),
            List.of(send.getKind(), process.getKind(), ack.getKind()));
        assertEquals(List.of(REMOTE.getSpanId(), send.getSpanId(), process.getSpanId()),
            List.of(send.getParentSpanId(), process.getParentSpanId(), ack.getParentSpanId()));
        assertEquals(List.of(Set.of(), Set.of(send.getSpanId()), Set.of()),
            List.of(links(send), links(process), links(ack)));
        assertEquals(process.getSpanId(), inside.get());
        var jobAttributes = Map.of("messaging.message.id", Long.toString(id));
        assertEquals(expected("send", "send", type, jobAttributes), attributes(send));
        var attemptAttributes = Map.of("messaging.message.id", Long.toString(id), "howdah.attempt", 1L);
        assertEquals(expected("process", "process", type, attemptAttributes), attributes(process));
        assertEquals(expected("ack", "settle", type, attemptAttributes), attributes(ack));
        assertEquals(process.getEndEpochNanos(), ack.getStartEpochNanos());
        assertEquals(Map.of("send send", 1L, "ack settle", 1L), counted(OPERATION, type));
        assertEquals(Map.of("send", 1L), counted(SENT, type));
        assertEquals(Map.of("process", 1L), counted(CONSUMED, type));
        assertEquals(Map.of("process", 1L), counted(PROCESS, type));
    }

    @Test
    void each_of_several_jobs_in_one_call_or_submission_has_a_create() {
        try (var producer = client.producer()) {
            for (boolean call : List.of(true, false)) {
                exporter.reset();
                String one = Brokers.newType(), other = Brokers.newType();
                var jobs = List.of(NewJob.of(one, 1), NewJob.of(other, 2),
                    NewJob.builder(one).trace(TRACEPARENT, "").build());
                var answers = call ? client.enqueueAll(jobs) : producer.submitAll(jobs).join();
                var send = span("send");
                var creates = List.of(span("create " + one), span("create " + other));
                var wanted = new HashMap<Long, String>(Map.of(answers.get(2).id(), TRACEPARENT));
                for (int index = 0; index < creates.size(); index++) {
                    var create = creates.get(index);
                    var id = answers.get(index).id();
                    assertEquals(SpanKind.PRODUCER, create.getKind());
                    assertEquals(send.getSpanId(), create.getParentSpanId());
                    assertEquals(expected("create", "create", index == 0 ? one : other,
                        Map.of("messaging.message.id", Long.toString(id))), attributes(create));
                    wanted.put(id, traceparent(create));
                }
                assertEquals(wanted, contexts(one, other));
                assertEquals(SpanKind.CLIENT, send.getKind());
                assertEquals(Set.of("b7ad6b7169203331", creates.get(0).getSpanId(), creates.get(1).getSpanId()),
                    links(send));
                assertEquals(expected("send", "send", null, Map.of("messaging.batch.message_count", 3L)),
                    attributes(send));
                assertEquals(List.of(Map.of("send", 2L), Map.of("send", 1L)),
                    List.of(counted(SENT, one), counted(SENT, other)));
                assertEquals(Map.of(), counted(OPERATION, one));
            }
        }
    }

    @Test
    void the_jobs_of_a_request_with_a_key_of_the_caller_get_no_context() {
        var jobs = List.of(NewJob.of(type, 1), NewJob.of(type, 2));
        var key = HowdahClient.newRequestKey();
        var first = client.enqueueAll(jobs, key);
        assertEquals(first.stream().map(job -> job.id()).toList(),
            client.enqueueAll(jobs, key).stream().map(job -> job.id()).toList());
        assertEquals(Set.of(""), Set.copyOf(contexts(type).values()));
        for (var send : spans("send " + type)) {
            assertEquals(SpanKind.CLIENT, send.getKind());
            assertEquals(Set.of(), links(send));
        }
        assertEquals(List.of(), spans("create " + type));
    }

    @Test
    void a_job_with_a_context_of_its_own_keeps_it() {
        var id = client.enqueue(NewJob.builder(type).trace(TRACEPARENT, "vendor=abc").build()).id();
        assertEquals(Map.of(id, TRACEPARENT), contexts(type));
        var send = span("send " + type);
        assertEquals(SpanKind.CLIENT, send.getKind());
        assertEquals("abc", send.getLinks().get(0).getSpanContext().getTraceState().get("vendor"));
    }

    @Test
    void a_job_of_a_pipeline_has_a_span_until_its_answer() {
        try (var producer = client.producer()) {
            var good = producer.submit(NewJob.of(type, 1));
            var bad = producer.submit(NewJob.of("no spaces", 2));
            assertThrows(RuntimeException.class, bad::join);
            assertEquals(Map.of(good.join().id(), traceparent(span("send " + type))), contexts(type));
        }
        assertEquals("INVALID_FIELD", attributes(span("send no spaces")).get("error.type"));
    }

    @Test
    void a_refused_enqueue_and_a_broker_that_is_away_are_errors() {
        assertThrows(HowdahException.class, () -> client.enqueue(NewJob.of("bad type", 1)));
        try (var away = HowdahClient.builder().addresses("127.0.0.1:1", "localhost:2")
            .requestTimeout(Duration.ofMillis(300)).middleware(new Telemetry(sdk)).build()) {
            assertThrows(HowdahException.class, () -> away.enqueue(NewJob.of("away", 1)));
        }
        var refused = span("send bad type");
        var unsent = span("send away");
        assertEquals("INVALID_FIELD", attributes(refused).get("error.type"));
        assertEquals("UNAVAILABLE", attributes(unsent).get("error.type"));
        assertEquals(StatusCode.ERROR, refused.getStatus().getStatusCode());
        assertTrue(refused.getStatus().getDescription().contains("bad type"));
        assertEquals(List.of("exception"), refused.getEvents().stream().map(event -> event.getName()).toList());
        var server = attributes(unsent).get("server.address") + ":" + attributes(unsent).get("server.port");
        assertTrue(Set.of("127.0.0.1:1", "localhost:2").contains(server), server);
        assertEquals(Map.of("send INVALID_FIELD", 1L), counted(SENT, "bad type"));
        assertEquals(Map.of("send send INVALID_FIELD", 1L), counted(OPERATION, "bad type"));
    }

    private static Outcome first(String kind) {
        return switch (kind) {
            case "retry" -> Outcome.retry("later" + "ä".repeat(1024));
            case "fatal" -> throw Outcome.fatal("never").asException();
            case "snooze" -> Outcome.snooze(Duration.ofHours(1));
            case "release" -> Outcome.release();
            case "unwritable" -> Outcome.ok(new Object() {
                @SuppressWarnings("unused")
                public int getBroken() {
                    throw new IllegalStateException("no value");
                }
            });
            default -> throw new IllegalStateException("a bug");
        };
    }

    @Test
    void each_outcome_has_a_span_and_failures_are_errors() {
        var seen = ConcurrentHashMap.<Object>newKeySet();
        var kinds = new HashMap<String, String>();
        try (var worker = work(client, (kind, job) -> seen.add(kind) ? first(kind.toString()) : Outcome.ok())) {
            var policy = RetryPolicy.newBuilder().setKind(dev.howdah.v1.RetryPolicyKind.RETRY_POLICY_KIND_FIXED)
                .setInitialDelay(NewJob.wire(Duration.ZERO)).build();
            var waited = new ArrayList<Long>();
            for (var kind : List.of("retry", "bug", "fatal", "snooze", "release", "unwritable")) {
                var id = client.enqueue(NewJob.builder(type).payload(kind).retryPolicy(policy).build()).id();
                kinds.put(Long.toString(id), kind);
                if (!kind.equals("snooze")) {
                    waited.add(id);
                }
            }
            client.awaitAll(waited, Brokers.TIMEOUT, job -> { });
        }
        var found = new TreeMap<String, List<String>>();
        for (var operation : List.of("ack", "nack", "snooze", "release")) {
            for (var settle : spans(operation + " " + type)) {
                var process = spans("process " + type).stream()
                    .filter(span -> span.getSpanId().equals(settle.getParentSpanId())).findFirst().orElseThrow();
                var error = process.getAttributes().get(AttributeKey.stringKey("error.type"));
                assertEquals(error != null, process.getStatus().getStatusCode() == StatusCode.ERROR);
                assertEquals(error != null ? 1 : 0, process.getEvents().size());
                assertEquals(StatusCode.UNSET, settle.getStatus().getStatusCode());
                var text = process.getStatus().getDescription();
                assertTrue(text.getBytes(StandardCharsets.UTF_8).length <= 1024 && !text.contains("\ufffd"));
                found.computeIfAbsent(kinds.get(attributes(settle).get("messaging.message.id")),
                    kind -> new ArrayList<>()).add(error == null ? operation : operation + " " + error + " "
                        + text.substring(0, 5));
            }
        }
        assertEquals(new TreeMap<>(Map.of("retry", List.of("ack", "nack retry later"), "bug",
            List.of("ack", "nack retry java."), "fatal", List.of("nack fatal never"), "snooze", List.of("snooze"),
            "release", List.of("ack", "release"), "unwritable", List.of("nack fatal the r"))), found);
        assertEquals(Map.of("process", 5L, "process retry", 2L, "process fatal", 2L), counted(PROCESS, type));
        assertEquals(Map.of("process", 9L), counted(CONSUMED, type));
        assertEquals(Map.of("send send", 6L, "ack settle", 3L, "nack settle", 4L, "snooze settle", 1L,
            "release settle", 1L), counted(OPERATION, type));
    }

    @Test
    void an_outcome_that_is_refused_is_one_nack() {
        try (var worker = work(client, (payload, job) -> Outcome.nextStage("no spaces", null))) {
            Brokers.ended(client, NewJob.builder(type).maxAttempts(1).build());
        }
        assertEquals(StatusCode.UNSET, span("nack " + type).getStatus().getStatusCode());
        assertEquals(Map.of("send send", 1L, "nack settle", 1L), counted(OPERATION, type));
    }

    @Test
    void an_outcome_without_effect_is_an_error() throws Exception {
        // Runs without a broker. A real broker reports a lost lease before the outcome is answered, except in a rare
        // race.
        var job = new Job(LeasedJob.newBuilder().setId(7).setTaskType(type).setAttempt(1).build(),
            HowdahClient.builder().json, report -> { }, extension -> { }, start -> List.of());
        job.broker = URI.create("http://broker:80");
        var telemetry = new Telemetry(sdk);
        var outcome = job.perform(same -> telemetry.handle(same, last -> Outcome.ok()));
        var lost = new HowdahException(Status.Code.FAILED_PRECONDITION, "LEASE_LOST", "", "the lease is lost");
        job.notifyObservers(observer -> observer.settled(outcome, 1_000_000, lost));
        var settle = span("ack " + type);
        assertEquals("LEASE_LOST", attributes(settle).get("error.type"));
        assertEquals("the lease is lost", settle.getStatus().getDescription());
        assertEquals(List.of("exception"), settle.getEvents().stream().map(event -> event.getName()).toList());
        assertEquals(Map.of("ack settle LEASE_LOST", 1L), counted(OPERATION, type));
    }

    @Test
    void an_outcome_that_no_broker_confirms_is_an_error() throws Exception {
        var started = new CountDownLatch(1);
        var end = new CountDownLatch(1);
        Worker worker;
        HowdahClient lonely;
        try (var broker = HowdahTesting.Broker.start()) {
            lonely = client(new Telemetry(sdk), broker.address());
            worker = lonely.worker().stopTimeout(Duration.ZERO).handle(type, Object.class, (payload, job) -> {
                started.countDown();
                while (end.getCount() > 0) {
                    try {
                        end.await();
                    } catch (InterruptedException interrupted) {
                        continue;
                    }
                }
                return Outcome.ok();
            }).start();
            lonely.enqueue(NewJob.of(type, 1));
            started.await();
        }
        worker.stop();
        assertEquals(1, worker.join().unconfirmed());
        end.countDown();
        lonely.close();
        var settle = span("release " + type);
        assertEquals(StatusCode.ERROR, settle.getStatus().getStatusCode());
        assertEquals("UNCONFIRMED", attributes(settle).get("error.type"));
        assertEquals(1, counted(OPERATION, type).get("release settle UNCONFIRMED"));
    }

    @Test
    void with_linked_each_attempt_begins_a_trace() {
        try (var linked = client(new Telemetry(sdk).linked(), Brokers.address());
                var worker = work(linked, (payload, job) -> Outcome.ok())) {
            Brokers.ended(linked, NewJob.of(type, 1));
        }
        var send = span("send " + type);
        var process = span("process " + type);
        assertFalse(process.getParentSpanContext().isValid());
        assertEquals(Set.of(send.getSpanId()), links(process));
        assertNotEquals(send.getTraceId(), process.getTraceId());
        assertEquals(process.getTraceId(), span("ack " + type).getTraceId());
    }

    @Test
    void what_is_not_sampled_goes_on_unsampled_and_is_measured() {
        var seen = ConcurrentHashMap.<String>newKeySet();
        try (var worker = work(client, (payload, job) -> {
            seen.add(job.message().getTraceparent());
            return Outcome.ok();
        })) {
            var unsampled = SpanContext.createFromRemoteParent(REMOTE.getTraceId(), REMOTE.getSpanId(),
                TraceFlags.getDefault(), TraceState.getDefault());
            List<Long> ids;
            try (var scope = Span.wrap(unsampled).makeCurrent()) {
                ids = client.enqueueAll(List.of(NewJob.of(type, 1), NewJob.of(type, 2))).stream()
                    .map(job -> job.id()).toList();
            }
            client.awaitAll(ids, Brokers.TIMEOUT, job -> { });
        }
        assertEquals(1, seen.size());
        assertTrue(seen.iterator().next().matches("00-" + REMOTE.getTraceId() + "-[0-9a-f]{16}-0[02]"), seen.toString());
        assertEquals(List.of(), exporter.getFinishedSpanItems());
        assertEquals(Map.of("send send", 1L, "ack settle", 2L), counted(OPERATION, type));
        assertEquals(Map.of("send", 2L), counted(SENT, type));
    }

    @Test
    void a_job_without_a_context_begins_a_trace() {
        try (var scope = Span.wrap(REMOTE).makeCurrent();
                var worker = work(client, (payload, job) -> Outcome.ok())) {
            var jobs = client.enqueueAll(List.of(NewJob.of(type, 1)), HowdahClient.newRequestKey());
            client.await(jobs.get(0).id(), Brokers.TIMEOUT);
        }
        var process = span("process " + type);
        assertFalse(process.getParentSpanContext().isValid());
        assertEquals(Set.of(), links(process));
    }
}
