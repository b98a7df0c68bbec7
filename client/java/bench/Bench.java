import dev.howdah.client.HowdahClient;
import dev.howdah.client.Job.Outcome;

/** The worker of `howdah bench client`: acks each job, until SIGTERM. */
class Bench {
    public static void main(String[] arguments) {
        var type = System.getenv("HOWDAH_BENCH_TYPE");
        int concurrency = Integer.parseInt(System.getenv("HOWDAH_BENCH_CONCURRENCY"));
        try (var client = HowdahClient.connect()) {
            client.worker().concurrency(concurrency).handle(type, byte[].class, (payload, job) -> Outcome.ok()).start()
                .stopOnShutdown().join();
        }
        // The JVM would end with 143, as if the worker had not stopped by itself.
        Runtime.getRuntime().halt(0);
    }
}
