package howdah

import (
	"context"

	"google.golang.org/protobuf/proto"

	"howdah.dev/go/howdahv1"
)

// GetTaskType returns a task type with its settings and numbers of jobs. It fails with [ErrNotFound] if it does not exist.
func (c *Client) GetTaskType(ctx context.Context, name string) (*howdahv1.TaskType, error) {
	answer, err := howdahv1.NewTaskTypeServiceClient(c).ListTaskTypes(ctx, &howdahv1.ListTaskTypesRequest{TaskType: name})
	if err == nil && len(answer.TaskTypes) == 0 {
		return nil, ErrNotFound
	} else if err != nil {
		return nil, err
	}
	return answer.TaskTypes[0], nil
}

// ApplyTaskType replaces the settings of a task type, such as its limits and its retry policy, and creates the type if it
// does not exist. It is idempotent: programs call it at each start. It ignores the field Paused, so that a restart does
// not resume what an operator has paused; call [Client.PauseTaskType] and [Client.ResumeTaskType].
func (c *Client) ApplyTaskType(ctx context.Context, name string, settings *howdahv1.TaskTypeSettings) error {
	return c.updateTaskType(ctx, name, func(current *howdahv1.TaskTypeSettings) {
		paused := current.Paused
		proto.Reset(current)
		proto.Merge(current, settings)
		current.Paused = paused
	})
}

// PauseTaskType stops the delivery of the type's jobs at all brokers until [Client.ResumeTaskType]. Running jobs
// continue, and jobs can be enqueued.
func (c *Client) PauseTaskType(ctx context.Context, name string) error {
	return c.updateTaskType(ctx, name, func(settings *howdahv1.TaskTypeSettings) { settings.Paused = true })
}

// ResumeTaskType ends a pause.
func (c *Client) ResumeTaskType(ctx context.Context, name string) error {
	return c.updateTaskType(ctx, name, func(settings *howdahv1.TaskTypeSettings) { settings.Paused = false })
}

// updateTaskType reads the settings, changes them and stores them. The last of several concurrent changes wins.
func (c *Client) updateTaskType(ctx context.Context, name string, change func(*howdahv1.TaskTypeSettings)) error {
	types := howdahv1.NewTaskTypeServiceClient(c)
	answer, err := types.ListTaskTypes(ctx, &howdahv1.ListTaskTypesRequest{TaskType: name, LastCount: true})
	if err != nil {
		return err
	}
	settings := &howdahv1.TaskTypeSettings{}
	if len(answer.TaskTypes) > 0 && answer.TaskTypes[0].Settings != nil {
		settings = answer.TaskTypes[0].Settings
	}
	change(settings)
	_, err = types.UpdateTaskType(ctx, &howdahv1.UpdateTaskTypeRequest{TaskType: name, Settings: settings})
	return err
}
