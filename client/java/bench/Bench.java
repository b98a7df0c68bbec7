import dev.howdah.client.HowdahClient;
import dev.howdah.client.Job.Outcome;

/** A worker for {@code howdah bench client}. Its handler does nothing, so that the benchmark measures the client. */
class Bench {
    public static void main(String[] arguments) {
        var type = System.getenv("HOWDAH_BENCH_TYPE");
        int concurrency = Integer.parseInt(System.getenv("HOWDAH_BENCH_CONCURRENCY"));
        try (var client = HowdahClient.connect()) {
            client.worker().concurrency(concurrency).handle(type, byte[].class, (payload, job) -> Outcome.ok()).start()
                .stopOnShutdown().join();
        }
        // After SIGTERM the JVM would exit with status 143, as if the worker had not stopped cleanly.
        Runtime.getRuntime().halt(0);
    }
}
