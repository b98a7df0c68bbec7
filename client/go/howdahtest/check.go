package howdahtest

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

const day = 24 * time.Hour

var taskType = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,200}$`)

// check returns the error of a broker with default settings that refuses a field of a job. It does not check what depends
// on the clock or on other jobs: times, dependencies and held keys.
func check(jobs []*howdahv1.NewJob) error {
	for i, job := range jobs {
		for _, rule := range rules(job) {
			if !rule.holds {
				field := fmt.Sprintf("jobs[%d].%s", i, rule.field)
				text := fmt.Sprintf("%s must be %s", field, rule.bounds)
				return &howdah.Error{Code: codes.InvalidArgument, Reason: "INVALID_FIELD", Field: field, Message: text}
			}
		}
	}
	return nil
}

// rule is a bound on a field.
type rule struct {
	field, bounds string
	holds         bool
}

func rules(job *howdahv1.NewJob) []rule {
	headerBytes := 0
	for name, value := range job.Headers {
		headerBytes += len(name) + len(value)
	}
	delay, timeout, expiry := job.GetDelay(), job.Timeout, job.GetExpireAfter()
	const name = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -"
	const text = "at most 200 bytes without control characters"
	all := []rule{
		{"task_type", name, taskType.MatchString(job.TaskType)},
		{"payload", "at most 1 MiB", len(job.Payload) <= 1<<20},
		{"headers", "at most 64, with 8 KiB together", len(job.Headers) <= 64 && headerBytes <= 8<<10},
		{"priority", "-1,000 to 1,000", job.Priority >= -1000 && job.Priority <= 1000},
		{"max_attempts", "at most 1,000", job.MaxAttempts <= 1000},
		{"delay", "0 s to 10 years", delay == nil || within(delay.AsDuration(), 0, 3650*day)},
		{"timeout", "1 ms to 30 days", timeout == nil || within(timeout.AsDuration(), time.Millisecond, 30*day)},
		{"expire_after", "1 ms to 10 years, and longer than the delay", expiry == nil ||
			within(expiry.AsDuration(), max(time.Millisecond, delay.AsDuration()+1), 3650*day)},
		{"key", text, isText(job.Key, 200)},
		{"key_policy", "unset without a key", job.Key != "" || job.KeyPolicy <= howdahv1.KeyPolicy_KEY_POLICY_KEEP},
		{"limit_key", text, isText(job.LimitKey, 200)},
		{"limit_max", "0 to 1,000,000, and 0 without a limit_key", job.LimitMax <= 1_000_000 && (job.LimitMax == 0 || job.LimitKey != "")},
		{"fair_key", text, isText(job.FairKey, 200)},
		{"tags", "at most 16", len(job.Tags) <= 16},
		{"next_stages", "at most 100", len(job.NextStages) <= 100},
		{"fallback", "another task type", job.Fallback == "" || job.Fallback != job.TaskType && taskType.MatchString(job.Fallback)},
	}
	for i, tag := range job.Tags {
		holds := tag != "" && isText(tag, 64)
		all = append(all, rule{fmt.Sprintf("tags[%d]", i), "1 to 64 bytes without control characters", holds})
	}
	for i, stage := range job.NextStages {
		all = append(all, rule{fmt.Sprintf("next_stages[%d]", i), name, taskType.MatchString(stage)})
	}
	return all
}

func within(d, least, most time.Duration) bool { return d >= least && d <= most }

func isText(text string, most int) bool {
	return len(text) <= most && !strings.ContainsFunc(text, unicode.IsControl)
}
