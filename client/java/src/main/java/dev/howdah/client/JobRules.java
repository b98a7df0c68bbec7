package dev.howdah.client;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Duration;
import dev.howdah.v1.KeyPolicy;
import dev.howdah.v1.NewJob;
import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/**
 * The bounds on the fields of jobs, as a broker with default settings checks them. Rules that depend on the clock or on
 * other jobs are left out: times, dependencies and held keys.
 */
final class JobRules {
    private static final Pattern TASK_TYPE = Pattern.compile("[A-Za-z0-9._:/-]{1,200}");
    private static final String NAME = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -";

    /** Bound of an option, and the options of which it needs one. */
    record Bound(String field, String kind, long least, long most, List<String> needs) {
        boolean holds(long value) { return value >= least && value <= most; }
    }

    private record Rule(String field, boolean holds, String bounds) {}

    private JobRules() {}

    /** Fails like a broker that refuses a field of one of the jobs. */
    static void check(List<NewJob> jobs) {
        for (int index = 0; index < jobs.size(); index++) {
            Texts.check(jobs.get(index), "jobs[" + index + "].");
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
        boolean isLate = job.hasExpireAfter() && ms(job.getExpireAfter()) <= ms(job.getDelay());
        var rules = new ArrayList<>(List.of(
            new Rule("task_type", TASK_TYPE.matcher(job.getTaskType()).matches(), NAME),
            new Rule("payload", job.getPayload().size() <= 1 << 20, "at most 1 MiB"),
            new Rule("headers", headerBytes <= 8 << 10, "at most 64, with 8 KiB together"),
            new Rule("expire_after", !isLate, "longer than the delay"),
            new Rule("fallback", !job.getFallback().equals(job.getTaskType()), "another task type")));
        for (var bound : JobOptions.BOUNDS) {
            if (isSet(job, bound.field)) {
                // Keeping the other job is the policy of every job.
                boolean keeps = bound.field.equals("key_policy") && job.getKeyPolicy() == KeyPolicy.KEY_POLICY_KEEP;
                boolean alone = !bound.needs.isEmpty() && bound.needs.stream().noneMatch(name -> isSet(job, name));
                rules.add(new Rule(bound.field, keeps || !alone, "unset without " + String.join(" or ", bound.needs)));
                check(bound, job.getField(field(job, bound.field)), rules);
            }
        }
        return rules;
    }

    private static void check(Bound bound, Object value, List<Rule> rules) {
        var range = bound.least + " to " + bound.most;
        var holds = switch (bound.kind) {
            // An unsigned number over the range of int is negative, and every such number is refused.
            case "number" -> bound.holds(((Number) value).longValue());
            case "ms" -> bound.holds(ms((Duration) value));
            case "text" -> isText((String) value, bound.most);
            case "name" -> TASK_TYPE.matcher((String) value).matches();
            case "list", "names", "tags", "headers" -> bound.holds(((List<?>) value).size());
            default -> true;
        };
        rules.add(new Rule(bound.field, holds, range));
        if (value instanceof List<?> entries) {
            for (int index = 0; index < entries.size(); index++) {
                var field = bound.field + "[" + index + "]";
                if (bound.kind.equals("names")) {
                    rules.add(new Rule(field, TASK_TYPE.matcher((String) entries.get(index)).matches(), NAME));
                } else if (bound.kind.equals("tags")) {
                    var tag = (String) entries.get(index);
                    rules.add(new Rule(field, !tag.isEmpty() && isText(tag, 64),
                        "1 to 64 bytes without control characters"));
                }
            }
        }
    }

    private static FieldDescriptor field(NewJob job, String name) {
        return job.getDescriptorForType().findFieldByName(name);
    }

    private static boolean isSet(NewJob job, String name) {
        var field = field(job, name);
        return field.isRepeated() ? job.getRepeatedFieldCount(field) > 0 : job.hasField(field);
    }

    private static int bytes(String text) { return text.getBytes(StandardCharsets.UTF_8).length; }

    private static boolean isText(String text, long most) {
        return bytes(text) <= most && text.chars().noneMatch(Character::isISOControl);
    }

    private static long ms(Duration time) { return time.getSeconds() * 1000 + time.getNanos() / 1_000_000; }
}
