package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.awt.image.BufferedImage;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.imageio.ImageIO;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Compiles and runs the programs of the README and of examples/thumbnails unchanged. */
class ExamplesTest {
    private static final Pattern BLOCK = Pattern.compile("```java\n// (\\w+)\\.java\n(.*?)```", Pattern.DOTALL);
    private static final Path EXAMPLES = Path.of("../../examples/thumbnails/java");

    @TempDir
    private Path directory;

    private void compile(Path... sources) {
        var arguments = new ArrayList<>(List.of("-Xlint:all,-processing,-classfile", "-Werror", "-d",
            directory.toString(),
            "-cp", System.getProperty("java.class.path")));
        Arrays.stream(sources).map(Path::toString).forEach(arguments::add);
        assertEquals(0, ToolProvider.getSystemJavaCompiler().run(null, null, null, arguments.toArray(String[]::new)));
    }

    private Process start(String program, String... arguments) throws Exception {
        var command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true", "-cp", directory + File.pathSeparator + System.getProperty(
                "java.class.path"), program));
        command.addAll(List.of(arguments));
        var builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().put("HOWDAH_SERVER", Brokers.address());
        return builder.start();
    }

    private String run(String program, String... arguments) throws Exception {
        var process = start(program, arguments);
        var output = new String(process.getInputStream().readAllBytes());
        assertEquals(0, process.waitFor(), output);
        return output;
    }

    /** Sends SIGTERM, after which the JVM runs its shutdown hooks and exits with status 143. Returns the output. */
    private static String end(Process worker) throws Exception {
        worker.toHandle().destroy(); // Process.destroy would close the output of the worker.
        assertTrue(worker.waitFor(30, TimeUnit.SECONDS));
        assertEquals(143, worker.exitValue());
        return new String(worker.getInputStream().readAllBytes());
    }

    @Test
    void the_programs_of_the_readme_run_as_they_are_written() throws Exception {
        var blocks = BLOCK.matcher(Files.readString(Path.of("README.md")));
        var sources = new ArrayList<Path>();
        while (blocks.find()) {
            sources.add(Files.writeString(directory.resolve(blocks.group(1) + ".java"), blocks.group(2)));
        }
        compile(sources.toArray(Path[]::new));
        var worker = start("MailWorker");
        assertTrue(run("MailProducer").endsWith(" {sent=true}\n"));
        assertEquals("to ann@example.com, attempt 1\n", end(worker));
        assertEquals("1000\nINVALID_ARGUMENT INVALID_FIELD jobs[0].task_type\n", run("Tour"));
        assertEquals("true\ntrue\n", run("MailTest"));
    }

    @Test
    void thumbnails_are_made_and_what_is_no_image_fails() throws Exception {
        var pictures = Files.createDirectory(directory.resolve("pictures"));
        ImageIO.write(new BufferedImage(256, 100, BufferedImage.TYPE_INT_RGB), "png",
            pictures.resolve("wide.png").toFile());
        Files.writeString(pictures.resolve("none.png"), "no image");
        compile(EXAMPLES.resolve("Producer.java"), EXAMPLES.resolve("Worker.java"));
        var worker = start("Worker");
        var target = directory.resolve("thumbnails");
        var lines = run("Producer", pictures.toString(), target.toString()).lines().sorted().toList();
        end(worker);
        assertTrue(lines.get(0).startsWith("none.png failed: ") && lines.get(0).endsWith(" is not an image"),
            lines.get(0));
        assertEquals(List.of("wide.png 128x50"), lines.subList(1, 2));
        assertEquals(50, ImageIO.read(target.resolve("wide.png").toFile()).getHeight());
    }

    @Test
    void each_side_of_an_example_fits_on_a_page() throws Exception {
        try (Stream<Path> sources = Files.list(EXAMPLES)) {
            for (var source : sources.toList()) {
                assertTrue(Files.readAllLines(source).size() <= 40, source.toString());
            }
        }
    }
}
