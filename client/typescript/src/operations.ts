/** Calls for programs that manage jobs, schedules and task types. */
import { randomUUID } from "node:crypto";
import { create, type DescMessage, isMessage, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import type { Client as ServiceClient } from "@connectrpc/connect";
import { invalid, wrong } from "./calls.js";
import type { Duration } from "./duration.js";
import * as pb from "./gen/index.js";
import {
  checkConditions,
  checkKind,
  checkNames,
  checkOptions,
  contradiction,
  fieldsOf,
  idsOf,
  isIterable,
} from "./given.js";
import {
  type Enqueued,
  type EnqueueJobOptions,
  enqueued,
  jsonMessage,
  type Name,
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
  overlap?: Name<typeof pb.OverlapPolicy> | "one-waiting";
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
    return jsonMessage(pb.JobSchema, (await this.jobs.getJob({ id: idOf(id) })).job as pb.Job);
  }

  /** Explains why a job does not run, and what must change first. */
  async explainJob(id: bigint): Promise<pb.ExplainJobResponse> {
    return jsonMessage(pb.ExplainJobResponseSchema, await this.jobs.explainJob({ id: idOf(id) }));
  }

  /** Finds jobs of a task type by conditions, key, header or payload. Yields them without their payloads. */
  async *searchJobs(search: JobSearch): AsyncGenerator<pb.Job> {
    const request = conditional(pb.SearchJobsRequestSchema, search, SEARCHED);
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
  async retryJobs(jobs: JobSelection, options: RetryOptions = {}): Promise<Retried> {
    const request = { filter: selected(jobs), ...restart(options, "a retry") };
    const pages = await all((pageToken) => this.jobs.retryJobs({ ...request, pageToken }));
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
  async rerunJobs(ids: bigint | readonly bigint[], options: RetryOptions = {}): Promise<pb.RerunJob[]> {
    const request = { ids: idsOf(ids, "ids"), ...restart(options, "a rerun") };
    const { jobs } = await this.jobs.rerunJobs({ ...request, requestKey: randomUUID() });
    return jobs.map((job) => jsonMessage(pb.RerunJobSchema, job));
  }

  /**
   * Creates a schedule, or replaces its definition. A program may call this at each start. `template` is the job to
   * enqueue, made by {@link newJob}. A paused schedule stays paused.
   */
  async applySchedule(name: string, template: pb.NewJob, options: ScheduleOptions): Promise<pb.Schedule> {
    checkNames(options, SCHEDULE_OPTIONS, "an option of a schedule");
    if (!isMessage(template, pb.NewJobSchema)) throw wrong("template", template, "make the job with newJob");
    const { cron, timeZone, ...plain } = options;
    for (const [field, value] of Object.entries({ cron, timeZone }))
      if (value !== undefined) checkKind(value, "text", field);
    if (cron === undefined && timeZone !== undefined)
      throw plain.period === undefined
        ? invalid("timeZone", "a time zone needs a cron expression: give cron too")
        : contradiction("period", "timeZone");
    const calendar = cron === undefined ? {} : { cron: { expression: cron, timeZone: timeZone ?? "UTC" } };
    const fields = fieldsOf(pb.ScheduleSchema, { ...plain, ...calendar }, "an option of a schedule");
    const schedule: MessageInitShape<typeof pb.ScheduleSchema> = { ...fields, name, template };
    return shown(await this.schedules.updateSchedule({ schedule, allowMissing: true }));
  }

  async pauseSchedule(name: string): Promise<pb.Schedule> {
    return shown(await this.schedules.pauseSchedule({ name }));
  }

  async resumeSchedule(name: string): Promise<pb.Schedule> {
    return shown(await this.schedules.resumeSchedule({ name }));
  }

  /** Enqueues the job of a schedule now, in addition to its plan. */
  async runSchedule(name: string, options: Pick<EnqueueJobOptions, "requestKey"> = {}): Promise<Enqueued> {
    checkOptions(options, { requestKey: "text" }, "an option of a run");
    const { requestKey = "" } = options;
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
    checkNames(options, Object.keys(pb.TaskTypeSettingsSchema.field), "an option of a task type");
    const [maxPayloadBytes, maxBacklog] = [whole(options, "maxPayloadBytes"), whole(options, "maxBacklog")];
    const given = { ...options, maxPayloadBytes, maxBacklog };
    const fields = fieldsOf(pb.TaskTypeSettingsSchema, given, "an option of a task type");
    const names = pb.TaskTypeSettingsSchema.fields.map((field) => field.name);
    const paths = names.filter((name) => name !== "paused" || options.paused !== undefined);
    return this.#set(taskType, create(pb.TaskTypeSettingsSchema, fields), paths);
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

const idOf = (id: bigint) => idsOf(id, "id")[0] as bigint;

const SCHEDULE_OPTIONS = [
  "period",
  "cron",
  "timeZone",
  "drift",
  "overlap",
  "missed",
  "missedLimit",
  "startTime",
  "endTime",
  "jitter",
];
const CONDITIONS = Object.keys(pb.JobConditionsSchema.field);
const FILTERED = ["taskType", "state", "errorGroup"];
const SEARCHED = ["taskType", "state", "since", "until", "key", "header", "payloadText", "payloadPath"];

function selected(jobs: JobSelection): pb.JobFilter {
  if (typeof jobs === "bigint" || isIterable(jobs)) return create(pb.JobFilterSchema, { ids: idsOf(jobs, "jobs") });
  if (typeof jobs !== "object" || jobs === null)
    throw wrong("jobs", jobs, "give an id as a bigint such as 17n, an array of ids, or a filter with a taskType");
  return conditional(pb.JobFilterSchema, jobs, FILTERED);
}

/** Returns the message with these conditions. `own` are the fields of the message; the others are `JobConditions`. */
function conditional<S extends DescMessage>(schema: S, given: object, own: readonly string[]): MessageShape<S> {
  checkNames(given, [...own, ...CONDITIONS], "a condition");
  checkConditions(given);
  if (!("taskType" in given)) throw invalid("taskType", "the task type is missing: name the one of the jobs");
  const part = (names: readonly string[]) =>
    Object.fromEntries(Object.entries(given).filter(([name]) => names.includes(name)));
  const conditions = fieldsOf(pb.JobConditionsSchema, part(CONDITIONS), "a condition");
  const fields = fieldsOf(schema, part(own), "a condition");
  return create(schema, {
    ...fields,
    ...(Object.keys(conditions).length > 0 && { conditions }),
  } as MessageInitShape<S>);
}

/** Returns the fields of a retry or rerun: the start, and the payload of one job. */
function restart(options: RetryOptions, what: string): Partial<Pick<pb.RetryJobsRequest, "start" | "payload">> {
  checkNames(options, ["delay", "runAt", "payload"], `an option of ${what}`);
  const { payload, ...start } = options;
  const fields = fieldsOf(pb.RetryJobsRequestSchema, start, `an option of ${what}`);
  return { ...fields, ...(payload !== undefined && { payload: toBytes(payload) }) };
}

/** Converts an option that is a number here, and a 64-bit integer in the protocol. */
function whole(options: TaskTypeOptions, name: "maxPayloadBytes" | "maxBacklog"): bigint | undefined {
  const value = options[name];
  if (value === undefined) return undefined;
  checkKind(value, "size", name);
  return BigInt(value);
}

/** Repeats a call until it has handled all jobs of a filter. Returns the answers. */
async function all<R extends { nextPageToken: string }>(call: (pageToken: string) => Promise<R>): Promise<R[]> {
  const answers = [await call("")];
  for (let token = answers[0]?.nextPageToken; token; token = answers.at(-1)?.nextPageToken)
    answers.push(await call(token));
  return answers;
}
