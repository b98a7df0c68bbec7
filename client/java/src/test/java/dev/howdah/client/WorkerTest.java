package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.CancelReason;
import dev.howdah.v1.JobState;
import dev.howdah.v1.RetryPolicy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class WorkerTest {
    private final HowdahClient client = Brokers.client();
    private final String type = Brokers.newType();

    record Order(String name, int count) {}

    @AfterEach
    void close() {
        client.close();
    }

    private Worker work(Worker.Handler<Object> handler) {
        return client.worker().handle(type, Object.class, handler).start();
    }

    @Test
    void a_typed_payload_arrives_and_a_typed_result_comes_back() {
        try (var worker = client.worker().handle(type, Order.class, (order, job) ->
                Outcome.ok(new Order(order.name(), order.count() + 1))).start()) {
            var job = Brokers.ended(client, NewJob.of(type, new Order("a", 1)));
            assertEquals(new Order("a", 2), client.result(job, Order.class));
        }
    }

    @Test
    void bytes_and_protobuf_messages_are_taken_as_they_are() {
        var other = Brokers.newType();
        var policy = RetryPolicy.newBuilder().setJitter(0.5).build();
        try (var worker = client.worker().handle(type, byte[].class, (bytes, job) -> Outcome.ok(bytes))
                .handle(other, RetryPolicy.class, (message, job) -> Outcome.ok(message)).start()) {
            var bytes = Brokers.ended(client, NewJob.of(type, new byte[] {0, -1}));
            assertEquals(2, client.result(bytes, byte[].class).length);
            assertEquals(policy, client.result(Brokers.ended(client, NewJob.of(other, policy)), RetryPolicy.class));
        }
    }

    @Test
    void a_payload_that_cannot_be_read_is_dead_at_once() {
        try (var worker = client.worker().handle(type, Order.class, (order, job) -> Outcome.ok()).start()) {
            var job = Brokers.ended(client, NewJob.of(type, "no order"));
            assertEquals(JobState.JOB_STATE_DEAD, job.getState());
            var error = job.getFailures(0).getError();
            assertTrue(error.startsWith("the payload is not a " + Order.class.getName() + ": Cannot construct instance"), error);
            assertFalse(error.contains("Source"), error);
        }
    }

    @Test
    void an_exception_fails_the_attempt_and_its_text_is_kept() {
        var fast = RetryPolicy.newBuilder().setInitialDelay(NewJob.wire(Duration.ZERO)).build();
        try (var worker = work((payload, job) -> {
            if (job.attempt() == 1) {
                throw new IllegalStateException("not yet");
            }
            return Outcome.ok();
        })) {
            var job = Brokers.ended(client, NewJob.builder(type).payload(1).retryPolicy(fast).build());
            assertEquals(JobState.JOB_STATE_SUCCEEDED, job.getState());
            var failure = job.getFailures(0);
            assertEquals("java.lang.IllegalStateException: not yet", failure.getError());
            assertTrue(failure.getDetails().startsWith("java.lang.IllegalStateException: not yet\n\tat "), failure.getDetails());
        }
    }

    @Test
    void each_failed_attempt_is_logged_once_with_id_type_and_attempt() {
        var records = new CopyOnWriteArrayList<LogRecord>();
        var handler = new Handler() {
            @Override
            public void publish(LogRecord record) { records.add(record); }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        var logger = Logger.getLogger("dev.howdah.client");
        logger.addHandler(handler);
        var expected = new ArrayList<String>();
        var endless = new ArrayList<Object>();
        endless.add(endless);
        try (var worker = client.worker().handle(type, String.class, (how, job) -> switch (how) {
            case "throw" -> throw new IllegalStateException("broken");
            case "thrown outcome" -> throw Outcome.fatal("never").asException();
            case "result" -> Outcome.ok(endless);
            default -> Outcome.retry(how);
        }).start()) {
            var texts = Map.of("throw", "java.lang.IllegalStateException: broken", "thrown outcome", "never",
                "result", "the result cannot be written", "again", "again");
            texts.forEach((how, text) -> {
                var job = Brokers.ended(client, NewJob.builder(type).payload(how).maxAttempts(1).build());
                expected.add("SEVERE job " + job.getId() + " of " + type + " failed, attempt 1: " + text);
            });
            var payload = Brokers.ended(client, NewJob.builder(type).payload(new byte[] {'{'}).build());
            expected.add("SEVERE job " + payload.getId() + " of " + type + " failed, attempt 1: the payload is ");
            var retried = Brokers.ended(client, NewJob.builder(type).payload("again").maxAttempts(2)
                .retryPolicy(RetryPolicies.delays(Duration.ofMillis(1))).build());
            expected.add("WARNING job " + retried.getId() + " of " + type + " failed, attempt 1: again");
            expected.add("SEVERE job " + retried.getId() + " of " + type + " failed, attempt 2: again");
        } finally {
            logger.removeHandler(handler);
        }
        var lines = records.stream().map(record -> record.getLevel() + " " + record.getMessage())
            .filter(line -> line.contains(" of " + type + " ")).toList();
        assertEquals(expected.size(), lines.size(), lines.toString());
        for (var text : expected) {
            assertEquals(1, lines.stream().filter(line -> line.startsWith(text)).count(), text + " in " + lines);
        }
    }

    @Test
    void handlers_of_all_types_share_the_concurrency_of_the_worker() {
        var running = new AtomicInteger();
        var most = new AtomicInteger();
        var pairs = new CyclicBarrier(2); // A handler ends only beside another one.
        var builder = client.worker().concurrency(2);
        var jobs = new ArrayList<NewJob>();
        for (int number = 0; number < 3; number++) {
            builder.handle(type + number, Object.class, (payload, job) -> {
                most.accumulateAndGet(running.incrementAndGet(), Math::max);
                pairs.await();
                running.decrementAndGet();
                return Outcome.ok();
            });
            jobs.addAll(Collections.nCopies(6, NewJob.of(type + number, null)));
        }
        try (var worker = builder.start()) {
            var ids = client.enqueueAll(jobs).stream().map(HowdahClient.Enqueued::id).toList();
            client.awaitAll(ids, Brokers.TIMEOUT, job -> assertEquals(JobState.JOB_STATE_SUCCEEDED, job.getState()));
            assertEquals(2, most.get());
        }
    }

    @Test
    void jobs_that_do_not_fit_into_the_concurrency_go_to_another_worker() throws Exception {
        var started = new LinkedBlockingQueue<Long>();
        var end = new CountDownLatch(1);
        var types = IntStream.range(0, 4).mapToObj(number -> NewJob.of(type + number, null)).toList();
        var busyBuilder = client.worker().concurrency(1);
        var idleBuilder = client.worker();
        for (var job : types) {
            busyBuilder.handle(job.taskType(), Object.class, (payload, running) -> {
                started.add(running.id());
                end.await();
                return Outcome.ok();
            });
            idleBuilder.handle(job.taskType(), Object.class, (payload, running) -> Outcome.ok());
        }
        var ids = new ArrayList<>(client.enqueueAll(types).stream().map(HowdahClient.Enqueued::id).toList());
        try (var busy = busyBuilder.start()) {
            ids.remove(started.take());
            try (var idle = idleBuilder.start()) {
                client.awaitAll(ids, Brokers.TIMEOUT, job -> assertEquals(1, job.getAttempt()));
                long received = busy.report().received();
                ids.clear();
                client.enqueueAll(types).forEach(job -> ids.add(job.id()));
                client.awaitAll(ids, Brokers.TIMEOUT, job -> assertEquals(1, job.getAttempt()));
                assertEquals(received, busy.report().received(), "the windows of the busy worker are open");
            }
            end.countDown();
        }
        assertTrue(started.isEmpty());
    }

    @Test
    void an_outcome_may_be_thrown() {
        try (var worker = work((payload, job) -> {
            throw Outcome.fatal("never").asException();
        })) {
            var job = Brokers.ended(client, NewJob.of(type, 1));
            assertEquals(JobState.JOB_STATE_DEAD, job.getState());
            assertEquals("never", job.getFailures(0).getError());
        }
    }

    @Test
    void a_snoozed_job_runs_again_without_an_attempt() {
        var runs = new AtomicInteger();
        try (var worker = work((payload, job) ->
                runs.incrementAndGet() == 1 ? Outcome.snooze(Duration.ofMillis(1)) : Outcome.ok(job.attempt()))) {
            assertEquals(1, client.result(Brokers.ended(client, NewJob.of(type, 1)), Integer.class));
            assertEquals(2, runs.get());
        }
    }

    @Test
    void a_job_goes_on_to_the_stage_that_its_handler_names() {
        var next = Brokers.newType();
        try (var worker = client.worker().handle(type, Integer.class, (n, job) -> Outcome.nextStage(next, n + 1))
                .handle(next, Integer.class, (n, job) -> Outcome.ok(n * 10)).start()) {
            var job = NewJob.builder(type).payload(1).nextStages(List.of(next)).build();
            assertEquals(20, client.result(Brokers.ended(client, job), Integer.class));
        }
    }

    @Test
    void a_checkpoint_and_progress_reach_the_next_attempt_and_the_operator() {
        var fast = RetryPolicy.newBuilder().setInitialDelay(NewJob.wire(Duration.ZERO)).build();
        try (var worker = work((payload, job) -> {
            if (job.checkpoint(Order.class).isPresent()) {
                return Outcome.ok(job.checkpoint(Order.class).get());
            }
            job.storeCheckpoint(new Order("half", 50));
            job.progress(0.5, "half way");
            return Outcome.retry("again");
        })) {
            var job = Brokers.ended(client, NewJob.builder(type).payload(1).retryPolicy(fast).build());
            assertEquals(new Order("half", 50), client.result(job, Order.class));
            assertEquals("half way", job.getProgress().getText());
        }
    }

    @Test
    void a_cancelled_job_interrupts_its_handler() throws Exception {
        var started = new CountDownLatch(1);
        var reason = new CompletableFuture<CancelReason>();
        try (var worker = work((payload, job) -> {
            started.countDown();
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException interrupted) {
                reason.complete(job.cancelReason().orElseThrow());
            }
            return Outcome.ok();
        })) {
            long id = client.enqueue(NewJob.of(type, 1)).id();
            started.await();
            client.cancel(List.of(id));
            assertEquals(CancelReason.CANCEL_REASON_CANCELLED, reason.get(30, TimeUnit.SECONDS));
            assertEquals(JobState.JOB_STATE_CANCELLED, client.await(id, Brokers.TIMEOUT).getState());
        }
    }

    @Test
    void an_extension_moves_the_deadline_and_a_lost_lease_is_an_error() throws Exception {
        var extended = new CompletableFuture<Boolean>();
        var reason = new CompletableFuture<String>();
        try (var worker = work((payload, job) -> {
            job.extend(Duration.ofMinutes(1));
            extended.complete(job.deadline().isPresent());
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException interrupted) {
                reason.complete(assertThrows(HowdahException.class, () -> job.progress(1, "late")).reason());
            }
            return Outcome.ok();
        })) {
            long id = client.enqueue(NewJob.builder(type).payload(1).timeout(Duration.ofSeconds(20)).build()).id();
            assertTrue(extended.get(30, TimeUnit.SECONDS));
            client.cancel(List.of(id));
            assertEquals("LEASE_LOST", reason.get(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void no_more_handlers_run_than_the_concurrency_says() throws Exception {
        var running = new AtomicInteger();
        var most = new AtomicInteger();
        var done = new CountDownLatch(20);
        for (int n = 0; n < 20; n++) {
            client.enqueue(NewJob.of(type, n));
        }
        try (var worker = client.worker().concurrency(3).window(10).handle(type, Object.class, (payload, job) -> {
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            Thread.yield();
            running.decrementAndGet();
            done.countDown();
            return Outcome.ok();
        }).start()) {
            assertTrue(done.await(30, TimeUnit.SECONDS));
            assertTrue(most.get() <= 3, most.toString());
        }
    }

    @Test
    void a_slow_worker_takes_no_more_jobs_than_its_window_and_others_get_the_rest() throws Exception {
        var jobs = client.enqueueAll(IntStream.range(0, 20).mapToObj(n -> NewJob.of(type, n)).toList());
        var go = new CountDownLatch(1);
        var slow = client.worker().concurrency(1).window(4).handle(type, Object.class, (payload, job) -> {
            go.await();
            return Outcome.ok();
        }).start();
        slow.connected().join();
        var quick = client.worker().maxJobs(16).handle(type, Object.class, (payload, job) -> Outcome.ok()).start();
        assertEquals(16, quick.ended().get(30, TimeUnit.SECONDS).succeeded());
        go.countDown();
        jobs.forEach(job -> client.await(job.id(), Brokers.TIMEOUT));
        slow.stop();
        assertEquals(4, slow.join().received());
    }

    @Test
    void a_stop_waits_for_handlers_and_their_outcomes() throws Exception {
        var started = new CountDownLatch(1);
        var go = new CountDownLatch(1);
        var worker = work((payload, job) -> {
            started.countDown();
            go.await();
            return Outcome.ok();
        });
        long id = client.enqueue(NewJob.of(type, 1)).id();
        started.await();
        worker.stop();
        assertFalse(worker.ended().isDone());
        go.countDown();
        assertEquals(1, worker.join().succeeded());
        assertEquals(JobState.JOB_STATE_SUCCEEDED, client.job(id).orElseThrow().getState());
    }

    @Test
    void a_stop_that_waited_long_enough_interrupts_and_the_job_goes_to_another_worker() throws Exception {
        var started = new CountDownLatch(1);
        var worker = client.worker().stopTimeout(Duration.ofMillis(50)).handle(type, Object.class, (payload, job) -> {
            started.countDown();
            Thread.sleep(60_000);
            return Outcome.ok();
        }).start();
        long id = client.enqueue(NewJob.of(type, 1)).id();
        started.await();
        worker.stop();
        assertEquals(1, worker.join().released());
        try (var other = work((payload, job) -> Outcome.ok(job.attempt()))) {
            assertEquals(1, client.result(client.await(id, Brokers.TIMEOUT), Integer.class), "a release is no attempt");
        }
    }

    @Test
    void a_worker_that_the_broker_refuses_ends_with_the_reason() {
        var worker = client.worker().handle("no spaces", Object.class, (payload, job) -> Outcome.ok()).start();
        var error = assertThrows(HowdahException.class, worker::join);
        assertEquals("INVALID_FIELD", error.reason());
    }

    @Test
    void a_worker_that_could_not_run_a_job_is_refused_at_once() {
        var noHandlers = assertThrows(HowdahException.class, () -> client.worker().start());
        assertEquals("handle", noHandlers.field());
        var error = assertThrows(HowdahException.class, () -> client.worker().concurrency(0));
        assertEquals("concurrency: 0 is less than 1", error.getMessage());
        assertThrows(HowdahException.class, () -> client.worker().handle("a", 0, Order.class, (order, job) -> Outcome.ok()));
    }

    @Test
    void a_worker_stops_by_itself_after_so_many_jobs() {
        for (int n = 0; n < 5; n++) {
            client.enqueue(NewJob.of(type, n));
        }
        var worker = client.worker().maxJobs(2).handle(type, Object.class, (payload, job) -> Outcome.ok()).start();
        assertEquals(2, worker.join().succeeded());
    }

    @Test
    void a_type_can_be_paused_and_resumed() throws Exception {
        var ran = new CountDownLatch(1);
        try (var worker = work((payload, job) -> {
            ran.countDown();
            return Outcome.ok();
        })) {
            worker.connected().join();
            worker.concurrency(type, 0);
            client.enqueue(NewJob.of(type, 1));
            worker.concurrency(type, 1);
            assertTrue(ran.await(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void middleware_is_around_enqueue_and_handler() {
        var seen = new StringBuffer();
        var tenant = new Middleware() {
            @Override
            public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey,
                    Enqueue next) {
                return next.enqueue(jobs.stream().map(job -> job.toBuilder().header("tenant", "ann").build()).toList());
            }

            @Override
            public Outcome handle(Job job, Handle next) throws Exception {
                seen.append("before ").append(job.headers().get("tenant"));
                var outcome = next.handle(job);
                seen.append(", after ").append(outcome);
                return outcome;
            }
        };
        try (var wrapped = HowdahClient.builder().addresses(Brokers.address()).middleware(tenant).connect();
                var worker = wrapped.worker().handle(type, Object.class, (payload, job) ->
                    Outcome.release()).maxJobs(1).start()) {
            wrapped.enqueue(NewJob.of(type, 1));
            worker.join();
            assertEquals("before ann, after Release[]", seen.toString());
        }
    }

    @Test
    void a_worker_outlives_its_broker() {
        try (var two = HowdahClient.builder().addresses(Brokers.address(), "127.0.0.1:1").build()) {
            var broken = two.worker().handle(type, Map.class, (payload, job) -> Outcome.ok()).start();
            broken.connected().join();
            Brokers.ended(client, NewJob.of(type, Map.of()));
            broken.close();
            assertEquals(1, broken.report().succeeded());
        }
    }
}
