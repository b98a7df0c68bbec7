package dev.howdah.client;

import dev.howdah.v1.EnqueueOutcome;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.ProgressReport;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/** For tests of programs that use this library: handlers and enqueues without a broker, and a broker for the test. */
public final class HowdahTesting {
    private HowdahTesting() {}

    /**
     * What a handler did.
     *
     * @param outcome of the attempt
     * @param reports of progress and checkpoints, in order
     */
    public record Performed(Job.Outcome outcome, List<ProgressReport> reports) {}

    /**
     * Runs a handler.
     *
     * @param <T> the payload
     * @param handler to run
     * @param payload as enqueued
     * @return what it did
     */
    public static <T> Performed perform(Worker.Handler<? super T> handler, T payload) {
        return perform(handler, payload, LeasedJob.newBuilder().setId(1).setTaskType("test").setAttempt(1)
            .setMaxAttempts(10));
    }

    /**
     * Runs a handler with a job of more than a payload.
     *
     * @param <T> the payload
     * @param handler to run
     * @param payload goes through JSON, as it does with a broker
     * @param leased everything else: attempt, headers, checkpoint
     * @return what it did
     */
    @SuppressWarnings("unchecked")
    public static <T> Performed perform(Worker.Handler<? super T> handler, T payload, LeasedJob.Builder leased) {
        var json = HowdahClient.builder().json;
        var reports = new CopyOnWriteArrayList<ProgressReport>();
        var job = new Job(leased.setPayload(NewJob.encode(payload, json)).build(), json, reports::add,
            extension -> { });
        try {
            return new Performed(handler.handle((T) job.payload(payload.getClass()), job), reports);
        } catch (Exception error) {
            return new Performed(Job.Outcome.of(error), reports);
        }
    }

    /** Keeps what a program enqueues, instead of a broker. */
    public static final class Recorder implements Middleware {
        private final List<NewJob> jobs = new CopyOnWriteArrayList<>();

        /** Records nothing yet. */
        public Recorder() {}

        /** {@return a client that enqueues here, and never connects} */
        public HowdahClient client() {
            return HowdahClient.builder().middleware(this).build();
        }

        @Override
        public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> enqueued, String requestKey,
                Enqueue next) {
            var answers = new ArrayList<HowdahClient.Enqueued>();
            synchronized (jobs) {
                for (var job : enqueued) {
                    jobs.add(job);
                    answers.add(new HowdahClient.Enqueued(jobs.size(), true, EnqueueOutcome.ENQUEUE_OUTCOME_NEW));
                }
            }
            return CompletableFuture.completedFuture(answers);
        }

        /** {@return all jobs so far, in order} */
        public List<NewJob> jobs() {
            return List.copyOf(jobs);
        }

        /**
         * Fails if there is no such job.
         *
         * @param taskType of it
         * @param payload equal to its payload
         * @return the first
         */
        public NewJob assertEnqueued(String taskType, Object payload) {
            return jobs.stream()
                .filter(job -> job.taskType().equals(taskType) && Objects.equals(job.payload(), payload)).findFirst()
                .orElseThrow(() -> new AssertionError("no " + taskType + " with " + payload + " in " + jobs));
        }
    }

    /** A broker with a Postgres of its own, which leaves nothing behind: {@code howdah dev --ephemeral}. */
    public static final class Broker implements AutoCloseable {
        private static final Pattern READY = Pattern.compile("ready grpc=(\\S+) .*");
        private final Process process;
        private final String address;

        private Broker(Process process, String address) {
            this.process = process;
            this.address = address;
        }

        /**
         * Starts the program that {@code HOWDAH_BIN} names, or {@code howdah}.
         *
         * @param more arguments
         * @return it, ready
         */
        public static Broker start(String... more) {
            var program = System.getenv().getOrDefault("HOWDAH_BIN", "howdah");
            var command = new ArrayList<>(List.of(program, "dev", "--ephemeral", "--listen", "127.0.0.1:0",
                "--http", "127.0.0.1:0", "--log", "warn"));
            command.addAll(List.of(more));
            try {
                var process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
                var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
                for (var line = lines.readLine(); line != null; line = lines.readLine()) {
                    var ready = READY.matcher(line);
                    if (ready.matches()) {
                        return new Broker(process, "http://" + ready.group(1));
                    }
                }
                throw new IllegalStateException("the broker ended before it was ready: " + String.join(" ", command));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** {@return its address, for clients} */
        public String address() {
            return address;
        }

        /** Stops it, and waits for the end. */
        @Override
        public void close() {
            process.destroy();
            try {
                process.waitFor(1, TimeUnit.MINUTES);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
