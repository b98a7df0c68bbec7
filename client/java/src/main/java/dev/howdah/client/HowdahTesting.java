package dev.howdah.client;

import dev.howdah.v1.AdvanceClockRequest;
import dev.howdah.v1.EnqueueOutcome;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.LeasedJob;
import dev.howdah.v1.ProgressReport;
import dev.howdah.v1.SettingsServiceGrpc;
import io.grpc.Status;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;

/**
 * Support for tests of programs that use this library. Runs handlers and records enqueues without a broker, and starts a
 * temporary broker.
 */
public final class HowdahTesting {
    private HowdahTesting() {}

    /**
     * The result of a handler that {@link HowdahTesting#perform} has run.
     *
     * @param outcome outcome of the attempt
     * @param reports progress reports and checkpoints of the handler, in order
     */
    public record Performed(Job.Outcome outcome, List<ProgressReport> reports) {}

    /**
     * Runs a handler on the first attempt of a job, without a broker.
     *
     * @param <T> type of the payload
     * @param handler handler to run
     * @param payload payload of the job. It goes through JSON, as it does with a broker
     * @return outcome and reports of the handler
     */
    public static <T> Performed perform(Worker.Handler<? super T> handler, T payload) {
        return perform(handler, payload, LeasedJob.newBuilder().setId(1).setTaskType("test").setAttempt(1)
            .setMaxAttempts(10));
    }

    /**
     * Runs a handler on a job with these properties, without a broker. Progress reports and deadline extensions of the
     * handler succeed at once.
     *
     * @param <T> type of the payload
     * @param handler handler to run
     * @param payload payload of the job. It goes through JSON, as it does with a broker
     * @param leased other properties of the job, such as attempt, headers and checkpoint
     * @return outcome and reports of the handler
     */
    @SuppressWarnings("unchecked")
    public static <T> Performed perform(Worker.Handler<? super T> handler, T payload, LeasedJob.Builder leased) {
        var json = HowdahClient.builder().json;
        var reports = new CopyOnWriteArrayList<ProgressReport>();
        leased.setPayload(NewJob.encode(payload, json)).setDependencyCount(leased.getAfterCount());
        var job = new Job(leased.build(), json, reports::add, extension -> { }, start -> List.of());
        try {
            return new Performed(handler.handle((T) job.payload(payload.getClass()), job), reports);
        } catch (Exception error) {
            return new Performed(Job.Outcome.of(error), reports);
        }
    }

    /**
     * Records the jobs that a program enqueues, without a broker. Refuses jobs whose fields a broker with default
     * settings would refuse, with the same code, reason and field. A recorded job holds its key, as an unfinished job
     * does: an enqueue with the same key is answered by its policy.
     */
    public static final class Recorder implements Middleware {
        private List<NewJob> jobs = List.of();

        /** Makes an empty recorder. */
        public Recorder() {}

        /** {@return a client that never connects to a broker. This object records the client's enqueues} */
        public HowdahClient client() {
            return HowdahClient.builder().middleware(this).build();
        }

        @Override
        public CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> enqueued, String requestKey,
                Enqueue next) {
            var json = HowdahClient.builder().json;
            try {
                JobRules.check(enqueued.stream().map(job -> job.encoded(json)).toList());
            } catch (HowdahException refused) {
                return CompletableFuture.failedFuture(refused);
            }
            synchronized (this) {
                var recorded = new ArrayList<>(jobs);
                var answers = new ArrayList<HowdahClient.Enqueued>();
                for (int index = 0; index < enqueued.size(); index++) {
                    var job = enqueued.get(index);
                    int holder = holder(recorded, job.options());
                    if (holder >= 0 && job.options().getKeyPolicy() == KeyPolicy.KEY_POLICY_REJECT) {
                        var field = "jobs[" + index + "].key";
                        return CompletableFuture.failedFuture(new HowdahException(Status.Code.ALREADY_EXISTS, "KEY_TAKEN",
                            field, field + ": another job holds the key \"" + job.options().getKey() + "\""));
                    }
                    answers.add(record(recorded, holder, job));
                }
                jobs = recorded;
                return CompletableFuture.completedFuture(answers);
            }
        }

        /** Returns the index of the job that holds the key of a job; -1 if the key is free or empty. */
        private static int holder(List<NewJob> recorded, dev.howdah.v1.NewJob job) {
            for (int index = 0; index < recorded.size() && !job.getKey().isEmpty(); index++) {
                var other = recorded.get(index).options();
                if (other.getKey().equals(job.getKey()) && other.getTaskType().equals(job.getTaskType())) {
                    return index;
                }
            }
            return -1;
        }

        private static HowdahClient.Enqueued record(List<NewJob> recorded, int holder, NewJob job) {
            if (holder < 0) {
                recorded.add(job);
                return new HowdahClient.Enqueued(recorded.size(), true, EnqueueOutcome.ENQUEUE_OUTCOME_NEW);
            }
            var old = recorded.get(holder).options();
            boolean isStale = old.hasKeyVersion() && job.options().getKeyVersion() <= old.getKeyVersion();
            var outcome = switch (job.options().getKeyPolicy()) {
                case KEY_POLICY_REPLACE -> EnqueueOutcome.ENQUEUE_OUTCOME_REPLACED;
                case KEY_POLICY_REPLACE_IF_NEWER -> isStale ? EnqueueOutcome.ENQUEUE_OUTCOME_STALE
                    : EnqueueOutcome.ENQUEUE_OUTCOME_REPLACED;
                case KEY_POLICY_DEBOUNCE -> EnqueueOutcome.ENQUEUE_OUTCOME_DEBOUNCED;
                default -> EnqueueOutcome.ENQUEUE_OUTCOME_KEPT;
            };
            if (outcome == EnqueueOutcome.ENQUEUE_OUTCOME_REPLACED || outcome == EnqueueOutcome.ENQUEUE_OUTCOME_DEBOUNCED) {
                recorded.set(holder, job);
            }
            return new HowdahClient.Enqueued(holder + 1, false, outcome);
        }

        /** {@return all recorded jobs, in order. A job that replaces the holder of its key takes the holder's place} */
        public synchronized List<NewJob> jobs() {
            return List.copyOf(jobs);
        }

        /**
         * Asserts that a job of this task type with this payload was enqueued.
         *
         * @param taskType task type of the job
         * @param payload payload of the job, compared by {@code equals}
         * @return the first such job
         */
        public NewJob assertEnqueued(String taskType, Object payload) {
            return jobs().stream()
                .filter(job -> job.taskType().equals(taskType) && Objects.equals(job.payload(), payload)).findFirst()
                .orElseThrow(() -> new AssertionError("no " + taskType + " with " + payload + " in " + jobs()));
        }
    }

    /**
     * A broker with a temporary Postgres, {@code howdah dev --ephemeral}. Closing it stops both and removes their data.
     */
    public static final class Broker implements AutoCloseable {
        private static final Pattern READY = Pattern.compile("ready grpc=(\\S+) http=(\\S+) .*");
        private final Process process;
        private final String address;
        private final String httpAddress;

        private Broker(Process process, String address, String httpAddress) {
            this.process = process;
            this.address = address;
            this.httpAddress = httpAddress;
        }

        /**
         * Starts the program that {@code HOWDAH_BIN} names, or else {@code howdah} from the {@code PATH}. It logs warnings
         * and errors, unless {@code HOWDAH_LOG} is set.
         *
         * @param more additional arguments of {@code howdah dev}
         * @return the broker, ready to serve
         */
        public static Broker start(String... more) {
            var program = System.getenv().getOrDefault("HOWDAH_BIN", "howdah");
            var command = new ArrayList<>(List.of(program, "dev", "--ephemeral", "--listen", "127.0.0.1:0",
                "--http", "127.0.0.1:0"));
            command.addAll(List.of(more));
            var builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
            builder.environment().putIfAbsent("HOWDAH_LOG", "warn");
            try {
                var process = builder.start();
                var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
                for (var line = lines.readLine(); line != null; line = lines.readLine()) {
                    var ready = READY.matcher(line);
                    if (ready.matches()) {
                        return new Broker(process, "http://" + ready.group(1), "http://" + ready.group(2));
                    }
                }
                throw new IllegalStateException("the broker ended before it was ready: " + String.join(" ", command));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** {@return the address of the broker's gRPC port, for clients} */
        public String address() {
            return address;
        }

        /** {@return the address of the broker's HTTP port} */
        public String httpAddress() {
            return httpAddress;
        }

        /**
         * Advances the broker's clock, so that delayed jobs, retries, schedules, deadlines and leases become due. The
         * clock of the JVM does not follow.
         *
         * @param duration time by which the clock advances
         * @return the new time
         */
        public Instant advance(Duration duration) {
            var request = AdvanceClockRequest.newBuilder().setDuration(NewJob.wire(duration)).build();
            try (var client = HowdahClient.connect(address)) {
                var time = client
                    .call(SettingsServiceGrpc::newBlockingStub, settings -> settings.advanceClock(request)).getTime();
                return Instant.ofEpochSecond(time.getSeconds(), time.getNanos());
            }
        }

        /** Stops the broker, and waits until it has ended. */
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
