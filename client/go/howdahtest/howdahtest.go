// Package howdahtest supports tests of programs that use Howdah. It runs handlers and records enqueues without a broker,
// and it starts a temporary broker for a test.
package howdahtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahv1"
)

// Performed is the result of a handler that [Perform] has run.
type Performed struct {
	// The outcome that a worker would send to the broker.
	Outcome *howdahv1.Outcome
	// The return values of the handler.
	Result []byte
	Err    error
	// Progress reports and checkpoints of the handler, in order.
	Reports []*howdahv1.ProgressReport
	// Extensions of the deadline that the handler requested, in order.
	Extensions []*howdahv1.Extension
}

// Perform runs a handler on a job with this payload (see [howdah.NewJob]), without a broker. The functions in change
// then set other fields of the job, such as its attempt, headers or checkpoint. Progress reports and deadline
// extensions of the handler succeed at once.
func Perform(t testing.TB, handler howdah.Handler, payload any, change ...func(*howdahv1.LeasedJob)) *Performed {
	t.Helper()
	made, err := howdah.NewJob("test", payload)
	if err != nil {
		t.Fatal(err)
	}
	leased := &howdahv1.LeasedJob{Id: 1, Token: 1, TaskType: "test", Attempt: 1, MaxAttempts: 10, Payload: made.Payload}
	for _, f := range change {
		f(leased)
	}
	done := &Performed{}
	job := howdah.JobOf(leased, &calls{done: done})
	done.Result, done.Err = handler(t.Context(), job)
	done.Outcome = howdah.OutcomeOf(job, done.Result, done.Err)
	return done
}

// calls stands for the broker in [Perform]. It records the extensions and progress reports of a handler; any other call
// panics.
type calls struct {
	howdahv1.WorkerServiceClient
	mu   sync.Mutex
	done *Performed
}

func (c *calls) ReportProgress(
	_ context.Context, in *howdahv1.ReportProgressRequest, _ ...grpc.CallOption,
) (*howdahv1.ReportProgressResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.Reports = append(c.done.Reports, in.Reports...)
	return &howdahv1.ReportProgressResponse{}, nil
}

func (c *calls) ExtendJobs(
	_ context.Context, in *howdahv1.ExtendJobsRequest, _ ...grpc.CallOption,
) (*howdahv1.ExtendJobsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.Extensions = append(c.done.Extensions, in.Extensions...)
	return &howdahv1.ExtendJobsResponse{}, nil
}

// Recorder is a [howdah.Enqueuer] that keeps enqueued jobs in memory, without a broker. It refuses jobs whose fields a
// broker with default settings would refuse, with the same code, reason and field. A recorded job holds its key, as an
// unfinished job does: an enqueue with the same key is answered by its policy. The zero value is ready for use.
type Recorder struct {
	mu   sync.Mutex
	jobs []*howdahv1.NewJob
}

// Enqueue records a job.
func (r *Recorder) Enqueue(
	ctx context.Context, taskType string, payload any, options ...howdah.Option,
) (*howdahv1.EnqueuedJob, error) {
	job, err := howdah.NewJob(taskType, payload, options...)
	if err != nil {
		return nil, err
	}
	all, err := r.EnqueueAll(ctx, job)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// EnqueueAll records jobs: all of them or none. Ids begin at 1.
func (r *Recorder) EnqueueAll(_ context.Context, jobs ...*howdahv1.NewJob) ([]*howdahv1.EnqueuedJob, error) {
	if err := check(jobs); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	recorded := slices.Clone(r.jobs)
	var answers []*howdahv1.EnqueuedJob
	for i, job := range jobs {
		holder := slices.IndexFunc(recorded, func(other *howdahv1.NewJob) bool {
			return job.Key != "" && other.Key == job.Key && other.TaskType == job.TaskType
		})
		if holder < 0 {
			recorded = append(recorded, proto.CloneOf(job))
			answer := &howdahv1.EnqueuedJob{Id: int64(len(recorded)), IsNew: true, Outcome: howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_NEW}
			answers = append(answers, answer)
			continue
		}
		if job.KeyPolicy == howdahv1.KeyPolicy_KEY_POLICY_REJECT {
			field := fmt.Sprintf("jobs[%d].key", i)
			text := fmt.Sprintf("%s: another job holds the key %q", field, job.Key)
			return nil, &howdah.Error{Code: codes.AlreadyExists, Reason: "KEY_TAKEN", Field: field, Message: text}
		}
		outcome := keyOutcome(recorded[holder], job)
		if outcome == replaced || outcome == debounced {
			recorded[holder] = proto.CloneOf(job)
		}
		answers = append(answers, &howdahv1.EnqueuedJob{Id: int64(holder + 1), Outcome: outcome})
	}
	r.jobs = recorded
	return answers, nil
}

const (
	replaced  = howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_REPLACED
	debounced = howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_DEBOUNCED
)

// keyOutcome returns the effect of enqueueing a job whose key another job holds.
func keyOutcome(holder, job *howdahv1.NewJob) howdahv1.EnqueueOutcome {
	switch job.KeyPolicy {
	case howdahv1.KeyPolicy_KEY_POLICY_REPLACE:
		return replaced
	case howdahv1.KeyPolicy_KEY_POLICY_DEBOUNCE:
		return debounced
	case howdahv1.KeyPolicy_KEY_POLICY_REPLACE_IF_NEWER:
		if holder.KeyVersion != nil && job.GetKeyVersion() <= holder.GetKeyVersion() {
			return howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_STALE
		}
		return replaced
	}
	return howdahv1.EnqueueOutcome_ENQUEUE_OUTCOME_KEPT
}

// Jobs returns the recorded jobs of a task type, or all jobs if taskType is empty. A job that replaces the holder of its key
// takes the holder's place.
func (r *Recorder) Jobs(taskType string) []*howdahv1.NewJob {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*howdahv1.NewJob
	for _, job := range r.jobs {
		if taskType == "" || job.TaskType == taskType {
			found = append(found, job)
		}
	}
	return found
}

// AssertEnqueued fails the test unless a job of the task type with this payload (see [howdah.NewJob]) and these options
// was recorded. A nil payload matches any payload.
func (r *Recorder) AssertEnqueued(t testing.TB, taskType string, payload any, options ...howdah.Option) {
	t.Helper()
	want, err := howdah.NewJob(taskType, payload, options...)
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range r.Jobs(taskType) {
		expected := proto.CloneOf(job)
		for _, set := range options {
			set(expected)
		}
		if payload != nil {
			expected.Payload = want.Payload
		}
		if proto.Equal(expected, job) {
			return
		}
	}
	t.Errorf("no matching job was enqueued: %v\nenqueued jobs: %v", want, r.Jobs(""))
}

// Broker is a running broker with a temporary Postgres: `howdah dev --ephemeral`.
type Broker struct {
	// Address of the broker's gRPC port, for [howdah.Config].
	Address string
	// Address of the broker's HTTP port.
	HTTPAddress string
	// URL of the broker's database. Empty if the broker serves several stores.
	DatabaseURL string
}

// StartBroker starts a broker with a temporary Postgres, and stops both when the test ends. It runs the program that
// HOWDAH_BIN names, or else `howdah` from the PATH. The arguments are appended to `dev --ephemeral`. The broker logs warnings
// and errors, unless HOWDAH_LOG is set.
func StartBroker(t testing.TB, arguments ...string) *Broker {
	t.Helper()
	b, stop, err := Start(arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b
}

// Advance advances the broker's clock, and returns the new time. Delayed jobs, retries, schedules, deadlines and leases
// become due. The package time does not follow.
func (b *Broker) Advance(ctx context.Context, by time.Duration) (time.Time, error) {
	client, err := howdah.New(howdah.Config{Servers: []string{b.Address}})
	if err != nil {
		return time.Time{}, err
	}
	defer client.Close()
	settings := howdahv1.NewSettingsServiceClient(client)
	answer, err := settings.AdvanceClock(ctx, &howdahv1.AdvanceClockRequest{Duration: durationpb.New(by)})
	if err != nil {
		return time.Time{}, err
	}
	return answer.Time.AsTime(), nil
}

// Start starts a broker like [StartBroker], for use in TestMain. It returns a function that stops the broker.
func Start(arguments ...string) (*Broker, func(), error) {
	program := os.Getenv("HOWDAH_BIN")
	if program == "" {
		program = "howdah"
	}
	fixed := []string{"dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}
	command := exec.Command(program, append(fixed, arguments...)...)
	command.Stderr = os.Stderr
	command.Env = append([]string{"HOWDAH_LOG=warn"}, os.Environ()...)
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			b := &Broker{}
			for field := range strings.FieldsSeq(rest) {
				switch name, value, _ := strings.Cut(field, "="); name {
				case "grpc":
					b.Address = value
				case "http":
					b.HTTPAddress = value
				case "postgres":
					b.DatabaseURL = value
				}
			}
			go io.Copy(io.Discard, output)
			return b, stop, nil
		}
	}
	stop()
	return nil, nil, fmt.Errorf("%s dev ended before it was ready", program)
}
