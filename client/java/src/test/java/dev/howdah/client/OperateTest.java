package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.Job;
import dev.howdah.v1.JobState;
import dev.howdah.v1.OverlapPolicy;
import dev.howdah.v1.ReasonKind;
import dev.howdah.v1.TaskTypeSettings;
import java.net.URI;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class OperateTest {
    private final HowdahClient client = Brokers.client();
    private final String type = Brokers.newType();

    @AfterEach
    void close() {
        client.close();
    }

    private long enqueue(NewJob.Builder job) {
        return client.enqueue(job.build()).id();
    }

    private static List<Long> ids(Stream<Job> jobs) {
        return jobs.map(Job::getId).sorted().toList();
    }

    @Test
    void a_broker_for_tests_has_an_http_port_and_runs_a_delayed_job_when_it_is_told_to() throws Exception {
        try (var answer = URI.create(Brokers.httpAddress() + "/healthz").toURL().openStream()) {
            assertTrue(answer.readAllBytes().length > 0);
        }
        long id = client.enqueue(NewJob.builder(type).delay(Duration.ofDays(3)).build()).id();
        assertEquals(List.of(id), client.retry(List.of(id)));
        try (var worker = client.worker().handle(type, Object.class, (payload, job) -> Outcome.ok("ran")).start()) {
            assertEquals("ran", client.result(client.await(id, Brokers.TIMEOUT), String.class));
        }
    }

    @Test
    void a_broker_for_tests_runs_a_delayed_job_when_its_clock_advances() {
        try (var broker = HowdahTesting.Broker.start(); var own = HowdahClient.connect(broker.address());
                var worker = own.worker().handle(type, Object.class, (payload, job) -> Outcome.ok("ran")).start()) {
            long id = own.enqueue(NewJob.builder(type).delay(Duration.ofDays(3)).build()).id();
            var earliest = Instant.now().plus(3, ChronoUnit.DAYS);
            assertTrue(!broker.advance(Duration.ofDays(3)).isBefore(earliest));
            assertEquals("ran", own.result(own.await(id, Brokers.TIMEOUT), String.class));
            var refused = assertThrows(HowdahException.class, () -> broker.advance(Duration.ZERO));
            assertEquals("duration", refused.field());
        }
    }

    @Test
    void jobs_are_listed_and_found_by_key_tag_header_and_payload() {
        var since = Instant.now().minus(1, ChronoUnit.HOURS);
        long one = enqueue(NewJob.builder(type).payload(List.of(17)).key("k").tags(List.of("batch")));
        long two = enqueue(NewJob.builder(type).payload(List.of(18)).header("customer", "ann").tags(List.of("batch")));
        long three = enqueue(NewJob.builder(type).delay(Duration.ofHours(1)));
        assertEquals(List.of(three), ids(client.list(type, JobState.JOB_STATE_SCHEDULED)));
        assertEquals(List.of(one, two, three), ids(client.list(type, JobState.JOB_STATE_UNSPECIFIED)));
        var ready = JobState.JOB_STATE_READY;
        assertEquals(List.of(one), ids(client.search(Search.byKey(type, "k"))));
        assertEquals(List.of(one, two), ids(client.search(Search.byTag(type, "batch"))));
        assertEquals(List.of(), ids(client.search(Search.byTag(type, "batch").in(JobState.JOB_STATE_DEAD))));
        assertEquals(List.of(two), ids(client.search(Search.byHeader(type, "customer", "ann").in(ready, since))));
        assertEquals(List.of(one), ids(client.search(Search.byPayload(type, "17").in(ready, since))));
        assertEquals(List.of(two), ids(client.search(Search.byPath(type, "$[0] == 18").in(ready, since))));
        assertEquals(List.of(), ids(client.search(Search.byPath(type, "$[0] == 18").in(ready, since).until(
            since.plusSeconds(1)))));
    }

    @Test
    void a_list_continues_after_its_first_page() {
        client.enqueueAll(Stream.generate(() -> NewJob.of(type, null)).limit(250).toList());
        assertEquals(250, client.list(type, JobState.JOB_STATE_READY).map(Job::getId).distinct().count());
    }

    @Test
    void jobs_are_explained_cancelled_retried_and_discarded() {
        long later = enqueue(NewJob.builder(type).delay(Duration.ofHours(1)));
        long dead;
        try (var worker = client.worker().handle(type, Object.class, (payload, job) -> Outcome.fatal("broken")).start()) {
            dead = Brokers.ended(client, NewJob.of(type, null)).getId();
        }
        assertEquals(ReasonKind.REASON_KIND_DELAYED, client.explain(later).getReasons(0).getKind());
        assertEquals(List.of(later), client.cancel(List.of(later, Long.MAX_VALUE)));
        assertEquals(List.of(dead), client.retry(List.of(dead)));
        assertFalse(client.job(dead).orElseThrow().getState() == JobState.JOB_STATE_DEAD);
        try (var worker = client.worker().handle(type, Object.class, (payload, job) -> Outcome.fatal("broken")).start()) {
            client.await(dead, Brokers.TIMEOUT);
        }
        assertEquals(List.of(dead), client.discard(List.of(dead, later)));
    }

    @Test
    void jobs_that_a_filter_selects_are_cancelled_retried_and_discarded() {
        long one = enqueue(NewJob.builder(type).tags(List.of("a")).fairKey("f"));
        long two = enqueue(NewJob.builder(type).tags(List.of("a", "b")));
        long three = enqueue(NewJob.builder(type).limitKey("l").delay(Duration.ofHours(1)));
        try (var worker = client.worker().handle(type, Object.class, (payload, job) -> Outcome.fatal("broken")).start()) {
            client.awaitAll(List.of(one, two), Brokers.TIMEOUT, job -> { });
        }
        var filter = Filter.of(type).tag("a").createdSince(Instant.now().minus(1, ChronoUnit.HOURS));
        var dead = filter.state(JobState.JOB_STATE_DEAD);
        assertEquals(List.of(), client.retry(filter.fairKey("x")));
        assertEquals(List.of(), client.retry(filter.attemptsAtLeast(2)));
        assertEquals(List.of(two), client.discard(Filter.of(type).tag("b").attemptsAtMost(1)));
        assertEquals(List.of(one), client.retry(dead.errorGroup("broken")));
        var limited = Filter.of(type).limitKey("l").createdBefore(Instant.now().plus(1, ChronoUnit.HOURS));
        assertEquals(List.of(three), client.cancel(limited));
        assertEquals(List.of(one), client.cancel(Filter.of(type)));
        assertEquals(List.of(), client.cancel(Filter.of(type).heldBy("0123456789abcdef")));
    }

    @Test
    void an_applied_schedule_is_created_replaced_paused_run_and_deleted() {
        var schedules = client.schedules();
        var job = NewJob.builder(type).payload("x").priority(3).build();
        // The schedule starts later, because a time that passes between the two calls would change its planned times.
        var tomorrow = Instant.now().plus(1, ChronoUnit.DAYS);
        var hourly = Schedule.builder(type, job).every(Duration.ofHours(1)).start(tomorrow).build();
        var first = schedules.apply(hourly);
        assertEquals(10, first.getNextTimesCount());
        assertEquals(first.getNextTimesList(), schedules.apply(hourly).getNextTimesList());
        schedules.pause(type);
        var end = Instant.now().plus(3, ChronoUnit.DAYS).truncatedTo(ChronoUnit.MILLIS);
        schedules.apply(Schedule.builder(type, job).cron("30 2 * * *", ZoneId.of("Europe/Berlin"))
            .overlap(OverlapPolicy.OVERLAP_POLICY_SKIP).jitter(Duration.ofMinutes(1)).end(end).build());
        var changed = schedules.get(type).orElseThrow();
        assertTrue(changed.getPaused());
        assertEquals("Europe/Berlin", changed.getCron().getTimeZone());
        assertEquals(OverlapPolicy.OVERLAP_POLICY_SKIP, changed.getOverlap());
        assertEquals(60, changed.getJitter().getSeconds());
        assertEquals(end, NewJob.read(changed.getEndTime()));
        schedules.resume(type);
        var fired = client.job(schedules.run(type).id()).orElseThrow();
        assertEquals("\"x\"", fired.getPayload().toStringUtf8());
        assertEquals(3, fired.getPriority());
        assertTrue(schedules.list().anyMatch(schedule -> schedule.getName().equals(type) && !schedule.getPaused()));
        assertTrue(schedules.delete(type));
        assertFalse(schedules.delete(type));
        assertEquals(Optional.empty(), schedules.get(type));
    }

    @Test
    void applied_settings_of_a_task_type_replace_the_earlier_ones_and_keep_a_pause() {
        var types = client.taskTypes();
        assertEquals(Optional.empty(), types.get(type));
        types.apply(type, TaskTypeSettings.newBuilder().setMaxRunning(7).setPaused(true)
            .setTimeout(TaskTypes.duration(Duration.ofMinutes(5)))
            .setRetryPolicy(RetryPolicies.backoff(Duration.ofSeconds(1), Duration.ofMinutes(1))).build());
        var settings = types.get(type).orElseThrow().getSettings();
        assertFalse(settings.getPaused());
        assertEquals(7, settings.getMaxRunning());
        assertEquals(300, settings.getTimeout().getSeconds());
        assertEquals(60, settings.getRetryPolicy().getMaxDelay().getSeconds());
        types.pause(type);
        types.apply(type, TaskTypeSettings.newBuilder().setMaxAttempts(4).build());
        settings = types.get(type).orElseThrow().getSettings();
        assertTrue(settings.getPaused());
        assertEquals(0, settings.getMaxRunning());
        types.resume(type);
        settings = types.get(type).orElseThrow().getSettings();
        assertFalse(settings.getPaused());
        assertEquals(4, settings.getMaxAttempts());
    }
}
