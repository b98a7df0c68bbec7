package dev.howdah.client;

import dev.howdah.v1.DeleteScheduleRequest;
import dev.howdah.v1.GetScheduleRequest;
import dev.howdah.v1.ListSchedulesRequest;
import dev.howdah.v1.PauseScheduleRequest;
import dev.howdah.v1.ResumeScheduleRequest;
import dev.howdah.v1.RunScheduleRequest;
import dev.howdah.v1.ScheduleServiceGrpc;
import dev.howdah.v1.ScheduleServiceGrpc.ScheduleServiceBlockingStub;
import dev.howdah.v1.UpdateScheduleRequest;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.Stream;

/** Calls for schedules, which enqueue jobs at planned times. */
public final class Schedules {
    private final HowdahClient client;

    Schedules(HowdahClient client) {
        this.client = client;
    }

    private <R> R call(Function<ScheduleServiceBlockingStub, R> method) {
        return client.call(ScheduleServiceGrpc::newBlockingStub, method);
    }

    /**
     * Creates a schedule, or replaces its definition. Programs call this at each start: it is idempotent, an unchanged
     * plan keeps its planned times, and a paused schedule stays paused.
     *
     * @param schedule the complete definition
     * @return the schedule as stored, with its next planned times
     */
    public dev.howdah.v1.Schedule apply(Schedule schedule) {
        var definition = schedule.options().toBuilder().setTemplate(schedule.job().encoded(client.options.json));
        var request = UpdateScheduleRequest.newBuilder().setSchedule(definition).setAllowMissing(true).build();
        return call(stub -> stub.updateSchedule(request)).getSchedule();
    }

    /**
     * {@return the schedule with its next ten planned times; empty if it does not exist}
     *
     * @param name name of the schedule
     */
    public Optional<dev.howdah.v1.Schedule> get(String name) {
        var request = GetScheduleRequest.newBuilder().setName(name).build();
        return HowdahClient.found(() -> call(stub -> stub.getSchedule(request)).getSchedule());
    }

    /** {@return all schedules by name, without payloads. The stream calls the broker page by page} */
    public Stream<dev.howdah.v1.Schedule> list() {
        return HowdahClient.pages(token -> {
            var request = ListSchedulesRequest.newBuilder().setPageToken(token).build();
            var page = call(stub -> stub.listSchedules(request));
            return new HowdahClient.Page<>(page.getSchedulesList(), page.getNextPageToken());
        });
    }

    /**
     * Stops a schedule from enqueueing jobs until {@link #resume}.
     *
     * @param name name of the schedule
     */
    public void pause(String name) {
        var request = PauseScheduleRequest.newBuilder().setName(name).build();
        call(stub -> stub.pauseSchedule(request));
    }

    /**
     * Lets a schedule enqueue jobs again, from its next planned time on.
     *
     * @param name name of the schedule
     */
    public void resume(String name) {
        var request = ResumeScheduleRequest.newBuilder().setName(name).build();
        call(stub -> stub.resumeSchedule(request));
    }

    /**
     * Deletes a schedule; its jobs stay.
     *
     * @param name name of the schedule
     * @return whether the schedule existed
     */
    public boolean delete(String name) {
        var request = DeleteScheduleRequest.newBuilder().setName(name).build();
        return HowdahClient.found(() -> call(stub -> stub.deleteSchedule(request))).isPresent();
    }

    /**
     * Enqueues the job of a schedule now, in addition to its plan. Retries like {@link HowdahClient#enqueue}.
     *
     * @param name name of the schedule
     * @return the enqueued job
     */
    public HowdahClient.Enqueued run(String name) {
        var request = RunScheduleRequest.newBuilder().setName(name).setRequestKey(HowdahClient.newRequestKey()).build();
        var job = client.connection.call(used -> { }, channel ->
            ScheduleServiceGrpc.newBlockingStub(channel).runSchedule(request)).getJob();
        return new HowdahClient.Enqueued(job.getId(), job.getIsNew(), job.getOutcome());
    }
}
