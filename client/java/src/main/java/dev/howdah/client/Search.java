package dev.howdah.client;

import dev.howdah.v1.JobConditions;
import dev.howdah.v1.JobHeader;
import dev.howdah.v1.JobState;
import dev.howdah.v1.SearchJobsRequest;
import java.time.Instant;

/**
 * A search for jobs of one task type. A search by key or tag uses an index. Other searches read all jobs of the type in
 * one state and time range, which {@link #in} sets.
 *
 * @param request message of the protocol
 */
public record Search(SearchJobsRequest request) {
    private static SearchJobsRequest.Builder of(String taskType) {
        return SearchJobsRequest.newBuilder().setTaskType(taskType);
    }

    /**
     * {@return a search by key, also for dead and finished jobs that had it}
     *
     * @param taskType task type of the jobs
     * @param key key of the jobs
     */
    public static Search byKey(String taskType, String key) {
        return new Search(of(taskType).setKey(key).build());
    }

    /**
     * {@return a search by tag}
     *
     * @param taskType task type of the jobs
     * @param tag tag of the jobs
     */
    public static Search byTag(String taskType, String tag) {
        if (tag.isEmpty()) {
            throw HowdahException.invalid("tag", "the tag is empty");
        }
        return new Search(of(taskType).setConditions(JobConditions.newBuilder().setTag(tag)).build());
    }

    /**
     * {@return a search by conditions, which must all hold. Without a tag and a worker, it needs {@link #in}}
     *
     * @param taskType task type of the jobs
     * @param conditions conditions on the jobs
     */
    public static Search by(String taskType, JobConditions conditions) {
        return new Search(of(taskType).setConditions(conditions).build());
    }

    /**
     * {@return a search by header. It needs {@link #in}}
     *
     * @param taskType task type of the jobs
     * @param name name of the header
     * @param value complete value of the header
     */
    public static Search byHeader(String taskType, String name, String value) {
        return new Search(of(taskType).setHeader(JobHeader.newBuilder().setName(name).setValue(value)).build());
    }

    /**
     * {@return a search by a text in the payload, case-sensitive. It needs {@link #in} and the scope {@code payload}}
     *
     * @param taskType task type of the jobs
     * @param text text in the payload
     */
    public static Search byPayload(String taskType, String text) {
        return new Search(of(taskType).setPayloadText(text).build());
    }

    /**
     * {@return a search by a condition on JSON payloads. It needs {@link #in} and the scope {@code payload}}
     *
     * @param taskType task type of the jobs
     * @param path SQL/JSON path of Postgres, such as {@code $.order.id == 17}
     */
    public static Search byPath(String taskType, String path) {
        return new Search(of(taskType).setPayloadPath(path).build());
    }

    /**
     * {@return the search in this state only, from this time on}
     *
     * @param state state of the jobs
     * @param since start of the time range: of the end of finished and dead jobs, and of the enqueue of other jobs
     */
    public Search in(JobState state, Instant since) {
        return new Search(request.toBuilder().setState(state).setSince(NewJob.wire(since)).build());
    }

    /**
     * {@return the search in this state only; for searches by key or tag}
     *
     * @param state state of the jobs
     */
    public Search in(JobState state) {
        return new Search(request.toBuilder().setState(state).build());
    }

    /**
     * {@return the search before this time only}
     *
     * @param time end of the time range
     */
    public Search until(Instant time) {
        return new Search(request.toBuilder().setUntil(NewJob.wire(time)).build());
    }
}
