package howdah

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"howdah.dev/go/howdahv1"
)

// ScheduleOption sets the plan and the options of a schedule. This package has functions for the common ones. A function
// literal sets the other fields of [howdahv1.Schedule].
type ScheduleOption = func(schedule *howdahv1.Schedule)

// Every plans one time per period, 1 s to 3,650 days.
func Every(period time.Duration) ScheduleOption {
	return func(s *howdahv1.Schedule) { s.Plan = &howdahv1.Schedule_Period{Period: durationpb.New(period)} }
}

// Cron plans the times of a cron expression, such as `30 2 * * *`, in a time zone, such as `Europe/Berlin`.
func Cron(expression, timeZone string) ScheduleOption {
	return func(s *howdahv1.Schedule) {
		s.Plan = &howdahv1.Schedule_Cron{Cron: &howdahv1.Cron{Expression: expression, TimeZone: timeZone}}
	}
}

// Overlap sets what happens at a planned time while a job of an earlier one is not finished. Default: another job is
// enqueued.
func Overlap(policy howdahv1.OverlapPolicy) ScheduleOption {
	return func(s *howdahv1.Schedule) { s.Overlap = policy }
}

// Jitter delays each job by a pseudo-random part of this time, at most 24 h and at most the period.
func Jitter(most time.Duration) ScheduleOption {
	return func(s *howdahv1.Schedule) { s.Jitter = durationpb.New(most) }
}

// Between plans only times from start on and before end. A zero time is no bound.
func Between(start, end time.Time) ScheduleOption {
	return func(s *howdahv1.Schedule) { s.StartTime, s.EndTime = optionalTime(start), optionalTime(end) }
}

// ApplySchedule creates a schedule that enqueues this job at the planned times, or replaces its definition. It is
// idempotent: programs call it at each start. An unchanged plan keeps its planned times, and a paused schedule stays
// paused. [Every] and [Cron] together are an error. The answer has the next planned times.
func (c *Client) ApplySchedule(
	ctx context.Context, name string, job *howdahv1.NewJob, options ...ScheduleOption,
) (*howdahv1.Schedule, error) {
	schedule := &howdahv1.Schedule{Name: name, Template: job}
	if err := apply(schedule, options); err != nil {
		return nil, err
	}
	request := &howdahv1.UpdateScheduleRequest{Schedule: schedule, AllowMissing: true}
	answer, err := howdahv1.NewScheduleServiceClient(c).UpdateSchedule(ctx, request)
	return answer.GetSchedule(), err
}

// GetSchedule returns a schedule with its next ten planned times. It fails with [ErrNotFound] if it does not exist.
func (c *Client) GetSchedule(ctx context.Context, name string) (*howdahv1.Schedule, error) {
	answer, err := howdahv1.NewScheduleServiceClient(c).GetSchedule(ctx, &howdahv1.GetScheduleRequest{Name: name})
	return answer.GetSchedule(), err
}

// ListSchedules yields all schedules by name, without payloads. It ends after an error.
func (c *Client) ListSchedules(ctx context.Context) iter.Seq2[*howdahv1.Schedule, error] {
	return pages(func(token string) ([]*howdahv1.Schedule, string, error) {
		request := &howdahv1.ListSchedulesRequest{PageToken: token}
		answer, err := howdahv1.NewScheduleServiceClient(c).ListSchedules(ctx, request)
		return answer.GetSchedules(), answer.GetNextPageToken(), err
	})
}

// PauseSchedule stops a schedule from enqueueing jobs until [Client.ResumeSchedule].
func (c *Client) PauseSchedule(ctx context.Context, name string) error {
	_, err := howdahv1.NewScheduleServiceClient(c).PauseSchedule(ctx, &howdahv1.PauseScheduleRequest{Name: name})
	return err
}

// ResumeSchedule lets a schedule enqueue jobs again, from its next planned time on.
func (c *Client) ResumeSchedule(ctx context.Context, name string) error {
	_, err := howdahv1.NewScheduleServiceClient(c).ResumeSchedule(ctx, &howdahv1.ResumeScheduleRequest{Name: name})
	return err
}

// DeleteSchedule deletes a schedule; its jobs stay. It fails with [ErrNotFound] if the schedule does not exist.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	_, err := howdahv1.NewScheduleServiceClient(c).DeleteSchedule(ctx, &howdahv1.DeleteScheduleRequest{Name: name})
	return err
}

// RunSchedule enqueues the job of a schedule now, in addition to its plan. It retries like [Client.Enqueue].
func (c *Client) RunSchedule(ctx context.Context, name string) (*howdahv1.EnqueuedJob, error) {
	request := &howdahv1.RunScheduleRequest{Name: name, RequestKey: newRequestKey()}
	answer, err := howdahv1.NewScheduleServiceClient(c).RunSchedule(ctx, request)
	return answer.GetJob(), err
}
