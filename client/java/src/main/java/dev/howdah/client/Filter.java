package dev.howdah.client;

import com.google.protobuf.Message;
import dev.howdah.v1.JobConditions;
import dev.howdah.v1.JobFilter;
import dev.howdah.v1.JobState;
import java.time.Instant;

/**
 * Selects the jobs of a task type that meet all conditions. A condition that is given twice is refused. A condition with an
 * empty text or an unspecified state is refused too, because it would select all jobs of the type.
 *
 * @param message message of the protocol
 */
public record Filter(JobFilter message) {
    /**
     * {@return a filter that selects all jobs of a task type}
     *
     * @param taskType task type of the jobs
     */
    public static Filter of(String taskType) {
        return new Filter(JobFilter.newBuilder().setTaskType(taskType).build());
    }

    /**
     * {@return the filter for jobs in this state}
     *
     * @param state state of the jobs
     */
    public Filter state(JobState state) {
        return new Filter((JobFilter) with(message.toBuilder(), "state", state.getValueDescriptor()));
    }

    /**
     * {@return the filter for jobs whose last error belongs to this group}
     *
     * @param group group of {@code ListErrorGroups}
     */
    public Filter errorGroup(String group) {
        return new Filter((JobFilter) with(message.toBuilder(), "error_group", group));
    }

    /**
     * {@return the filter for jobs with this tag}
     *
     * @param tag tag of the jobs
     */
    public Filter tag(String tag) { return with("tag", tag); }

    /**
     * {@return the filter for jobs with this fair key}
     *
     * @param key fair key of the jobs
     */
    public Filter fairKey(String key) { return with("fair_key", key); }

    /**
     * {@return the filter for jobs with this limit key}
     *
     * @param key limit key of the jobs
     */
    public Filter limitKey(String key) { return with("limit_key", key); }

    /**
     * {@return the filter for running jobs that this worker holds}
     *
     * @param workerId id of the worker
     */
    public Filter heldBy(String workerId) { return with("worker_id", workerId); }

    /**
     * {@return the filter for jobs that were enqueued at this time or later}
     *
     * @param time earliest time of the enqueue
     */
    public Filter createdSince(Instant time) { return with("created_since", NewJob.wire(time)); }

    /**
     * {@return the filter for jobs that were enqueued before this time}
     *
     * @param time time before which the jobs were enqueued
     */
    public Filter createdBefore(Instant time) { return with("created_before", NewJob.wire(time)); }

    /**
     * {@return the filter for jobs of which at least this many attempts have started}
     *
     * @param attempts number of attempts
     */
    public Filter attemptsAtLeast(int attempts) { return with("attempts_at_least", attempts); }

    /**
     * {@return the filter for jobs of which at most this many attempts have started}
     *
     * @param attempts number of attempts
     */
    public Filter attemptsAtMost(int attempts) { return with("attempts_at_most", attempts); }

    private Filter with(String condition, Object value) {
        var conditions = (JobConditions) with(message.getConditions().toBuilder(), condition, value);
        return new Filter(message.toBuilder().setConditions(conditions).build());
    }

    private static Message with(Message.Builder target, String name, Object value) {
        var field = target.getDescriptorForType().findFieldByName(name);
        if (target.hasField(field)) {
            throw HowdahException.invalid(name, "the condition is given twice");
        } else if (!target.setField(field, value).hasField(field)) {
            throw HowdahException.invalid(name, "the condition is empty: it would select all jobs of the task type");
        }
        return target.build();
    }
}
