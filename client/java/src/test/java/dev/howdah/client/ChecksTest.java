package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Values that the client refuses without a call. */
class ChecksTest {
    private static final String BAD = "caf\ud800";
    private final HowdahClient client = Brokers.client();
    private final String type = Brokers.newType();

    @AfterEach
    void close() {
        client.close();
    }

    private static String refused(String field, Executable call) {
        return refused(field, assertThrows(HowdahException.class, call, field));
    }

    private static String refused(String field, HowdahException error) {
        assertEquals(field, error.field(), error.getMessage());
        assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
        assertTrue(!error.isRetryable());
        return error.getMessage();
    }

    @Test
    void a_text_with_an_unpaired_surrogate_is_refused() {
        var bad = new LinkedHashMap<String, NewJob.Builder>();
        bad.put("jobs[0].key", NewJob.builder(type).key(BAD));
        bad.put("jobs[0].headers", NewJob.builder(type).header("a", BAD));
        bad.put("jobs[0].tags[1]", NewJob.builder(type).tags(List.of("a", BAD)));
        var recorder = new HowdahTesting.Recorder();
        try (var recording = recorder.client()) {
            bad.forEach((field, job) -> List.of(client, recording).forEach(to -> {
                var text = refused(field, () -> to.enqueue(job.build()));
                assertTrue(text.contains("caf\ufffd"), text);
            }));
        }
        refused("request_key", () -> client.enqueueAll(List.of(NewJob.of(type, 1)), BAD));
        refused("schedule.name", () -> client.schedules().apply(
            Schedule.builder(BAD, NewJob.of(type, 1)).every(Duration.ofHours(1)).build()));
        refused("filter.conditions.tag", () -> client.cancel(Filter.of(type).tag(BAD)));
        assertEquals("\ud83d\ude00", client.job(client.enqueue(NewJob.builder(type).key("\ud83d\ude00").build()).id())
            .orElseThrow().getKey());
    }

    @Test
    void a_producer_refuses_a_text_or_payload_that_cannot_be_encoded_and_stores_the_other_jobs() {
        var endless = new ArrayList<Object>();
        endless.add(endless);
        try (var producer = client.producer()) {
            var good = producer.submit(NewJob.of(type, 1));
            var bad = producer.submitAll(List.of(NewJob.of(type, 2), NewJob.builder(type).key(BAD).build()));
            var unreadable = producer.submit(NewJob.of(type, endless));
            assertTrue(good.join().isNew() && producer.enqueue(NewJob.of(type, 3)).isNew());
            for (var refused : Map.of("jobs[1].key", bad, "payload", unreadable).entrySet()) {
                var error = assertThrows(CompletionException.class, refused.getValue()::join);
                refused(refused.getKey(), assertInstanceOf(HowdahException.class, error.getCause()));
            }
        }
    }

    @Test
    void texts_of_a_worker_that_cannot_be_encoded_are_refused_or_repaired() {
        Worker.Handler<String> handler = (how, job) -> {
            if (how.equals("progress")) {
                job.progress(0.5, BAD);
            }
            return how.equals("stage") ? Outcome.nextStage(BAD, null) : Outcome.fatal(BAD);
        };
        refused("labels", () -> client.worker().label("host", BAD).handle(type, String.class, handler).start());
        refused("windows[0].task_type", () -> client.worker().handle(BAD, String.class, handler).start());
        try (var worker = client.worker().handle(type, String.class, handler).start()) {
            for (var each : Map.of("progress", "text: the text has an unpaired surrogate", "stage",
                    "ack.next_stage: the text has an unpaired surrogate", "error", "caf\ufffd").entrySet()) {
                var job = NewJob.builder(type).payload(each.getKey()).maxAttempts(1).build();
                var error = Brokers.ended(client, job).getFailures(0).getError();
                assertTrue(error.contains(each.getValue()), error);
            }
        }
    }

    @Test
    void options_that_exclude_each_other_are_refused_by_name() {
        var delayed = NewJob.builder(type).delay(Duration.ofHours(1)).priority(1);
        var text = refused("run_at", () -> delayed.runAt(Instant.now()));
        assertTrue(text.contains("delay and run_at"), text);
        refused("expire_at", () -> NewJob.builder(type).expireAfter(Duration.ofHours(1)).expireAt(Instant.now()));
        var schedule = Schedule.builder(type, NewJob.of(type, 1)).cron("30 2 * * *", ZoneOffset.UTC);
        refused("period", () -> schedule.every(Duration.ofHours(1)));
        refused("token", () -> HowdahClient.builder().token("hwd_x").tokenFile(Path.of("token")).build());
        // A builder accepts the same option twice, and another option instead of one of a copied job.
        var copy = NewJob.builder(type).delay(Duration.ofHours(1)).delay(Duration.ofHours(2)).build().toBuilder()
            .priority(1).runAt(Instant.now()).build();
        assertTrue(copy.options().hasRunAt());
    }

    @Test
    void handlers_and_numbers_that_are_invalid_are_refused() {
        Worker.Handler<Object> handler = (payload, job) -> Outcome.ok();
        var twice = client.worker().handle(type, Object.class, handler);
        var text = refused("taskType", () -> twice.handle(type, 2, Object.class, handler));
        assertTrue(text.contains(type), text);
        refused("concurrency", () -> client.worker().concurrency(-1));
        refused("concurrency", () -> client.worker().handle(type, -1, Object.class, handler));
        refused("window", () -> client.worker().window(-1));
        refused("stopTimeout", () -> client.worker().stopTimeout(Duration.ofSeconds(-1)));
        refused("maxInFlight", () -> new Producer.Limits(0, 1, 1, 1));
        refused("maxMessageBytes", () -> HowdahClient.builder().maxMessageBytes(-1));
        refused("requestTimeout", () -> HowdahClient.builder().requestTimeout(Duration.ofSeconds(-1)));
        try (var worker = twice.start()) {
            refused("taskType", () -> worker.concurrency("other", 1));
            refused("jobs", () -> worker.concurrency(type, -1));
        }
    }

    @Test
    void a_condition_that_is_empty_or_given_twice_is_refused() {
        var filter = Filter.of(type).tag("a");
        refused("tag", () -> Filter.of(type).tag(""));
        refused("tag", () -> filter.tag("b"));
        refused("fair_key", () -> filter.fairKey(""));
        refused("error_group", () -> filter.errorGroup(""));
        refused("state", () -> filter.state(dev.howdah.v1.JobState.JOB_STATE_UNSPECIFIED));
        refused("attempts_at_least", () -> filter.attemptsAtLeast(0).attemptsAtLeast(0));
        refused("filter", () -> client.cancel(Filter.of("")));
        refused("tag", () -> Search.byTag(type, ""));
    }
}
