package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.v1.EnqueueOutcome;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.JobState;
import dev.howdah.v1.ListJobsRequest;
import dev.howdah.v1.TaskTypeServiceGrpc;
import dev.howdah.v1.TaskTypeSettings;
import dev.howdah.v1.UpdateTaskTypeRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class EnqueueTest {
    private final HowdahClient client = Brokers.client();
    private final String type = Brokers.newType();

    @AfterEach
    void close() {
        client.close();
    }

    @Test
    void an_option_of_a_job_arrives_at_the_broker() {
        var job = NewJob.builder(type).payload(Map.of("n", 1)).priority(-3).maxAttempts(2).delay(Duration.ofHours(1))
            .header("tenant", "ann").tags(List.of("batch-17", "ü")).limitKey("l").fairKey("f").build();
        var stored = client.job(client.enqueue(job).id()).orElseThrow();
        assertEquals("{\"n\":1}", stored.getPayload().toStringUtf8());
        assertEquals(-3, stored.getPriority());
        assertEquals(2, stored.getMaxAttempts());
        assertEquals(JobState.JOB_STATE_SCHEDULED, stored.getState());
        assertEquals(Map.of("tenant", "ann"), stored.getHeadersMap());
        assertEquals(List.of("batch-17", "ü"), stored.getTagsList());
        assertEquals("lf", stored.getLimitKey() + stored.getFairKey());
    }

    @Test
    void a_refused_job_says_which_field_and_why() {
        var jobs = List.of(NewJob.of(type, null), NewJob.of("no spaces", null));
        var error = assertThrows(HowdahException.class, () -> client.enqueueAll(jobs));
        assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
        assertEquals("INVALID_FIELD", error.reason());
        assertEquals("jobs[1].task_type", error.field());
        assertFalse(error.isRetryable());
    }

    @Test
    void a_full_backlog_says_when_to_try_again() {
        var settings = TaskTypeSettings.newBuilder().setMaxBacklog(2);
        var request = UpdateTaskTypeRequest.newBuilder().setTaskType(type).setSettings(settings).build();
        client.call(TaskTypeServiceGrpc::newBlockingStub, stub -> stub.updateTaskType(request));
        var jobs = List.of(NewJob.of(type, 1), NewJob.of(type, 2));
        client.enqueueAll(jobs);
        var error = assertThrows(HowdahException.class, () -> client.enqueueAll(jobs));
        assertEquals("BACKLOG_FULL", error.reason());
        assertTrue(error.retryAfter().isPresent());
    }

    @Test
    void the_same_request_key_returns_the_same_job() {
        var key = HowdahClient.newRequestKey();
        var first = client.enqueueAll(List.of(NewJob.of(type, 1)), key).get(0);
        var again = client.enqueueAll(List.of(NewJob.of(type, 1)), key).get(0);
        assertTrue(first.isNew());
        assertEquals(first.id(), again.id());
        assertEquals(EnqueueOutcome.ENQUEUE_OUTCOME_REPEATED, again.outcome());
    }

    @Test
    void a_held_key_is_no_error() {
        var job = NewJob.builder(type).key("k").build();
        var first = client.enqueue(job);
        var second = client.enqueue(job);
        assertEquals(first.id(), second.id());
        assertFalse(second.isNew());
        assertEquals(EnqueueOutcome.ENQUEUE_OUTCOME_KEPT, second.outcome());
    }

    @Test
    void a_pipeline_stores_every_job_once_in_order() {
        try (var producer = client.producer(new Producer.Limits(2, 10, 1 << 20, 4_096))) {
            var answers = IntStream.range(0, 500).mapToObj(n -> producer.submit(NewJob.of(type, n))).toList();
            var ids = answers.stream().map(answer -> answer.join().id()).toList();
            assertEquals(ids.stream().sorted().distinct().toList(), ids);
        }
        var request = ListJobsRequest.newBuilder().setTaskType(type).setPageSize(1000).build();
        assertEquals(500, client.call(JobServiceGrpc::newBlockingStub, jobs -> jobs.listJobs(request)).getJobsCount());
    }

    @Test
    void one_bad_job_of_a_pipeline_fails_alone() {
        try (var producer = client.producer()) {
            var good = producer.submit(NewJob.of(type, 1));
            var bad = producer.submitAll(List.of(NewJob.of(type, 2), NewJob.of("no spaces", 3)));
            var other = producer.submit(NewJob.of(type, 4));
            assertTrue(good.join().isNew() && other.join().isNew());
            var error = assertThrows(CompletionException.class, bad::join);
            var cause = assertInstanceOf(HowdahException.class, error.getCause());
            assertEquals("jobs[1].task_type", cause.field());
        }
    }

    @Test
    void a_closed_pipeline_takes_no_more() {
        var producer = client.producer();
        producer.close();
        var error = assertThrows(HowdahException.class, () -> producer.enqueue(NewJob.of(type, 1)));
        assertEquals(Status.Code.CANCELLED, error.code());
    }

    @Test
    void a_cancelled_job_has_ended_and_an_unknown_one_is_not_there() {
        long id = client.enqueue(NewJob.of(type, 1)).id();
        assertEquals(List.of(id), client.cancel(List.of(id)));
        assertEquals(JobState.JOB_STATE_CANCELLED, client.await(id, Brokers.TIMEOUT).getState());
        assertTrue(client.job(Long.MAX_VALUE).isEmpty());
    }

    @Test
    void a_wait_ends_at_its_timeout() {
        long id = client.enqueue(NewJob.of(type, 1)).id();
        var error = assertThrows(HowdahException.class, () -> client.await(id, Duration.ofMillis(100)));
        assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
    }

    @Test
    void a_call_goes_on_at_the_next_broker() {
        try (var two = HowdahClient.connect("127.0.0.1:1", Brokers.address())) {
            assertTrue(two.enqueue(NewJob.of(type, 1)).isNew());
        }
    }

    @Test
    void nobody_there_is_an_error_that_passes() {
        var error = assertThrows(HowdahException.class, () -> HowdahClient.connect("127.0.0.1:1"));
        assertEquals(Status.Code.UNAVAILABLE, error.code());
        assertTrue(error.isRetryable());
        assertTrue(error.getMessage().startsWith("http://127.0.0.1:1: "), error.getMessage());
    }
}
