package dev.howdah.client;

import dev.howdah.v1.RetryPolicy;
import dev.howdah.v1.RetryPolicyKind;
import java.time.Duration;
import java.util.Arrays;

/** Retry policies of jobs and task types. */
public final class RetryPolicies {
    private RetryPolicies() {}

    /**
     * {@return a retry policy whose delay doubles with each failure}
     *
     * @param first delay after the first failure
     * @param most maximum delay
     */
    public static RetryPolicy backoff(Duration first, Duration most) {
        return RetryPolicy.newBuilder().setKind(RetryPolicyKind.RETRY_POLICY_KIND_EXPONENTIAL).setMultiplier(2)
            .setInitialDelay(NewJob.wire(first)).setMaxDelay(NewJob.wire(most)).build();
    }

    /**
     * {@return a retry policy with these delays after failures; the last one repeats}
     *
     * @param delays delay after each failure
     */
    public static RetryPolicy delays(Duration... delays) {
        return RetryPolicy.newBuilder().setKind(RetryPolicyKind.RETRY_POLICY_KIND_LIST)
            .addAllDelays(Arrays.stream(delays).map(NewJob::wire).toList()).build();
    }
}
