package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.LeasedJob;
import io.grpc.Status;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class UnitTest {
    record Email(String to) {}

    @Test
    void a_handler_is_performed_without_a_broker() {
        var performed = HowdahTesting.perform((Email email, Job job) -> {
            job.progress(0.5, "half");
            return Outcome.ok(email.to());
        }, new Email("ann"));
        assertEquals(Outcome.ok("ann"), performed.outcome());
        assertEquals(0.5, performed.reports().get(0).getFraction());
    }

    @Test
    void a_performed_handler_gets_attempt_and_headers() {
        var leased = LeasedJob.newBuilder().setAttempt(3).putHeaders("a", "b");
        var performed = HowdahTesting.perform((Email email, Job job) ->
            Outcome.retryAfter(Duration.ofSeconds(job.attempt()), job.headers().get("a")), new Email("x"), leased);
        assertEquals(Outcome.retryAfter(Duration.ofSeconds(3), "b"), performed.outcome());
    }

    @Test
    void an_exception_keeps_its_stack_trace_and_the_method_that_threw_it() {
        var cause = new IllegalStateException("no route");
        var outcome = (Outcome.Retry) Outcome.of(new RuntimeException("not sent", cause));
        assertEquals("java.lang.RuntimeException: not sent", outcome.error());
        assertTrue(outcome.details().contains("Caused by: java.lang.IllegalStateException: no route"), outcome.details());
        assertEquals(UnitTest.class.getName() + ".an_exception_keeps_its_stack_trace_and_the_method_that_threw_it",
            outcome.place());
    }

    @Test
    void a_recorder_keeps_what_is_enqueued_by_call_and_by_pipeline() {
        var recorder = new HowdahTesting.Recorder();
        try (var client = recorder.client(); var producer = client.producer()) {
            assertEquals(1, client.enqueue(NewJob.of("a", Map.of("n", 1))).id());
            producer.enqueue(NewJob.of("b", null));
        }
        recorder.assertEnqueued("a", Map.of("n", 1));
        recorder.assertEnqueued("b", null);
        assertThrows(AssertionError.class, () -> recorder.assertEnqueued("a", Map.of("n", 2)));
        assertEquals(2, recorder.jobs().size());
    }

    @Test
    void a_recorder_answers_a_held_key_as_a_broker_does() {
        var type = Brokers.newType();
        var jobs = List.of(NewJob.builder(type).key("a"), NewJob.builder(type).key("a"), NewJob.builder(type).key("b"),
            NewJob.builder(type).key("a").keyPolicy(KeyPolicy.KEY_POLICY_REPLACE), NewJob.builder(type),
            NewJob.builder(type).key("a").keyPolicy(KeyPolicy.KEY_POLICY_REPLACE_IF_NEWER).keyVersion(5),
            NewJob.builder(type).key("a").keyPolicy(KeyPolicy.KEY_POLICY_REPLACE_IF_NEWER).keyVersion(5),
            NewJob.builder(type).key("a").keyPolicy(KeyPolicy.KEY_POLICY_REPLACE_IF_NEWER).keyVersion(6),
            NewJob.builder(type).key("b").keyPolicy(KeyPolicy.KEY_POLICY_DEBOUNCE).delay(Duration.ofHours(1)));
        var recorder = new HowdahTesting.Recorder();
        try (var recording = recorder.client(); var client = Brokers.client()) {
            for (int index = 0; index < jobs.size(); index++) {
                var job = jobs.get(index).payload(index).build();
                var expected = client.enqueue(job);
                var got = recording.enqueue(job);
                assertEquals(expected.outcome() + " " + expected.isNew(), got.outcome() + " " + got.isNew(), "job " + index);
            }
            assertEquals(List.of(7, 8, 4), recorder.jobs().stream().map(NewJob::payload).toList());
            assertEquals(2, recording.enqueue(NewJob.builder(type).key("b").build()).id());
            var reject = NewJob.builder(type).key("x").keyPolicy(KeyPolicy.KEY_POLICY_REJECT).build();
            for (var to : List.of(client, recording)) {
                var error = assertThrows(HowdahException.class, () -> to.enqueueAll(List.of(reject, reject)));
                assertEquals("KEY_TAKEN", error.reason());
            }
            assertEquals(3, recorder.jobs().size());
        }
    }

    @Test
    void a_recorder_refuses_what_a_broker_refuses_and_records_nothing() {
        var longText = "x".repeat(201);
        var bad = new LinkedHashMap<String, NewJob.Builder>();
        bad.put("task_type", NewJob.builder("no spaces"));
        bad.put("payload", NewJob.builder("a").payload(new byte[(1 << 20) + 1]));
        bad.put("headers", NewJob.builder("a").header("name", "x".repeat(8 << 10)));
        bad.put("priority", NewJob.builder("a").priority(1001));
        bad.put("max_attempts", NewJob.builder("a").maxAttempts(1001));
        bad.put("delay", NewJob.builder("a").delay(Duration.ofSeconds(-1)));
        bad.put("timeout", NewJob.builder("a").timeout(Duration.ofDays(31)));
        bad.put("expire_after", NewJob.builder("a").expireAfter(Duration.ZERO));
        bad.put("key", NewJob.builder("a").key(longText));
        bad.put("key_policy", NewJob.builder("a").keyPolicy(KeyPolicy.KEY_POLICY_REPLACE));
        bad.put("limit_key", NewJob.builder("a").limitKey(longText));
        bad.put("limit_max", NewJob.builder("a").limitMax(1));
        bad.put("fair_key", NewJob.builder("a").fairKey("line\n"));
        bad.put("tags", NewJob.builder("a").tags(Collections.nCopies(17, "x")));
        bad.put("tags[1]", NewJob.builder("a").tags(List.of("x", "")));
        bad.put("fallback", NewJob.builder("a").fallback("a"));
        bad.put("next_stages[1]", NewJob.builder("a").nextStages(List.of("b", "no spaces")));
        var recorder = new HowdahTesting.Recorder();
        try (var recording = recorder.client(); var client = Brokers.client()) {
            bad.forEach((field, job) -> List.of(recording, client).forEach(to -> {
                var jobs = List.of(NewJob.of("a", null), job.build());
                var error = assertThrows(HowdahException.class, () -> to.enqueueAll(jobs), field);
                assertEquals("INVALID_FIELD jobs[1]." + field, error.reason() + " " + error.field());
                assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
            }));
        }
        assertEquals(List.of(), recorder.jobs());
    }

    @Test
    void a_flush_fails_after_its_timeout() {
        var options = HowdahClient.builder().addresses("127.0.0.1:1").requestTimeout(Duration.ofMillis(500));
        try (var client = options.build(); var producer = client.producer()) {
            var answer = producer.submit(NewJob.of("a", 1));
            var error = assertThrows(HowdahException.class, () -> producer.flush(Duration.ofMillis(1)));
            assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
            assertThrows(CompletionException.class, answer::join);
            producer.flush(Duration.ofSeconds(30));
        }
    }

    @Test
    void a_token_goes_in_plain_text_to_this_machine_only_unless_that_is_said() {
        for (var address : new String[] {"127.0.0.1:7432", "http://localhost", "https://broker:7432", "[::1]:1"}) {
            HowdahClient.builder().addresses(address).token("hwd_secret").build().close();
        }
        var remote = HowdahClient.builder().addresses("http://192.0.2.1:7432").token("hwd_secret");
        var error = assertThrows(HowdahException.class, remote::build);
        assertFalse(error.toString().contains("secret"));
        remote.insecureToken().build().close();
    }

    @Test
    void what_is_no_token_is_refused_without_being_repeated() {
        for (var bad : new String[] {"", "a b", "schl\u00fcssel", "a\nb"}) {
            var error = assertThrows(HowdahException.class, () -> HowdahClient.builder().token(bad).build());
            assertEquals("token", error.field());
            assertTrue(bad.isEmpty() || !error.getMessage().contains(bad));
        }
    }

    @Test
    void a_token_file_is_read_again_when_it_changes(@TempDir Path directory) throws Exception {
        var file = Files.writeString(directory.resolve("token"), "one\n");
        var options = HowdahClient.builder().tokenFile(file);
        var credential = new Credential(options);
        assertEquals("one", credential.token());
        Files.writeString(file, "two\n");
        Files.setLastModifiedTime(file, FileTime.fromMillis(0));
        assertEquals("two", credential.token());
        assertFalse(credential.reread());
    }

    @Test
    void an_address_that_is_none_is_refused() {
        for (var bad : new String[] {"ftp://broker", "http://", ":7432", "a b"}) {
            var error = assertThrows(HowdahException.class, () -> HowdahClient.builder().addresses(bad).build());
            assertEquals("address", error.field(), bad);
        }
    }

    @Test
    void the_environment_has_the_variables_of_the_program() {
        var options = HowdahClient.builder().environment(Map.of("HOWDAH_SERVER", "a:1,https://b", "HOWDAH_TOKEN", "t",
            "HOWDAH_TLS_CA", "ca.pem", "HOWDAH_CLIENT_INSECURE", "true"));
        assertEquals("[a:1, https://b] t ca.pem true",
            options.addresses + " " + options.token + " " + options.ca + " " + options.insecureToken);
    }

    @Test
    void pauses_double_and_stay_under_five_seconds() {
        var backoff = new Connection.Backoff();
        for (long bound = 50; bound < 100_000; bound *= 2) {
            long pause = backoff.next() / 1_000_000;
            assertTrue(pause >= Math.min(bound, 5_000) / 2 && pause < Math.min(bound, 5_000), pause + " of " + bound);
        }
    }

    @Test
    void request_keys_are_new_each_time_and_begin_with_the_time() {
        var one = HowdahClient.newRequestKey();
        var two = HowdahClient.newRequestKey();
        assertEquals(32, one.length());
        assertFalse(one.equals(two));
        assertTrue(one.substring(0, 12).compareTo(two.substring(0, 12)) <= 0);
    }
}
