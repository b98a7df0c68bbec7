import dev.howdah.client.HowdahClient;
import dev.howdah.client.NewJob;
import dev.howdah.v1.JobState;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;

/** Enqueues a thumbnail job for each PNG file of a directory, and prints the results: Producer PICTURES THUMBNAILS */
public class Producer {
    record Order(String source, String target, int width) {}

    record Size(int width, int height) {}

    public static void main(String[] arguments) throws Exception {
        var pictures = Path.of(arguments[0]).toRealPath();
        var thumbnails = Files.createDirectories(Path.of(arguments[1])).toRealPath();
        Map<Long, Path> names = new TreeMap<>();
        try (var client = HowdahClient.connect(); var files = Files.newDirectoryStream(pictures, "*.png")) {
            for (var source : files) {
                var name = source.getFileName();
                var order = new Order(source.toString(), thumbnails.resolve(name).toString(), 128);
                // While a job with this key is unfinished, the picture is not enqueued again.
                var job = NewJob.builder("thumbnail.make").payload(order).key(source.toString()).build();
                names.put(client.enqueue(job).id(), name);
            }
            client.awaitAll(names.keySet(), Duration.ofMinutes(1), job -> {
                if (job.getState() == JobState.JOB_STATE_SUCCEEDED) {
                    var size = client.result(job, Size.class);
                    System.out.println(names.get(job.getId()) + " " + size.width + "x" + size.height);
                } else {
                    var error = job.getFailures(job.getFailuresCount() - 1).getError();
                    System.out.println(names.get(job.getId()) + " failed: " + error);
                }
            });
        }
    }
}
