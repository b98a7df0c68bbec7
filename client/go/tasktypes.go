package howdah

import (
	"context"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"howdah.dev/go/howdahv1"
)

// GetTaskType returns a task type with its settings and numbers of jobs. It fails with [ErrNotFound] if it does not exist.
// If several stores have the type, the numbers are sums, and all else is of the first store.
func (c *Client) GetTaskType(ctx context.Context, name string) (*howdahv1.TaskType, error) {
	answer, err := howdahv1.NewTaskTypeServiceClient(c).ListTaskTypes(ctx, &howdahv1.ListTaskTypesRequest{TaskType: name})
	if err == nil && len(answer.TaskTypes) == 0 {
		return nil, missing("task type", name)
	} else if err != nil {
		return nil, err
	}
	first := answer.TaskTypes[0]
	if first.Counts == nil {
		first.Counts = &howdahv1.TaskTypeCounts{}
	}
	for _, other := range answer.TaskTypes[1:] {
		first.Counts.Ready += other.GetCounts().GetReady()
		first.Counts.Leased += other.GetCounts().GetLeased()
		first.Counts.Scheduled += other.GetCounts().GetScheduled()
		first.Counts.Waiting += other.GetCounts().GetWaiting()
		first.Counts.Dead += other.GetCounts().GetDead()
	}
	return first, nil
}

// ApplyTaskType replaces the settings of a task type, such as its limits and its retry policy, and creates the type if it
// does not exist. It is idempotent: programs call it at each start. It ignores the field Paused, so that a restart does
// not resume what an operator has paused; call [Client.PauseTaskType] and [Client.ResumeTaskType].
func (c *Client) ApplyTaskType(ctx context.Context, name string, settings *howdahv1.TaskTypeSettings) error {
	var paths []string
	fields := settings.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if path := string(fields.Get(i).Name()); path != "paused" {
			paths = append(paths, path)
		}
	}
	return c.changeTaskType(ctx, name, settings, paths)
}

// PauseTaskType stops the delivery of the type's jobs at all brokers until [Client.ResumeTaskType]. Running jobs
// continue, and jobs can be enqueued.
func (c *Client) PauseTaskType(ctx context.Context, name string) error {
	return c.changeTaskType(ctx, name, &howdahv1.TaskTypeSettings{Paused: true}, []string{"paused"})
}

// ResumeTaskType ends a pause.
func (c *Client) ResumeTaskType(ctx context.Context, name string) error {
	return c.changeTaskType(ctx, name, &howdahv1.TaskTypeSettings{}, []string{"paused"})
}

// changeTaskType changes the settings at the paths; each store that has the type keeps its other settings.
func (c *Client) changeTaskType(ctx context.Context, name string, settings *howdahv1.TaskTypeSettings, paths []string) error {
	_, err := howdahv1.NewTaskTypeServiceClient(c).UpdateTaskType(ctx, &howdahv1.UpdateTaskTypeRequest{
		TaskType: name, Settings: settings, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	})
	return err
}
