package dev.howdah.client;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.FieldMask;
import dev.howdah.v1.ListTaskTypesRequest;
import dev.howdah.v1.TaskType;
import dev.howdah.v1.TaskTypeServiceGrpc;
import dev.howdah.v1.TaskTypeServiceGrpc.TaskTypeServiceBlockingStub;
import dev.howdah.v1.TaskTypeSettings;
import dev.howdah.v1.UpdateTaskTypeRequest;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;

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
     * <p>If several stores have the type, the numbers are sums, and all else is of the first store.
     *
     * @param name name of the task type
     */
    public Optional<TaskType> get(String name) {
        var request = ListTaskTypesRequest.newBuilder().setTaskType(name).build();
        return call(stub -> stub.listTaskTypes(request)).getTaskTypesList().stream().reduce(TaskTypes::sum);
    }

    private static TaskType sum(TaskType all, TaskType other) {
        var counts = all.getCounts().toBuilder();
        var more = other.getCounts();
        counts.setReady(counts.getReady() + more.getReady())
                .setLeased(counts.getLeased() + more.getLeased())
                .setScheduled(counts.getScheduled() + more.getScheduled())
                .setWaiting(counts.getWaiting() + more.getWaiting())
                .setDead(counts.getDead() + more.getDead());
        return all.toBuilder().setCounts(counts).build();
    }

    /**
     * Replaces the settings of a task type, and creates the type if it does not exist. Programs call this at each start:
     * it is idempotent, and ignores {@code paused}, so that a restart does not resume what an operator has paused.
     *
     * @param name name of the task type
     * @param settings all settings; see {@link #duration} and {@link RetryPolicies}
     */
    public void apply(String name, TaskTypeSettings settings) {
        var fields = TaskTypeSettings.getDescriptor().getFields().stream().map(FieldDescriptor::getName);
        change(name, settings, fields.filter(field -> !field.equals("paused")).toList());
    }

    /**
     * Stops the delivery of the jobs of a type at all brokers until {@link #resume}. Running jobs continue, and jobs can
     * be enqueued.
     *
     * @param name name of the task type
     */
    public void pause(String name) {
        change(name, TaskTypeSettings.newBuilder().setPaused(true).build(), List.of("paused"));
    }

    /**
     * Ends a pause.
     *
     * @param name name of the task type
     */
    public void resume(String name) {
        change(name, TaskTypeSettings.getDefaultInstance(), List.of("paused"));
    }

    /** Changes the settings at the paths. Each store that has the type keeps its other settings. */
    private void change(String name, TaskTypeSettings settings, List<String> paths) {
        var mask = FieldMask.newBuilder().addAllPaths(paths);
        var request = UpdateTaskTypeRequest.newBuilder().setTaskType(name).setSettings(settings).setUpdateMask(mask);
        call(stub -> stub.updateTaskType(request.build()));
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
