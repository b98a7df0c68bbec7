package dev.howdah.client;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Code around each enqueue and each handler of a client, such as for tenants. {@link Telemetry} is one. */
public interface Middleware {
    /**
     * Around an enqueue.
     *
     * @param jobs to enqueue
     * @param requestKey of the caller, who may repeat the request: then the jobs must be the same each time; or null
     * @param next sends them
     * @return what {@code next} returned
     */
    default CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey, Enqueue next) {
        return next.enqueue(jobs);
    }

    /**
     * Around a handler.
     *
     * @param job to run
     * @param next runs it
     * @return its outcome
     * @throws Exception of the handler
     */
    default Job.Outcome handle(Job job, Handle next) throws Exception {
        return next.handle(job);
    }

    /** The rest of an enqueue. */
    @FunctionalInterface
    interface Enqueue {
        /**
         * Enqueues.
         *
         * @param jobs to enqueue
         * @return one for each, when they are committed
         */
        CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs);
    }

    /** The rest of a handler. */
    @FunctionalInterface
    interface Handle {
        /**
         * Runs the job.
         *
         * @param job to run
         * @return its outcome
         * @throws Exception of the handler
         */
        Job.Outcome handle(Job job) throws Exception;
    }
}
