package dev.howdah.client;

import dev.howdah.v1.Job;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;

/** One broker for all tests, stopped at the end of the JVM. Each test uses unique task types. */
final class Brokers {
    static final Duration TIMEOUT = Duration.ofSeconds(30);
    private static final HowdahTesting.Broker BROKER = HowdahTesting.Broker.start();
    private static final AtomicInteger LAST = new AtomicInteger();

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(BROKER::close));
    }

    private Brokers() {}

    static String address() {
        return BROKER.address();
    }

    static String httpAddress() {
        return BROKER.httpAddress();
    }

    static HowdahClient client() {
        return HowdahClient.connect(address());
    }

    static String newType() {
        return "test." + LAST.incrementAndGet();
    }

    static Job ended(HowdahClient client, NewJob job) {
        return client.await(client.enqueue(job).id(), TIMEOUT);
    }
}
