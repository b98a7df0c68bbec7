package dev.howdah.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Timestamp;
import dev.howdah.v1.DependencyFailure;
import dev.howdah.v1.HolderFailure;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.RetryPolicy;
import dev.howdah.v1.StagePayload;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import tools.jackson.databind.json.JsonMapper;

/**
 * A job to enqueue. Only the task type is required. Nothing is checked here: if the broker refuses a field, its error
 * names the field and its bounds. Unset options take the settings of the task type.
 *
 * @param payload what the worker gets: {@code byte[]}, {@link ByteString} and protobuf messages as they are, null as no
 *     bytes, everything else as JSON
 * @param options the message of the protocol with everything else; a payload in it is ignored unless {@code payload} is
 *     null
 */
public record NewJob(Object payload, dev.howdah.v1.NewJob options) {
    /**
     * {@return a job without options}
     *
     * @param taskType the name that workers subscribe to
     * @param payload its payload
     */
    public static NewJob of(String taskType, Object payload) {
        return builder(taskType).payload(payload).build();
    }

    /**
     * {@return a builder}
     *
     * @param taskType 1 to 200 bytes of {@code A-Z a-z 0-9 . _ : / -}
     */
    public static Builder builder(String taskType) {
        return new Builder(null, dev.howdah.v1.NewJob.newBuilder().setTaskType(taskType));
    }

    /** {@return the name that workers subscribe to} */
    public String taskType() {
        return options.getTaskType();
    }

    /** {@return a builder with everything of this job} */
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

    /** Sets the options of a job. */
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
         * @param payload bytes, a protobuf message, or anything that JSON can hold; at most 1 MiB
         */
        public Builder payload(Object payload) {
            this.payload = payload;
            return this;
        }

        /**
         * {@return this}
         *
         * @param name of a header for the worker: at most 64, 8 KiB together
         * @param value its value
         */
        public Builder header(String name, String value) { return with(job.putHeaders(name, value)); }

        /**
         * {@return this}
         *
         * @param tags by which the job is found later, such as a customer or a batch: at most 16, each 1 to 64 bytes
         */
        public Builder tags(List<String> tags) { return with(job.clearTags().addAllTags(tags)); }

        /**
         * {@return this}
         *
         * @param priority lower numbers run first within the type: -1,000 to 1,000, by default 0
         */
        public Builder priority(int priority) { return with(job.setPriority(priority)); }

        /**
         * {@return this}
         *
         * @param delay the job starts after this time: at most 10 years
         */
        public Builder delay(Duration delay) { return with(job.setDelay(wire(delay))); }

        /**
         * {@return this}
         *
         * @param time the job does not start before, by the database's clock
         */
        public Builder runAt(Instant time) { return with(job.setRunAt(wire(time))); }

        /**
         * {@return this}
         *
         * @param attempts after which the job is dead: 1 to 1,000
         */
        public Builder maxAttempts(int attempts) { return with(job.setMaxAttempts(attempts)); }

        /**
         * {@return this}
         *
         * @param policy the delays between attempts
         */
        public Builder retryPolicy(RetryPolicy policy) { return with(job.setRetryPolicy(policy)); }

        /**
         * {@return this}
         *
         * @param timeout the longest time of an attempt, unless its worker extends it: 1 ms to 30 days
         */
        public Builder timeout(Duration timeout) { return with(job.setTimeout(wire(timeout))); }

        /**
         * {@return this}
         *
         * @param key at most one unfinished job of the type has it: at most 200 bytes
         */
        public Builder key(String key) { return with(job.setKey(key)); }

        /**
         * {@return this}
         *
         * @param policy what happens when another job holds the key; by default, that one is kept
         */
        public Builder keyPolicy(KeyPolicy policy) { return with(job.setKeyPolicy(policy)); }

        /**
         * {@return this}
         *
         * @param version for {@link KeyPolicy#KEY_POLICY_REPLACE_IF_NEWER}
         */
        public Builder keyVersion(long version) { return with(job.setKeyVersion(version)); }

        /**
         * {@return this}
         *
         * @param hold how long the key is held, whenever the job ends: 1 s to 1 year
         */
        public Builder keyHold(Duration hold) { return with(job.setKeyHold(wire(hold))); }

        /**
         * {@return this}
         *
         * @param limit for {@link KeyPolicy#KEY_POLICY_DEBOUNCE}: the latest start after the first enqueue
         */
        public Builder keyDebounceLimit(Duration limit) { return with(job.setKeyDebounceLimit(wire(limit))); }

        /**
         * {@return this}
         *
         * @param what happens when the job waits for the running holder of its key, and that one fails
         */
        public Builder onHolderFailure(HolderFailure what) { return with(job.setOnHolderFailure(what)); }

        /**
         * {@return this}
         *
         * @param time the job expires if it has not started by then
         */
        public Builder expireAt(Instant time) { return with(job.setExpireAt(wire(time))); }

        /**
         * {@return this}
         *
         * @param after the job expires if it has not started within this time: 1 ms to 10 years
         */
        public Builder expireAfter(Duration after) { return with(job.setExpireAfter(wire(after))); }

        /**
         * {@return this}
         *
         * @param key that the type's limits per key count by: at most 200 bytes
         */
        public Builder limitKey(String key) { return with(job.setLimitKey(key)); }

        /**
         * {@return this}
         *
         * @param key waiting jobs are shared evenly between these: at most 200 bytes
         */
        public Builder fairKey(String key) { return with(job.setFairKey(key)); }

        /**
         * {@return this}
         *
         * @param types of the further stages: an ack moves the job to the next one; at most 100
         */
        public Builder nextStages(List<String> types) { return with(job.clearNextStages().addAllNextStages(types)); }

        /**
         * {@return this}
         *
         * @param payload of the next stage; by default, the result of the stage before
         */
        public Builder stagePayload(StagePayload payload) { return with(job.setStagePayload(payload)); }

        /**
         * {@return this}
         *
         * @param name of the job within its request, for {@link #afterLocal}
         */
        public Builder localName(String name) { return with(job.setLocalName(name)); }

        /**
         * {@return this}
         *
         * @param ids of jobs that must succeed before this one starts: at most 10,000
         */
        public Builder after(List<Long> ids) { return with(job.clearAfter().addAllAfter(ids)); }

        /**
         * {@return this}
         *
         * @param names of jobs of the same request that must succeed before this one starts
         */
        public Builder afterLocal(List<String> names) { return with(job.clearAfterLocal().addAllAfterLocal(names)); }

        /**
         * {@return this}
         *
         * @param what happens when one of those fails; by default, this job is cancelled
         */
        public Builder onDependencyFailure(DependencyFailure what) { return with(job.setOnDependencyFailure(what)); }

        /**
         * {@return this}
         *
         * @param id of the job that created this one; it is only shown
         */
        public Builder parentId(long id) { return with(job.setParentId(id)); }

        /**
         * {@return this}
         *
         * @param type the task type that the job goes on as when it has failed for good
         */
        public Builder fallback(String type) { return with(job.setFallback(type)); }

        /**
         * {@return this}
         *
         * @param parent the W3C {@code traceparent} for the worker
         * @param state the {@code tracestate}
         */
        public Builder trace(String parent, String state) {
            return with(job.setTraceparent(parent).setTracestate(state));
        }

        private Builder with(dev.howdah.v1.NewJob.Builder same) {
            return this;
        }
    }
}
