package howdahtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
	"howdah.dev/go/internal/text"
)

const taskType = "1 to 200 bytes of A-Z a-z 0-9 . _ : / -"

var taskTypes = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,200}$`)

// check returns the error of a broker with default settings that refuses a field of a job. It leaves out rules that
// depend on the clock or on other jobs: times, dependencies and held keys.
func check(jobs []*howdahv1.NewJob) error {
	if field, problem := text.Invalid(&howdahv1.EnqueueJobsRequest{Jobs: jobs}); field != "" {
		return &howdah.Error{Code: codes.InvalidArgument, Field: field, Message: problem}
	}
	for i, job := range jobs {
		if field, allowed := problem(job); field != "" {
			field = fmt.Sprintf("jobs[%d].%s", i, field)
			text := fmt.Sprintf("%s must be %s", field, allowed)
			return &howdah.Error{Code: codes.InvalidArgument, Reason: "INVALID_FIELD", Field: field, Message: text}
		}
	}
	return nil
}

// bound of an option, and the options of which it needs one.
type bound struct {
	name, kind  string
	least, most int64
	needs       []string
}

// problem returns the first invalid field, and what it must be.
func problem(job *howdahv1.NewJob) (field, allowed string) {
	message := job.ProtoReflect()
	has := func(name string) bool {
		return message.Has(message.Descriptor().Fields().ByName(protoreflect.Name(name)))
	}
	switch after := job.GetExpireAfter(); {
	case !taskTypes.MatchString(job.TaskType):
		return "task_type", taskType
	case len(job.Payload) > 1<<20:
		return "payload", "at most 1 MiB"
	case job.Fallback == job.TaskType:
		return "fallback", "another task type"
	case after != nil && after.AsDuration() <= job.GetDelay().AsDuration():
		return "expire_after", "longer than the delay"
	}
	for _, bound := range bounds {
		if !has(bound.name) {
			continue
		}
		// Keeping the other job is the policy of every job.
		keeps := bound.name == "key_policy" && job.KeyPolicy == howdahv1.KeyPolicy_KEY_POLICY_KEEP
		if len(bound.needs) > 0 && !slices.ContainsFunc(bound.needs, has) && !keeps {
			return bound.name, "unset without " + strings.Join(bound.needs, " or ")
		}
		value := message.Get(message.Descriptor().Fields().ByName(protoreflect.Name(bound.name)))
		if field, allowed = bound.problem(value); field != "" {
			return field, allowed
		}
	}
	return "", ""
}

func (b bound) problem(value protoreflect.Value) (field, allowed string) {
	valid, allowed := true, fmt.Sprintf("%d to %d", b.least, b.most)
	switch b.kind {
	case "number":
		valid = b.holds(integer(value))
	case "ms":
		valid = b.holds(value.Message().Interface().(*durationpb.Duration).AsDuration().Milliseconds())
	case "text":
		valid, allowed = isText(value.String(), b.most), allowed+" bytes without control characters"
	case "name":
		valid, allowed = taskTypes.MatchString(value.String()), taskType
	case "headers":
		valid, allowed = b.holds(int64(value.Map().Len())) && size(value.Map()) <= 8<<10, "at most 64, with 8 KiB together"
	case "list", "names", "tags":
		valid, allowed = b.holds(int64(value.List().Len())), allowed+" entries"
	}
	if !valid {
		return b.name, allowed
	}
	for i := 0; (b.kind == "names" || b.kind == "tags") && i < value.List().Len(); i++ {
		text := value.List().Get(i).String()
		if b.kind == "names" && !taskTypes.MatchString(text) {
			return fmt.Sprintf("%s[%d]", b.name, i), taskType
		} else if b.kind == "tags" && (text == "" || !isText(text, 64)) {
			return fmt.Sprintf("%s[%d]", b.name, i), "1 to 64 bytes without control characters"
		}
	}
	return "", ""
}

func (b bound) holds(value int64) bool { return value >= b.least && value <= b.most }

func integer(value protoreflect.Value) int64 {
	switch number := value.Interface().(type) {
	case int32:
		return int64(number)
	case uint32:
		return int64(number)
	}
	return value.Int()
}

func size(headers protoreflect.Map) (bytes int) {
	headers.Range(func(name protoreflect.MapKey, value protoreflect.Value) bool {
		bytes += len(name.String()) + len(value.String())
		return true
	})
	return bytes
}

func isText(text string, most int64) bool {
	return int64(len(text)) <= most && !strings.ContainsFunc(text, unicode.IsControl)
}
