package dev.howdah.client;

import dev.howdah.v1.Cron;
import dev.howdah.v1.Drift;
import dev.howdah.v1.MissedPolicy;
import dev.howdah.v1.OverlapPolicy;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;

/**
 * A schedule to apply (see {@link Schedules#apply}): a name, the job to enqueue, and the planned times.
 *
 * @param job job to enqueue at each planned time. A delay counts from that time
 * @param options message of the protocol with name, plan and options. Its template is ignored
 */
public record Schedule(NewJob job, dev.howdah.v1.Schedule options) {
    /**
     * {@return a builder of a schedule}
     *
     * @param name unique name, 1 to 200 bytes of {@code A-Z a-z 0-9 . _ : / -}
     * @param job job to enqueue at each planned time
     */
    public static Builder builder(String name, NewJob job) {
        return new Builder(job, dev.howdah.v1.Schedule.newBuilder().setName(name));
    }

    /** Builds a schedule. It needs either a period or a cron expression; both are an error. */
    public static final class Builder {
        private final NewJob job;
        private final dev.howdah.v1.Schedule.Builder options;
        private final Choices choices;

        private Builder(NewJob job, dev.howdah.v1.Schedule.Builder options) {
            this.job = job;
            this.options = options;
            choices = new Choices(options);
        }

        private Builder with(dev.howdah.v1.Schedule.Builder same) {
            choices.check();
            return this;
        }

        /** {@return the schedule} */
        public Schedule build() {
            return new Schedule(job, options.build());
        }

        /**
         * {@return this}
         *
         * @param period time between two planned times, 1 s to 3,650 days
         */
        public Builder every(Duration period) { return with(options.setPeriod(NewJob.wire(period))); }

        /**
         * {@return this}
         *
         * @param expression cron expression, such as {@code 30 2 * * *}
         * @param zone time zone of the expression, such as {@code ZoneId.of("Europe/Berlin")}
         */
        public Builder cron(String expression, ZoneId zone) {
            return with(options.setCron(Cron.newBuilder().setExpression(expression).setTimeZone(zone.getId())));
        }

        /**
         * {@return this}
         *
         * @param drift whether a period begins at the planned time (default) or at the end of the last job
         */
        public Builder drift(Drift drift) { return with(options.setDrift(drift)); }

        /**
         * {@return this}
         *
         * @param policy what happens while a job of an earlier planned time is not finished; by default another job is
         *     enqueued
         */
        public Builder overlap(OverlapPolicy policy) { return with(options.setOverlap(policy)); }

        /**
         * {@return this}
         *
         * @param policy what happens after planned times were missed because no broker ran; by default one job is
         *     enqueued for all of them
         */
        public Builder missed(MissedPolicy policy) { return with(options.setMissed(policy)); }

        /**
         * {@return this}
         *
         * @param most maximum pseudo-random delay of each job, at most 24 h and at most the period
         */
        public Builder jitter(Duration most) { return with(options.setJitter(NewJob.wire(most))); }

        /**
         * {@return this}
         *
         * @param time earliest planned time
         */
        public Builder start(Instant time) { return with(options.setStartTime(NewJob.wire(time))); }

        /**
         * {@return this}
         *
         * @param time time before which all planned times are
         */
        public Builder end(Instant time) { return with(options.setEndTime(NewJob.wire(time))); }
    }
}
