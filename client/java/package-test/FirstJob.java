import dev.howdah.client.HowdahClient;
import dev.howdah.client.HowdahTesting;
import dev.howdah.client.Job.Outcome;
import dev.howdah.client.NewJob;
import java.time.Duration;

/** Runs one job with the installed package, without OpenTelemetry on the class path. */
public class FirstJob {
    public static void main(String[] arguments) {
        try (var broker = HowdahTesting.Broker.start();
                var client = HowdahClient.connect(broker.address());
                var worker = client.worker().handle("first", String.class, (name, job) -> Outcome.ok("Hello " + name)).start()) {
            var job = client.await(client.enqueue(NewJob.of("first", "Howdah")).id(), Duration.ofSeconds(30));
            System.out.println(client.result(job, String.class));
        }
    }
}
