import dev.howdah.client.HowdahClient;
import dev.howdah.client.Job;
import dev.howdah.client.Job.Outcome;
import java.awt.Image;
import java.awt.image.BufferedImage;
import java.io.File;
import java.io.IOException;
import javax.imageio.ImageIO;

/** Makes thumbnails until SIGTERM or Ctrl-C. */
public class Worker {
    record Order(String source, String target, int width) {}

    record Size(int width, int height) {}

    static Outcome make(Order order, Job job) throws IOException {
        var made = job.checkpoint(Size.class);
        if (made.isPresent()) { // An earlier attempt made the thumbnail, but its ack was lost.
            return Outcome.ok(made.get());
        }
        var picture = ImageIO.read(new File(order.source)); // Throws if the file is missing, so the job is retried.
        if (picture == null) {
            return Outcome.fatal(order.source + " is not an image");
        }
        job.progress(0.5, "decoded");
        int height = Math.max(1, Math.round((float) picture.getHeight() * order.width / picture.getWidth()));
        var thumbnail = new BufferedImage(order.width, height, BufferedImage.TYPE_INT_ARGB);
        var small = picture.getScaledInstance(order.width, height, Image.SCALE_SMOOTH);
        thumbnail.createGraphics().drawImage(small, 0, 0, null);
        ImageIO.write(thumbnail, "png", new File(order.target));
        job.storeCheckpoint(new Size(order.width, height));
        return Outcome.ok(new Size(order.width, height));
    }

    public static void main(String[] arguments) {
        try (var client = HowdahClient.builder().environment(System.getenv()).build()) {
            client.worker().handle("thumbnail.make", Order.class, Worker::make).start().stopOnShutdown().join();
        }
    }
}
