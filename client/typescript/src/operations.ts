/** Calls for programs that manage jobs, schedules and task types. */
import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { Client as ServiceClient } from "@connectrpc/connect";
import { invalid, refuseUnknown } from "./calls.js";
import { type Duration, duration } from "./duration.js";
import * as pb from "./gen/index.js";
import {
  type Enqueued,
  enqueued,
  enumOf,
  jsonMessage,
  type Name,
  policy,
  type RetryPolicyOptions,
  toBytes,
} from "./job.js";

/** Conditions on jobs, which must all hold. */
export interface JobConditions {
  createdBefore?: Date;
  createdSince?: Date;
  tag?: string;
  fairKey?: string;
  limitKey?: string;
  /** Leased jobs that this worker holds. */
  workerId?: string;
  attemptsAtLeast?: number;
  attemptsAtMost?: number;
}

/** Selects jobs of a task type. */
export interface JobFilter extends JobConditions {
  taskType: string;
  /** Default: all states that the call accepts. */
  state?: Name<typeof pb.JobState>;
  /** Selects jobs whose last error belongs to this group. */
  errorGroup?: string;
}

/** Jobs: one or several by id, or all that a filter selects. */
export type JobSelection = bigint | readonly bigint[] | JobFilter;

/** A search: conditions, at most one of `key`, `header`, `payloadText` and `payloadPath`, and the jobs to search. */
export interface JobSearch extends JobConditions {
  taskType: string;
  key?: string;
  /** Name and value of a header. */
  header?: { name: string; value: string };
  /** Text in the payload. */
  payloadText?: string;
  /** SQL/JSON path, such as `$.order.id == 17`. */
  payloadPath?: string;
  /** State of the jobs. Required unless the search is by key, tag or worker. */
  state?: Name<typeof pb.JobState>;
  /** Start of the time range. Required unless the search is by key, tag or worker. */
  since?: Date;
  until?: Date;
}

/** Settings of a retry. */
export interface RetryOptions {
  delay?: Duration;
  runAt?: Date;
  /** Replaces the payload of one job: bytes, or a value as JSON. */
  payload?: unknown;
}

/** Result of a retry. */
export interface Retried {
  /** The jobs that run again. */
  ids: bigint[];
  /** Jobs that stay dead, because another job holds their key. */
  keyHeldIds: bigint[];
  /** Cancelled jobs that wait for the retried jobs again. */
  revivedIds: bigint[];
}

/** The plan of a schedule: a period or a cron expression, and its policies. */
export interface ScheduleOptions {
  /** 1 s to 3,650 days. */
  period?: Duration;
  /** Cron expression, such as `0 3 * * *`. */
  cron?: string;
  /** Time zone of the cron expression. Default: `UTC`. */
  timeZone?: string;
  /** Start of each period. Default: `plan`. */
  drift?: Name<typeof pb.Drift>;
  /** Policy while an earlier job is not finished. Default: `allow`. */
  overlap?: Name<typeof pb.OverlapPolicy>;
  /** Policy for missed times. Default: `one`. */
  missed?: Name<typeof pb.MissedPolicy>;
  missedLimit?: number;
  startTime?: Date;
  endTime?: Date;
  jitter?: Duration;
}

type PlainSetting =
  | "maxAttempts"
  | "paused"
  | "historyDays"
  | "deadDays"
  | "fallback"
  | "maxRunning"
  | "keyMaxRunning"
  | "keyStrictOrder"
  | "keyGapFromEnd";

/** Settings of a task type. The options of a job override them. */
export interface TaskTypeOptions extends Partial<Pick<pb.TaskTypeSettings, PlainSetting>> {
  retryPolicy?: RetryPolicyOptions;
  /** Succeeded jobs to keep. Default: `full`. */
  history?: Name<typeof pb.HistoryMode>;
  priorityStep?: Duration;
  timeout?: Duration;
  maxPayloadBytes?: number;
  maxBacklog?: number;
  keyMinGap?: Duration;
  rate?: { perSecond: number; burst: number };
  /** Slows the type down after this many failed attempts in a row. */
  brake?: { failures: number; initialDelay?: Duration; maxDelay?: Duration };
  keyRate?: { perSecond: number; burst: number };
}

/** The part of `Client` that manages jobs, schedules and task types. */
export abstract class Operations {
  abstract readonly jobs: ServiceClient<typeof pb.JobService>;
  abstract readonly schedules: ServiceClient<typeof pb.ScheduleService>;
  abstract readonly taskTypes: ServiceClient<typeof pb.TaskTypeService>;

  /** Returns one job, with payload, result and failures. */
  async getJob(id: bigint): Promise<pb.Job> {
    return jsonMessage(pb.JobSchema, (await this.jobs.getJob({ id })).job as pb.Job);
  }

  /** Explains why a job does not run, and what must change first. */
  async explainJob(id: bigint): Promise<pb.ExplainJobResponse> {
    return jsonMessage(pb.ExplainJobResponseSchema, await this.jobs.explainJob({ id }));
  }

  /** Finds jobs of a task type by conditions, key, header or payload. Yields them without their payloads. */
  async *searchJobs(search: JobSearch): AsyncGenerator<pb.Job> {
    const { taskType, state, since, until, key, header, payloadText, payloadPath, ...conditions } = search;
    const by = Object.entries({ key, header, payloadText, payloadPath }).filter(([, value]) => value !== undefined);
    if (by.length > 1) throw invalid(by[1]?.[0] ?? "query", "cannot be combined with another criterion");
    const [[name, value] = []] = by;
    const request = create(pb.SearchJobsRequestSchema, {
      query: { case: name, value } as pb.SearchJobsRequest["query"],
      conditions: conditionsOf(conditions),
      taskType,
      state: enumOf(pb.JobState, state, "state"),
      since: since && timestampFromDate(since),
      until: until && timestampFromDate(until),
    });
    do {
      const { jobs, nextPageToken } = await this.jobs.searchJobs(request);
      for (const job of jobs) yield jsonMessage(pb.JobSchema, job);
      request.pageToken = nextPageToken;
    } while (request.pageToken !== "");
  }

  /** Cancels unfinished jobs. Returns the ids of the cancelled jobs. */
  async cancelJobs(jobs: JobSelection): Promise<bigint[]> {
    const filter = selected(jobs);
    const pages = await all((pageToken) => this.jobs.cancelJobs({ filter, pageToken }));
    return pages.flatMap(({ cancelledIds }) => cancelledIds);
  }

  /** Moves dead jobs to history. Returns the ids of the discarded jobs. */
  async discardJobs(jobs: JobSelection): Promise<bigint[]> {
    const filter = selected(jobs);
    const pages = await all((pageToken) => this.jobs.discardJobs({ filter, pageToken }));
    return pages.flatMap(({ discardedIds }) => discardedIds);
  }

  /** Makes dead and scheduled jobs run now or later. */
  async retryJobs(jobs: JobSelection, { delay, runAt, payload }: RetryOptions = {}): Promise<Retried> {
    const filter = selected(jobs);
    const after = duration(delay, "delay");
    const start = runAt
      ? { case: "runAt" as const, value: timestampFromDate(runAt) }
      : after && { case: "delay" as const, value: after };
    const changed = payload === undefined ? {} : { payload: toBytes(payload) };
    const pages = await all((pageToken) => this.jobs.retryJobs({ filter, start, pageToken, ...changed }));
    return {
      ids: pages.flatMap(({ retriedIds }) => retriedIds),
      keyHeldIds: pages.flatMap(({ keyHeldIds }) => keyHeldIds),
      revivedIds: pages.flatMap(({ revivedIds }) => revivedIds),
    };
  }

  /**
   * Runs finished jobs again, as new jobs. Returns for each the id of the new job, or why it does not run again. A payload
   * replaces the payload of one job.
   */
  async rerunJobs(
    ids: bigint | readonly bigint[],
    { delay, runAt, payload }: RetryOptions = {},
  ): Promise<pb.RerunJob[]> {
    const after = duration(delay, "delay");
    const start = runAt
      ? { case: "runAt" as const, value: timestampFromDate(runAt) }
      : after && { case: "delay" as const, value: after };
    const changed = payload === undefined ? {} : { payload: toBytes(payload) };
    const all = typeof ids === "bigint" ? [ids] : [...ids];
    const { jobs } = await this.jobs.rerunJobs({ ids: all, start, requestKey: randomUUID(), ...changed });
    return jobs.map((job) => jsonMessage(pb.RerunJobSchema, job));
  }

  /**
   * Creates a schedule, or replaces its definition. A program may call this at each start. `template` is the job to
   * enqueue, made by {@link newJob}. A paused schedule stays paused.
   */
  async applySchedule(name: string, template: pb.NewJob, options: ScheduleOptions): Promise<pb.Schedule> {
    const { cron, timeZone = "UTC", period, drift, overlap, missed, missedLimit, startTime, endTime, jitter } = options;
    const every = duration(period, "period");
    const schedule = create(pb.ScheduleSchema, {
      ...{ name, template, missedLimit, jitter: duration(jitter, "jitter") },
      plan:
        cron === undefined
          ? every && { case: "period", value: every }
          : { case: "cron", value: create(pb.CronSchema, { expression: cron, timeZone }) },
      drift: enumOf(pb.Drift, drift, "drift"),
      overlap: enumOf(pb.OverlapPolicy, overlap, "overlap"),
      missed: enumOf(pb.MissedPolicy, missed, "missed"),
      startTime: startTime && timestampFromDate(startTime),
      endTime: endTime && timestampFromDate(endTime),
    });
    return shown(await this.schedules.updateSchedule({ schedule, allowMissing: true }));
  }

  async pauseSchedule(name: string): Promise<pb.Schedule> {
    return shown(await this.schedules.pauseSchedule({ name }));
  }

  async resumeSchedule(name: string): Promise<pb.Schedule> {
    return shown(await this.schedules.resumeSchedule({ name }));
  }

  /** Enqueues the job of a schedule now, in addition to its plan. */
  async runSchedule(name: string, { requestKey = "" } = {}): Promise<Enqueued> {
    return enqueued((await this.schedules.runSchedule({ name, requestKey })).job as pb.EnqueuedJob, false);
  }

  /** Deletes a schedule. Keeps the jobs that it has enqueued. */
  async deleteSchedule(name: string): Promise<void> {
    await this.schedules.deleteSchedule({ name });
  }

  /**
   * Replaces the settings of a task type. A program may call this at each start. Missing settings get their defaults,
   * except `paused`: a paused type stays paused.
   */
  async applyTaskType(taskType: string, options: TaskTypeOptions): Promise<pb.TaskTypeSettings> {
    const { retryPolicy, history, brake, maxPayloadBytes = 0, maxBacklog = 0, ...plain } = options;
    const { priorityStep, timeout, keyMinGap, ...same } = plain;
    refuseUnknown(same, pb.TaskTypeSettingsSchema.field, "a task type");
    const settings = create(pb.TaskTypeSettingsSchema, {
      ...same,
      retryPolicy: retryPolicy && policy(retryPolicy),
      brake: brake && {
        failures: brake.failures,
        initialDelay: duration(brake.initialDelay, "brake.initialDelay"),
        maxDelay: duration(brake.maxDelay, "brake.maxDelay"),
      },
      history: enumOf(pb.HistoryMode, history, "history"),
      maxPayloadBytes: BigInt(maxPayloadBytes),
      maxBacklog: BigInt(maxBacklog),
      priorityStep: duration(priorityStep, "priorityStep"),
      timeout: duration(timeout, "timeout"),
      keyMinGap: duration(keyMinGap, "keyMinGap"),
    });
    const names = pb.TaskTypeSettingsSchema.fields.map((field) => field.name);
    const paths = names.filter((name) => name !== "paused" || options.paused !== undefined);
    return this.#set(taskType, settings, paths);
  }

  /** Stops the delivery of a task type's jobs. Running jobs continue, and jobs can be enqueued. */
  async pauseTaskType(taskType: string): Promise<pb.TaskTypeSettings> {
    return this.#set(taskType, create(pb.TaskTypeSettingsSchema, { paused: true }), ["paused"]);
  }

  async resumeTaskType(taskType: string): Promise<pb.TaskTypeSettings> {
    return this.#set(taskType, create(pb.TaskTypeSettingsSchema), ["paused"]);
  }

  async #set(taskType: string, settings: pb.TaskTypeSettings, paths: string[]): Promise<pb.TaskTypeSettings> {
    const answer = await this.taskTypes.updateTaskType({ taskType, settings, updateMask: { paths } });
    return jsonMessage(pb.TaskTypeSettingsSchema, answer.settings as pb.TaskTypeSettings);
  }
}

const shown = ({ schedule }: { schedule?: pb.Schedule | undefined }) =>
  jsonMessage(pb.ScheduleSchema, schedule as pb.Schedule);

function selected(jobs: JobSelection): pb.JobFilter {
  if (typeof jobs === "bigint") return create(pb.JobFilterSchema, { ids: [jobs] });
  if (!("taskType" in jobs)) return create(pb.JobFilterSchema, { ids: [...jobs] });
  const { taskType, state, errorGroup, ...conditions } = jobs;
  const of = { taskType, errorGroup, conditions: conditionsOf(conditions) };
  return create(pb.JobFilterSchema, { ...of, state: enumOf(pb.JobState, state, "state") });
}

function conditionsOf({ createdBefore, createdSince, ...others }: JobConditions): pb.JobConditions | undefined {
  const times = {
    createdBefore: createdBefore && timestampFromDate(createdBefore),
    createdSince: createdSince && timestampFromDate(createdSince),
  };
  const all = { ...times, ...others };
  return Object.values(all).every((value) => value === undefined) ? undefined : create(pb.JobConditionsSchema, all);
}

/** Repeats a call until it has handled all jobs of a filter. Returns the answers. */
async function all<R extends { nextPageToken: string }>(call: (pageToken: string) => Promise<R>): Promise<R[]> {
  const answers = [await call("")];
  for (let token = answers[0]?.nextPageToken; token; token = answers.at(-1)?.nextPageToken)
    answers.push(await call(token));
  return answers;
}
