/** Jobs to enqueue: task types, payloads and results. */
import {
  create,
  type DescMessage,
  fromBinary,
  isMessage,
  type MessageInitShape,
  type MessageShape,
  toBinary,
  toJson,
} from "@bufbuild/protobuf";
import { wrong } from "./calls.js";
import { type EnqueuedJob, EnqueueOutcome, type NewJob, NewJobSchema } from "./gen/index.js";
import { checkNames, fieldsOf } from "./given.js";
import type { JobOptions, Name } from "./options.js";

export type { JobOptions, Name, RetryPolicyOptions } from "./options.js";

/** A task type and the type of its payload, shared by producers and workers. */
export interface Task<P> {
  /** The name of the task type: 1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`. */
  readonly name: string;
  /** Encodes a payload. */
  readonly encode: (payload: P) => Uint8Array;
  /** Decodes a payload. If it throws, the job is dead, because a retry would get the same payload. */
  readonly decode: (bytes: Uint8Array) => P;
}

/** Returns a task type whose payload is JSON. `parse` validates the parsed value, for example `schema.parse` of zod. */
export function jsonTask<P>(name: string, parse: (value: unknown) => P = (value) => value as P): Task<P> {
  return { name, encode: toBytes, decode: (bytes) => parse(fromJsonBytes(bytes)) };
}

/** Returns a task type whose payload is bytes. */
export function bytesTask(name: string): Task<Uint8Array> {
  return { name, encode: (bytes) => bytes, decode: (bytes) => bytes };
}

/** Returns a task type whose payload is a protobuf message. */
export function protobufTask<S extends DescMessage>(name: string, schema: S): Task<MessageShape<S>> {
  return { name, encode: (message) => toBinary(schema, message), decode: (bytes) => fromBinary(schema, bytes) };
}

const JOB_OPTIONS = Object.keys(NewJobSchema.field).filter((name) => name !== "taskType" && name !== "payload");

/** Creates a job for {@link Client.enqueueAll}. If `task` is only a name, the payload is encoded as JSON. */
export function newJob<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): NewJob {
  const { name, encode } = asTask(task);
  const fields = fieldsOf(NewJobSchema, options, "an option of a job", { names: JOB_OPTIONS });
  const bytes: unknown = encode(payload as P);
  if (!(bytes instanceof Uint8Array))
    throw wrong("payload", bytes, `give bytes (Uint8Array) for the task type ${name}`);
  const init = { ...fields, taskType: name, payload: bytes };
  return jsonMessage(NewJobSchema, create(NewJobSchema, init as MessageInitShape<typeof NewJobSchema>));
}

/** Options of a job to enqueue, and a request key. */
export interface EnqueueJobOptions extends JobOptions {
  /** Request key, which makes the enqueue idempotent for 24 hours, from any process. Default: a new key. */
  requestKey?: string;
}

/** @internal Creates the job of an `enqueue`, and separates its request key. */
export function newRequest<P>(task: string | Task<P>, payload: P | undefined, options: EnqueueJobOptions) {
  checkNames(options, ["requestKey", ...JOB_OPTIONS], "an option of a job");
  const { requestKey, ...own } = options;
  return { jobs: [newJob(task, payload, own)], call: requestKey === undefined ? {} : { requestKey } };
}

/** @internal Refuses values that are not jobs made by {@link newJob}. */
export function checkJobs(jobs: unknown): void {
  if (!Array.isArray(jobs)) throw wrong("jobs", jobs, "give an array of jobs made by newJob");
  for (const [index, job] of jobs.entries())
    if (!isMessage(job, NewJobSchema)) throw wrong(`jobs[${index}]`, job, "make the job with newJob");
}

/** @internal */
export function asTask<P>(task: string | Task<P>): Task<P> {
  if (typeof task === "string") return jsonTask<P>(task);
  if (typeof task?.name === "string" && typeof task.encode === "function" && typeof task.decode === "function")
    return task;
  throw wrong("task", task, 'give the name of a task type, or a Task such as jsonTask("email.send")');
}

/** @internal Encodes a payload or result: bytes stay unchanged, undefined becomes empty, other values become JSON. */
export function toBytes(value: unknown): Uint8Array {
  if (value instanceof Uint8Array) return value;
  if (value === undefined) return new Uint8Array();
  const text: string | undefined = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`a ${typeof value} cannot be encoded as JSON`);
  return new TextEncoder().encode(text);
}

/** Parses bytes as JSON, such as the result of a job. Returns undefined for empty bytes. */
export function fromJsonBytes<T = unknown>(bytes: Uint8Array): T {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** @internal Adds `toJSON` to a value with bigint fields, because `JSON.stringify` refuses bigints. */
export function withJson<T extends object>(value: T, toJSON: () => unknown): T {
  return Object.defineProperty(value, "toJSON", { value: toJSON });
}

/** @internal Lets `JSON.stringify` use the protocol's JSON mapping for a message. 64-bit numbers become strings. */
export const jsonMessage = <S extends DescMessage>(schema: S, message: MessageShape<S>) =>
  withJson(message, () => toJson(schema, message));

/** Result of enqueueing one job. */
export interface Enqueued {
  /** The id of the new job, or of the job that holds its key. */
  id: bigint;
  /** False if the job's key, or the caller's request key, found an existing job. */
  isNew: boolean;
  /** Effect of the enqueue, such as `new`, `kept` or `replaced`. */
  outcome: Name<typeof EnqueueOutcome>;
}

/**
 * @internal Converts the broker's answer for one job. With `byThisCall`, a job that existed already is reported as new,
 * because only an earlier attempt of the same call can have stored it.
 */
export function enqueued({ id, isNew, outcome }: EnqueuedJob, byThisCall: boolean): Enqueued {
  const word = byThisCall ? "new" : ((EnqueueOutcome[outcome] ?? "new").toLowerCase() as Enqueued["outcome"]);
  const answer: Enqueued = { id, isNew: byThisCall || isNew, outcome: word };
  return withJson(answer, () => ({ ...answer, id: `${id}` }));
}
