package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.Job;
import dev.howdah.v1.JobServiceGrpc;
import dev.howdah.v1.ListJobsRequest;
import dev.howdah.v1.ListJobsResponse;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Tests of clients for one store, with a broker that serves two stores. */
class StoresTest {
    /** Size of a store's range of job ids. The ids of store1 begin at 0, the ids of store2 at {@code PER_STORE}. */
    private static final long PER_STORE = 100_000_000_000_000L;
    private static HowdahTesting.Broker broker;
    private static HowdahClient client;

    @BeforeAll
    static void start() {
        broker = HowdahTesting.Broker.start("--stores", "2");
        client = HowdahClient.connect(broker.address());
    }

    @AfterAll
    static void stop() {
        client.close();
        broker.close();
    }

    private static Set<Long> listed(HowdahClient client, String type) {
        var request = ListJobsRequest.newBuilder().setTaskType(type).setPageSize(10).build();
        return client.call(JobServiceGrpc::newBlockingStub, jobs -> jobs.listJobs(request)).getJobsList().stream()
            .map(Job::getId).collect(Collectors.toSet());
    }

    @Test
    void jobs_go_to_the_store_that_the_client_names() {
        var type = Brokers.newType();
        HowdahClient here = client.inStore("store1"), there = client.inStore("store2");
        long first = here.enqueue(NewJob.of(type, 1)).id(), second = there.enqueue(NewJob.of(type, 2)).id(), third;
        try (var producer = there.producer()) {
            third = producer.submit(NewJob.of(type, 3)).join().id();
        }
        var ids = List.of(first, second, third);
        assertEquals(List.of(0L, 1L, 1L), ids.stream().map(id -> id / PER_STORE).toList());
        // A client of one store lists the jobs of that store. The original client lists the jobs of all stores.
        assertEquals(Set.of(first), listed(here, type));
        assertEquals(Set.of(second, third), listed(there, type));
        assertEquals(Set.copyOf(ids), listed(client, type));
        // A worker gets jobs of all stores, because its client has no store.
        var ended = new ArrayList<Long>();
        try (var worker = client.worker().handle(type, Integer.class, (n, job) -> Outcome.ok(n)).start()) {
            client.awaitAll(ids, Brokers.TIMEOUT, job -> ended.add(job.getId()));
        }
        assertEquals(Set.copyOf(ids), Set.copyOf(ended));
    }

    @Test
    void stores_that_an_answer_leaves_out_are_logged() throws IOException {
        var slow = new JobServiceGrpc.JobServiceImplBase() {
            @Override
            public void listJobs(ListJobsRequest request, StreamObserver<ListJobsResponse> answer) {
                answer.onNext(ListJobsResponse.getDefaultInstance());
                answer.onCompleted();
            }
        };
        var left = new Metadata();
        left.put(Metadata.Key.of("howdah-unanswered-stores", Metadata.ASCII_STRING_MARSHALLER), "mail,news");
        var server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create()).addService(slow)
            .intercept(MetadataUtils.newAttachMetadataServerInterceptor(left)).build().start();
        var lines = new ConcurrentLinkedQueue<LogRecord>();
        var log = Logger.getLogger("dev.howdah.client.Connection");
        var handler = new Handler() {
            @Override
            public void publish(LogRecord line) {
                lines.add(line);
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        log.addHandler(handler);
        try (var local = HowdahClient.builder().addresses("127.0.0.1:" + server.getPort()).build()) {
            assertEquals(Set.of(), listed(local, "t"));
        } finally {
            log.removeHandler(handler);
            server.shutdownNow();
        }
        var line = lines.remove();
        assertEquals(Level.WARNING, line.getLevel());
        var text = new SimpleFormatter().formatMessage(line);
        assertTrue(text.contains("these stores did not answer: mail,news"), text);
    }

    @Test
    void a_store_that_is_not_there_is_refused_with_the_names_of_those_that_are() {
        var elsewhere = client.inStore("post");
        var error = assertThrows(HowdahException.class, () -> elsewhere.enqueue(NewJob.of("t", 1)));
        assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
        assertEquals("howdah-store", error.field());
        assertEquals("howdah-store is \"post\"; this broker serves store1, store2", error.getMessage());
    }

    @Test
    void what_cannot_be_the_name_of_a_store_is_refused_at_once() {
        for (var name : List.of("m\u00e4il", "a\nb")) {
            var error = assertThrows(HowdahException.class, () -> client.inStore(name));
            assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
            assertEquals("store", error.field());
            assertEquals("store: \"" + name + "\" is not the name of a store", error.getMessage());
        }
    }
}
