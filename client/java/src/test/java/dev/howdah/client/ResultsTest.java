package dev.howdah.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.howdah.client.Job.Outcome;
import dev.howdah.v1.DependencyResult;
import dev.howdah.v1.JobState;
import dev.howdah.v1.LeasedJob;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class ResultsTest {
    private final HowdahClient client = Brokers.client();
    private final String type = Brokers.newType();

    @AfterEach
    void close() {
        client.close();
    }

    /** Runs parts with results of these sizes and a job after them. Returns the sizes of the results that the job gets. */
    private List<Integer> joined(List<Integer> sizes) {
        var jobs = new ArrayList<NewJob>();
        for (int n = 0; n < sizes.size(); n++) {
            jobs.add(NewJob.builder(type + ".part").payload(sizes.get(n)).localName("part " + n).build());
        }
        var names = IntStream.range(0, sizes.size()).mapToObj(n -> "part " + n).toList();
        jobs.add(NewJob.builder(type + ".join").afterLocal(names).build());
        try (var worker = client.worker()
                .handle(type + ".part", Integer.class, (size, job) -> Outcome.ok(new byte[size]))
                .handle(type + ".join", Object.class, (payload, job) -> Outcome.ok(job.results()
                    .filter(result -> result.getState() == JobState.JOB_STATE_SUCCEEDED)
                    .map(result -> result.getResult().size()).toList())).start()) {
            var enqueued = client.enqueueAll(jobs);
            var ended = new ArrayList<dev.howdah.v1.Job>();
            client.awaitAll(List.of(enqueued.get(sizes.size()).id()), Duration.ofSeconds(20), ended::add);
            return List.of(client.result(ended.get(0), Integer[].class));
        }
    }

    @Test
    void a_job_gets_the_results_of_its_dependencies_in_order() {
        assertEquals(List.of(3, 0, 5), joined(List.of(3, 0, 5)));
    }

    @Test
    void results_that_did_not_come_with_the_job_are_fetched_page_by_page() {
        var sizes = List.of(3, 70_000, 5, 900_000, 900_000, 900_000, 900_000, 1);
        assertEquals(sizes, joined(sizes));
    }

    @Test
    void a_handler_gets_the_results_that_a_test_gives() {
        var leased = LeasedJob.newBuilder().setId(1).addAfter(DependencyResult.newBuilder().setId(7))
            .addAfter(DependencyResult.newBuilder().setId(8));
        var done = HowdahTesting.perform((payload, job) ->
            Outcome.ok(job.results().map(DependencyResult::getId).toList()), "", leased);
        assertEquals(Outcome.ok(List.of(7L, 8L)), done.outcome());
    }
}
