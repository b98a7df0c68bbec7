package dev.howdah.client;

import dev.howdah.v1.ListTaskTypesRequest;
import dev.howdah.v1.TaskType;
import dev.howdah.v1.TaskTypeServiceGrpc;
import dev.howdah.v1.TaskTypeServiceGrpc.TaskTypeServiceBlockingStub;
import dev.howdah.v1.TaskTypeSettings;
import dev.howdah.v1.UpdateTaskTypeRequest;
import java.time.Duration;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/** Calls for task types and their settings, such as limits and retry policies. */
public final class TaskTypes {
    private final HowdahClient client;

    TaskTypes(HowdahClient client) {
        this.client = client;
    }

    private <R> R call(Function<TaskTypeServiceBlockingStub, R> method) {
        return client.call(TaskTypeServiceGrpc::newBlockingStub, method);
    }

    /**
     * {@return the task type with its settings and numbers of jobs; empty if it does not exist}
     *
     * @param name name of the task type
     */
    public Optional<TaskType> get(String name) {
        var request = ListTaskTypesRequest.newBuilder().setTaskType(name).build();
        return call(stub -> stub.listTaskTypes(request)).getTaskTypesList().stream().findFirst();
    }

    /**
     * Replaces the settings of a task type, and creates the type if it does not exist. Programs call this at each start:
     * it is idempotent, and ignores {@code paused}, so that a restart does not resume what an operator has paused.
     *
     * @param name name of the task type
     * @param settings all settings; see {@link #duration} and {@link RetryPolicies}
     */
    public void apply(String name, TaskTypeSettings settings) {
        update(name, current -> settings.toBuilder().setPaused(current.getPaused()).build());
    }

    /**
     * Stops the delivery of the jobs of a type at all brokers until {@link #resume}. Running jobs continue, and jobs can
     * be enqueued.
     *
     * @param name name of the task type
     */
    public void pause(String name) {
        update(name, current -> current.toBuilder().setPaused(true).build());
    }

    /**
     * Ends a pause.
     *
     * @param name name of the task type
     */
    public void resume(String name) {
        update(name, current -> current.toBuilder().setPaused(false).build());
    }

    /** Reads the settings, changes them and stores them. The last of several concurrent changes wins. */
    private void update(String name, UnaryOperator<TaskTypeSettings> change) {
        var current = get(name).map(TaskType::getSettings).orElse(TaskTypeSettings.getDefaultInstance());
        var request = UpdateTaskTypeRequest.newBuilder().setTaskType(name).setSettings(change.apply(current)).build();
        call(stub -> stub.updateTaskType(request));
    }

    /**
     * {@return a duration of the protocol}
     *
     * @param time the duration
     */
    public static com.google.protobuf.Duration duration(Duration time) {
        return NewJob.wire(time);
    }
}
