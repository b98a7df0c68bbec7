/** Jobs to enqueue: task types, payloads and options. */
import { create, type DescMessage, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  DependencyFailure,
  HolderFailure,
  KeyPolicy,
  type NewJob,
  NewJobSchema,
  RetryPolicyKind,
  StagePayload,
} from "./gen/index.js";

/** The names of an enum of the protocol in lower case, such as `replace_if_newer`. */
export type Name<E> = Exclude<Lowercase<keyof E & string>, "unspecified">;

/** Options that have the names and units of the protocol. */
type Plain =
  | "headers"
  | "tags"
  | "priority"
  | "maxAttempts"
  | "key"
  | "keyVersion"
  | "traceparent"
  | "tracestate"
  | "limitKey"
  | "fairKey"
  | "nextStages"
  | "localName"
  | "after"
  | "afterLocal"
  | "parentId"
  | "fallback";

/** Options of a job. Nothing is checked here: if a broker refuses one, its error names the field and its bounds. */
export interface JobOptions extends Partial<Pick<NewJob, Plain>> {
  /** The job does not start before this time of the database's clock. */
  runAt?: Date;
  /** The job does not start before this much time has passed. At most 10 years. */
  delayMs?: number;
  /** The longest time of an attempt, unless the worker extends it. 1 ms to 30 days. */
  timeoutMs?: number;
  /** The job ends as expired if it has not started by this time. */
  expireAt?: Date;
  /** The same, from the enqueue. 1 ms to 10 years. */
  expireAfterMs?: number;
  /** What an enqueue does when another job has the key. Default: `keep`. */
  keyPolicy?: Name<typeof KeyPolicy>;
  /** The key is held for this time, whether the job ends before or after. 1 s to 1 year. */
  keyHoldMs?: number;
  /** For `debounce`: the job starts at most this long after the first enqueue. */
  keyDebounceLimitMs?: number;
  /** What happens when this job waits for the holder of its key, and that one fails. Default: `supersede`. */
  onHolderFailure?: Name<typeof HolderFailure>;
  /** The payload of the next stage. Default: `result`. */
  stagePayload?: Name<typeof StagePayload>;
  /** What happens when a dependency does not succeed. Default: `cancel`. */
  onDependencyFailure?: Name<typeof DependencyFailure>;
  /** The delays between attempts. What is not set comes from the task type. */
  retryPolicy?: RetryPolicyOptions;
}

/** The delays between attempts; see `RetryPolicy` of the protocol. */
export interface RetryPolicyOptions {
  /** How the delay grows. */
  kind?: Name<typeof RetryPolicyKind>;
  /** The delay after the first failure; not of a `list`. */
  initialDelayMs?: number;
  /** `exponential`: the factor from one delay to the next. 1 to 100. */
  multiplier?: number;
  /** `exponential`, `linear`: the longest delay, before jitter. */
  maxDelayMs?: number;
  /** The part of the delay that is random. 0 to 1; 0.1 means plus or minus 10 %. */
  jitter?: number;
  /** `list`: the delay after each failure. The last one repeats. */
  delaysMs?: number[];
}

/** A task type with the type of its payload, for producers and workers to share. */
export interface Task<P> {
  /** What producers and workers call it: 1 to 200 bytes of `A-Z a-z 0-9 . _ : / -`. */
  readonly name: string;
  /** Writes a payload. */
  readonly encode: (payload: P) => Uint8Array;
  /** Reads a payload. What it throws ends the job: it would not be readable the next time either. */
  readonly decode: (bytes: Uint8Array) => P;
}

/** A task type whose payload is JSON; `parse` checks what was read, such as `schema.parse` of zod. */
export function jsonTask<P>(name: string, parse: (value: unknown) => P = (value) => value as P): Task<P> {
  return { name, encode: toBytes, decode: (bytes) => parse(fromJsonBytes(bytes)) };
}

/** A task type whose payload is bytes. */
export function bytesTask(name: string): Task<Uint8Array> {
  return { name, encode: (bytes) => bytes, decode: (bytes) => bytes };
}

/** A task type whose payload is a message of protocol buffers. */
export function protobufTask<S extends DescMessage>(name: string, schema: S): Task<MessageShape<S>> {
  return { name, encode: (message) => toBinary(schema, message), decode: (bytes) => fromBinary(schema, bytes) };
}

/** A job for {@link Client.enqueueAll}. A task type given by its name alone has JSON as its payload. */
export function newJob<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): NewJob {
  const { name, encode } = asTask(task);
  const { runAt, delayMs, expireAt, expireAfterMs, retryPolicy: retry, ...plain } = options;
  const { timeoutMs, keyHoldMs, keyDebounceLimitMs, ...same } = plain;
  return create(NewJobSchema, {
    ...same,
    taskType: name,
    payload: encode(payload as P),
    start: when("runAt", runAt) ?? within("delay", delayMs),
    expiry: when("expireAt", expireAt) ?? within("expireAfter", expireAfterMs),
    timeout: duration(timeoutMs),
    keyHold: duration(keyHoldMs),
    keyDebounceLimit: duration(keyDebounceLimitMs),
    keyPolicy: enumOf(KeyPolicy, options.keyPolicy),
    onHolderFailure: enumOf(HolderFailure, options.onHolderFailure),
    stagePayload: enumOf(StagePayload, options.stagePayload),
    onDependencyFailure: enumOf(DependencyFailure, options.onDependencyFailure),
    retryPolicy: retry && {
      kind: enumOf(RetryPolicyKind, retry.kind),
      initialDelay: duration(retry.initialDelayMs),
      maxDelay: duration(retry.maxDelayMs),
      delays: retry.delaysMs?.map((ms) => durationFromMs(Math.round(ms))),
      multiplier: retry.multiplier,
      jitter: retry.jitter,
    },
  });
}

/** @internal */
export function asTask<P>(task: string | Task<P>): Task<P> {
  return typeof task === "string" ? jsonTask<P>(task) : task;
}

/** @internal Bytes as they are, nothing as no bytes, other values as JSON. */
export function toBytes(value: unknown): Uint8Array {
  if (value instanceof Uint8Array) return value;
  return value === undefined ? new Uint8Array() : new TextEncoder().encode(JSON.stringify(value));
}

/** Reads JSON, such as the result of a job. No bytes are `undefined`. */
export function fromJsonBytes<T = unknown>(bytes: Uint8Array): T {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** @internal */
export const duration = (ms: number | undefined) => (ms === undefined ? undefined : durationFromMs(Math.round(ms)));

const when = <C extends string>(name: C, time: Date | undefined) =>
  time && { case: name, value: timestampFromDate(time) };

const within = <C extends string>(name: C, ms: number | undefined) =>
  ms === undefined ? undefined : { case: name, value: durationFromMs(Math.round(ms)) };

function enumOf<E extends object>(names: E, name: Name<E> | undefined): number {
  return name === undefined ? 0 : Number(names[name.toUpperCase() as keyof E]);
}
