package dev.howdah.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Timestamp;
import dev.howdah.v1.DependencyFailure;
import dev.howdah.v1.HistoryMode;
import dev.howdah.v1.HolderFailure;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.RetryPolicy;
import dev.howdah.v1.StagePayload;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import tools.jackson.databind.json.JsonMapper;

/**
 * A job to enqueue. Only the task type is required. The client does not check fields: if the broker refuses a field, its
 * error names the field and its bounds. Unset options take the settings of the task type.
 *
 * @param payload payload for the worker. {@code byte[]}, {@link ByteString} and protobuf messages are stored unchanged,
 *     null as an empty payload, any other value as JSON
 * @param options message of the protocol with all other options. Its payload is ignored unless {@code payload} is null
 */
public record NewJob(Object payload, dev.howdah.v1.NewJob options) {
    /**
     * {@return a job without options}
     *
     * @param taskType name to which workers subscribe
     * @param payload payload of the job
     */
    public static NewJob of(String taskType, Object payload) {
        return builder(taskType).payload(payload).build();
    }

    /**
     * {@return a builder of a job}
     *
     * @param taskType name to which workers subscribe, 1 to 200 bytes of {@code A-Z a-z 0-9 . _ : / -}
     */
    public static Builder builder(String taskType) {
        return new Builder(null, dev.howdah.v1.NewJob.newBuilder().setTaskType(taskType));
    }

    /** {@return the name to which workers subscribe} */
    public String taskType() {
        return options.getTaskType();
    }

    /** {@return a builder with the payload and options of this job} */
    public Builder toBuilder() {
        return new Builder(payload, options.toBuilder());
    }

    dev.howdah.v1.NewJob encoded(JsonMapper json) {
        return payload == null ? options : options.toBuilder().setPayload(encode(payload, json)).build();
    }

    static ByteString encode(Object value, JsonMapper json) {
        if (value instanceof byte[] bytes) {
            return ByteString.copyFrom(bytes);
        } else if (value instanceof ByteString bytes) {
            return bytes;
        } else if (value instanceof MessageLite message) {
            return message.toByteString();
        }
        return value == null ? ByteString.EMPTY : ByteString.copyFrom(json.writeValueAsBytes(value));
    }

    static com.google.protobuf.Duration wire(Duration time) {
        return com.google.protobuf.Duration.newBuilder().setSeconds(time.getSeconds()).setNanos(time.getNano()).build();
    }

    static Timestamp wire(Instant time) {
        return Timestamp.newBuilder().setSeconds(time.getEpochSecond()).setNanos(time.getNano()).build();
    }

    static Duration read(com.google.protobuf.Duration time) {
        return Duration.ofSeconds(time.getSeconds(), time.getNanos());
    }

    static Instant read(Timestamp time) {
        return Instant.ofEpochSecond(time.getSeconds(), time.getNanos());
    }

    /** Builds a job to enqueue. */
    public static final class Builder {
        private Object payload;
        private final dev.howdah.v1.NewJob.Builder job;

        private Builder(Object payload, dev.howdah.v1.NewJob.Builder job) {
            this.payload = payload;
            this.job = job;
        }

        /** {@return the job} */
        public NewJob build() {
            return new NewJob(payload, job.build());
        }

        /**
         * {@return this}
         *
         * @param payload bytes, a protobuf message, or a value that JSON can represent; at most 1 MiB
         */
        public Builder payload(Object payload) {
            this.payload = payload;
            return this;
        }

        /**
         * {@return this}
         *
         * @param name name of a header for the worker. At most 64 headers, 8 KiB in total
         * @param value value of the header
         */
        public Builder header(String name, String value) { return with(job.putHeaders(name, value)); }

        /**
         * {@return this}
         *
         * @param tags texts to search for the job later, such as a customer or a batch. At most 16, each 1 to 64 bytes
         */
        public Builder tags(List<String> tags) { return with(job.clearTags().addAllTags(tags)); }

        /**
         * {@return this}
         *
         * @param priority priority within the task type, -1,000 to 1,000, by default 0. Lower numbers run first
         */
        public Builder priority(int priority) { return with(job.setPriority(priority)); }

        /**
         * {@return this}
         *
         * @param delay delay until the job is due, at most 10 years
         */
        public Builder delay(Duration delay) { return with(job.setDelay(wire(delay))); }

        /**
         * {@return this}
         *
         * @param time time at which the job is due, by the database's clock
         */
        public Builder runAt(Instant time) { return with(job.setRunAt(wire(time))); }

        /**
         * {@return this}
         *
         * @param attempts maximum number of attempts, after which the job is dead: 1 to 1,000
         */
        public Builder maxAttempts(int attempts) { return with(job.setMaxAttempts(attempts)); }

        /**
         * {@return this}
         *
         * @param policy policy for the delays between attempts, see {@link RetryPolicies}
         */
        public Builder retryPolicy(RetryPolicy policy) { return with(job.setRetryPolicy(policy)); }

        /**
         * {@return this}
         *
         * @param timeout limit of the run time of an attempt, 1 ms to 30 days. A handler may extend it
         */
        public Builder timeout(Duration timeout) { return with(job.setTimeout(wire(timeout))); }

        /**
         * {@return this}
         *
         * @param key key of the job, at most 200 bytes. At most one unfinished job of the task type has it
         */
        public Builder key(String key) { return with(job.setKey(key)); }

        /**
         * {@return this}
         *
         * @param policy policy if another job holds the key. By default, that job is kept unchanged
         */
        public Builder keyPolicy(KeyPolicy policy) { return with(job.setKeyPolicy(policy)); }

        /**
         * {@return this}
         *
         * @param version version to compare, for {@link KeyPolicy#KEY_POLICY_REPLACE_IF_NEWER}
         */
        public Builder keyVersion(long version) { return with(job.setKeyVersion(version)); }

        /**
         * {@return this}
         *
         * @param hold time for which the key is held, regardless of when the job ends: 1 s to 1 year
         */
        public Builder keyHold(Duration hold) { return with(job.setKeyHold(wire(hold))); }

        /**
         * {@return this}
         *
         * @param limit maximum delay after the first enqueue, for {@link KeyPolicy#KEY_POLICY_DEBOUNCE}
         */
        public Builder keyDebounceLimit(Duration limit) { return with(job.setKeyDebounceLimit(wire(limit))); }

        /**
         * {@return this}
         *
         * @param policy policy for this job while it waits for the running job that holds its key, if an attempt of
         *     that job fails. By default, that job is cancelled, and this one runs
         */
        public Builder onHolderFailure(HolderFailure policy) { return with(job.setOnHolderFailure(policy)); }

        /**
         * {@return this}
         *
         * @param mode whether history keeps the job if it succeeds; by default, the setting of its task type
         */
        public Builder history(HistoryMode mode) { return with(job.setHistory(mode)); }

        /**
         * {@return this}
         *
         * @param time time at which the job expires if it has not started
         */
        public Builder expireAt(Instant time) { return with(job.setExpireAt(wire(time))); }

        /**
         * {@return this}
         *
         * @param after time after which the job expires if it has not started, 1 ms to 10 years
         */
        public Builder expireAfter(Duration after) { return with(job.setExpireAfter(wire(after))); }

        /**
         * {@return this}
         *
         * @param key key for the task type's limits per key, at most 200 bytes
         */
        public Builder limitKey(String key) { return with(job.setLimitKey(key)); }

        /**
         * {@return this}
         *
         * @param jobs how many jobs of the limit key may run at once when this job starts, 1 to 1,000,000
         */
        public Builder limitMax(int jobs) { return with(job.setLimitMax(jobs)); }

        /**
         * {@return this}
         *
         * @param key fair key, at most 200 bytes. Jobs of a task type are served round-robin between fair keys
         */
        public Builder fairKey(String key) { return with(job.setFairKey(key)); }

        /**
         * {@return this}
         *
         * @param types task types of the next stages, at most 100. An ack moves the job to the next stage
         */
        public Builder nextStages(List<String> types) { return with(job.clearNextStages().addAllNextStages(types)); }

        /**
         * {@return this}
         *
         * @param payload payload of the next stage. By default, it is the result of the previous stage
         */
        public Builder stagePayload(StagePayload payload) { return with(job.setStagePayload(payload)); }

        /**
         * {@return this}
         *
         * @param name name of the job within its request, for {@link #afterLocal}
         */
        public Builder localName(String name) { return with(job.setLocalName(name)); }

        /**
         * {@return this}
         *
         * @param ids ids of the jobs that must succeed before this one starts, at most 10,000
         */
        public Builder after(List<Long> ids) { return with(job.clearAfter().addAllAfter(ids)); }

        /**
         * {@return this}
         *
         * @param names local names of jobs of the same request that must succeed before this one starts
         */
        public Builder afterLocal(List<String> names) { return with(job.clearAfterLocal().addAllAfterLocal(names)); }

        /**
         * {@return this}
         *
         * @param policy policy if one of the dependencies does not succeed. By default, this job is cancelled
         */
        public Builder onDependencyFailure(DependencyFailure policy) { return with(job.setOnDependencyFailure(policy)); }

        /**
         * {@return this}
         *
         * @param id id of the job that created this one, for information only
         */
        public Builder parentId(long id) { return with(job.setParentId(id)); }

        /**
         * {@return this}
         *
         * @param type task type as which the job continues when it has failed for good
         */
        public Builder fallback(String type) { return with(job.setFallback(type)); }

        /**
         * {@return this}
         *
         * @param parent W3C {@code traceparent} for the worker
         * @param state W3C {@code tracestate} for the worker
         */
        public Builder trace(String parent, String state) {
            return with(job.setTraceparent(parent).setTracestate(state));
        }

        private Builder with(dev.howdah.v1.NewJob.Builder same) {
            return this;
        }
    }
}
