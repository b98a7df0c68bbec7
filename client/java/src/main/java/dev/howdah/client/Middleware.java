package dev.howdah.client;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Code that runs around each enqueue and each handler of a client, for example to add a tenant header. {@link
 * Telemetry} is an example.
 */
public interface Middleware {
    /**
     * Wraps an enqueue.
     *
     * @param jobs jobs to enqueue
     * @param requestKey request key of the caller, or null. If there is one, repeated calls must send identical jobs
     * @param next the remaining middleware and the enqueue, which sends the jobs
     * @return the return value of {@code next}
     */
    default CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs, String requestKey, Enqueue next) {
        return next.enqueue(jobs);
    }

    /**
     * Wraps a handler.
     *
     * @param job job to run
     * @param next the remaining middleware and the handler, which runs the job
     * @return the outcome of the job
     * @throws Exception if the handler throws it
     */
    default Job.Outcome handle(Job job, Handle next) throws Exception {
        return next.handle(job);
    }

    /** The part of an enqueue inside a middleware: the remaining middleware, and the enqueue itself. */
    @FunctionalInterface
    interface Enqueue {
        /**
         * Enqueues jobs.
         *
         * @param jobs jobs to enqueue
         * @return a result for each job, completed when the jobs are committed
         */
        CompletableFuture<List<HowdahClient.Enqueued>> enqueue(List<NewJob> jobs);
    }

    /** The part of a handler inside a middleware: the remaining middleware, and the handler itself. */
    @FunctionalInterface
    interface Handle {
        /**
         * Runs a job.
         *
         * @param job job to run
         * @return the outcome of the job
         * @throws Exception if the handler throws it
         */
        Job.Outcome handle(Job job) throws Exception;
    }
}
