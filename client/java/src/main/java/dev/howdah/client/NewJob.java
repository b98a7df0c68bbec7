package dev.howdah.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Timestamp;
import java.time.Duration;
import java.time.Instant;
import tools.jackson.core.JacksonException;
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
        try {
            return payload == null ? options : options.toBuilder().setPayload(encode(payload, json)).build();
        } catch (JacksonException error) {
            throw HowdahException.invalid("payload", error.getOriginalMessage());
        }
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

    /** Builds a job to enqueue. Options that exclude each other, such as a delay and a start time, are an error. */
    public static final class Builder extends JobOptions<Builder> {
        private final Choices choices;
        private Object payload;

        private Builder(Object payload, dev.howdah.v1.NewJob.Builder job) {
            super(job);
            this.payload = payload;
            choices = new Choices(job);
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
         * @param parent W3C {@code traceparent} for the worker
         * @param state W3C {@code tracestate} for the worker
         */
        public Builder trace(String parent, String state) {
            return with(job.setTraceparent(parent).setTracestate(state));
        }

        @Override
        Builder with(dev.howdah.v1.NewJob.Builder same) {
            choices.check();
            return this;
        }
    }
}
