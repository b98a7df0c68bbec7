package dev.howdah.client;

import com.google.protobuf.Duration;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.NewJob;
import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/**
 * The bounds on the fields of jobs, as a broker with default settings checks them. What depends on the clock or on other
 * jobs is not checked: times, dependencies and held keys.
 */
final class JobRules {
    private static final Pattern TASK_TYPE = Pattern.compile("[A-Za-z0-9._:/-]{1,200}");
    private static final String NAME = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -";
    private static final String TEXT = "at most 200 bytes without control characters";
    private static final long DAY_MS = 86_400_000;

    private record Rule(String field, boolean holds, String bounds) {}

    private JobRules() {}

    /** Fails like a broker that refuses a field of one of the jobs. */
    static void check(List<NewJob> jobs) {
        for (int index = 0; index < jobs.size(); index++) {
            for (var rule : rules(jobs.get(index))) {
                if (!rule.holds) {
                    var field = "jobs[" + index + "]." + rule.field;
                    throw new HowdahException(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD", field,
                        field + " must be " + rule.bounds);
                }
            }
        }
    }

    private static List<Rule> rules(NewJob job) {
        int headerBytes = job.getHeadersMap().entrySet().stream()
            .mapToInt(header -> bytes(header.getKey()) + bytes(header.getValue())).sum();
        boolean noPolicy = job.getKeyPolicy().getNumber() <= KeyPolicy.KEY_POLICY_KEEP_VALUE;
        long firstExpiry = Math.max(1, ms(job.getDelay()) + 1);
        var rules = new ArrayList<>(List.of(
            new Rule("task_type", TASK_TYPE.matcher(job.getTaskType()).matches(), NAME),
            new Rule("payload", job.getPayload().size() <= 1 << 20, "at most 1 MiB"),
            new Rule("headers", job.getHeadersCount() <= 64 && headerBytes <= 8 << 10,
                "at most 64, with 8 KiB together"),
            new Rule("priority", Math.abs(job.getPriority()) <= 1000, "-1,000 to 1,000"),
            new Rule("max_attempts", Integer.compareUnsigned(job.getMaxAttempts(), 1000) <= 0, "at most 1,000"),
            new Rule("delay", !job.hasDelay() || within(job.getDelay(), 0, 3650 * DAY_MS), "0 s to 10 years"),
            new Rule("timeout", !job.hasTimeout() || within(job.getTimeout(), 1, 30 * DAY_MS), "1 ms to 30 days"),
            new Rule("expire_after", !job.hasExpireAfter()
                || within(job.getExpireAfter(), firstExpiry, 3650 * DAY_MS),
                "1 ms to 10 years, and longer than the delay"),
            new Rule("key", isText(job.getKey(), 200), TEXT),
            new Rule("key_policy", noPolicy || !job.getKey().isEmpty(), "unset without a key"),
            new Rule("limit_key", isText(job.getLimitKey(), 200), TEXT),
            new Rule("limit_max", Integer.compareUnsigned(job.getLimitMax(),
                job.getLimitKey().isEmpty() ? 0 : 1_000_000) <= 0, "at most 1,000,000, with a limit_key"),
            new Rule("fair_key", isText(job.getFairKey(), 200), TEXT),
            new Rule("tags", job.getTagsCount() <= 16, "at most 16"),
            new Rule("next_stages", job.getNextStagesCount() <= 100, "at most 100"),
            new Rule("fallback", job.getFallback().isEmpty() || !job.getFallback().equals(job.getTaskType())
                && TASK_TYPE.matcher(job.getFallback()).matches(), "another task type")));
        for (int index = 0; index < job.getTagsCount(); index++) {
            var tag = job.getTags(index);
            rules.add(new Rule("tags[" + index + "]", !tag.isEmpty() && isText(tag, 64),
                "1 to 64 bytes without control characters"));
        }
        for (int index = 0; index < job.getNextStagesCount(); index++) {
            rules.add(new Rule("next_stages[" + index + "]",
                TASK_TYPE.matcher(job.getNextStages(index)).matches(), NAME));
        }
        return rules;
    }

    private static int bytes(String text) { return text.getBytes(StandardCharsets.UTF_8).length; }

    private static boolean isText(String text, int most) {
        return bytes(text) <= most && text.chars().noneMatch(Character::isISOControl);
    }

    private static long ms(Duration time) { return time.getSeconds() * 1000 + time.getNanos() / 1_000_000; }

    private static boolean within(Duration time, long least, long most) {
        return ms(time) >= least && ms(time) <= most;
    }
}
