/** Jobs to enqueue: task types, payloads, options and results. */
import { create, type DescMessage, fromBinary, type MessageShape, toBinary, toJson } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalid, refuseUnknown } from "./calls.js";
import { type Duration, duration, milliseconds } from "./duration.js";
import {
  DependencyFailure,
  type EnqueuedJob,
  EnqueueOutcome,
  HistoryMode,
  HolderFailure,
  KeyPolicy,
  type NewJob,
  NewJobSchema,
  RetryPolicyKind,
  RetryPolicySchema,
  StagePayload,
} from "./gen/index.js";

/** The value names of an enum of the protocol in lower case, such as `replace_if_newer`. */
export type Name<E> = Exclude<Lowercase<keyof E & string>, "unspecified">;

/** Names of the options that have the same names and units as in the protocol. */
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
  | "limitMax"
  | "fairKey"
  | "nextStages"
  | "localName"
  | "after"
  | "afterLocal"
  | "parentId"
  | "fallback";

/**
 * Options of a job. The client does not check them: if the broker refuses one, its error names the field and its
 * bounds.
 */
export interface JobOptions extends Partial<Pick<NewJob, Plain>> {
  /** The job does not start before this time of the database's clock. */
  runAt?: Date;
  /** The job does not start before this time has passed since the enqueue. At most 10 years. */
  delay?: Duration;
  /** Maximum time of an attempt; the worker may extend it. 1 ms to 30 days. */
  timeout?: Duration;
  /** The job expires if it has not started by this time of the database's clock. */
  expireAt?: Date;
  /** The job expires if it has not started within this time after the enqueue. 1 ms to 10 years. */
  expireAfter?: Duration;
  /** Policy if another job holds the key. Default: `keep`. */
  keyPolicy?: Name<typeof KeyPolicy>;
  /** The key is held for this time after the enqueue, even if the job ends earlier. 1 s to 1 year. */
  keyHold?: Duration;
  /** For `debounce`: the job starts at most this long after the first enqueue. */
  keyDebounceLimit?: Duration;
  /**
   * Policy for this job while it waits for the running job that holds its key, if an attempt of that job fails.
   * Default: `supersede`.
   */
  onHolderFailure?: Name<typeof HolderFailure>;
  /** Whether history keeps the job if it succeeds. Default: the task type's setting. */
  history?: Name<typeof HistoryMode>;
  /** The payload of the next stage. Default: `result`. */
  stagePayload?: Name<typeof StagePayload>;
  /** Policy if a dependency does not succeed. Default: `cancel`. */
  onDependencyFailure?: Name<typeof DependencyFailure>;
  /** The delays between attempts. Unset fields take the task type's settings. */
  retryPolicy?: RetryPolicyOptions;
}

/** The delays between attempts; see `RetryPolicy` of the protocol. */
export interface RetryPolicyOptions {
  /** The growth of the delay. */
  kind?: Name<typeof RetryPolicyKind>;
  /** The delay after the first failure; not for `list`. */
  initialDelay?: Duration;
  /** `exponential`: the factor from one delay to the next. 1 to 100. */
  multiplier?: number;
  /** `exponential`, `linear`: the longest delay, before jitter. */
  maxDelay?: Duration;
  /** Random fraction of the delay, 0 to 1; 0.1 means plus or minus 10 %. */
  jitter?: number;
  /** `list`: the delay after each failure. The last one repeats. */
  delays?: Duration[];
}

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

/** Creates a job for {@link Client.enqueueAll}. If `task` is only a name, the payload is encoded as JSON. */
export function newJob<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): NewJob {
  const { name, encode } = asTask(task);
  const { runAt, delay, expireAt, expireAfter, retryPolicy, ...plain } = options;
  const { timeout, keyHold, keyDebounceLimit, ...same } = plain;
  refuseUnknown(same, NewJobSchema.field, "a job");
  for (const { fieldKind, localName } of NewJobSchema.fields) {
    const value = same[localName as keyof typeof same];
    if (fieldKind === "list" && value !== undefined && !Array.isArray(value))
      throw invalid(localName, `${JSON.stringify(value)} is not an array`);
  }
  const job = create(NewJobSchema, {
    ...same,
    taskType: name,
    payload: encode(payload as P),
    start: when("runAt", runAt) ?? within("delay", delay),
    expiry: when("expireAt", expireAt) ?? within("expireAfter", expireAfter),
    timeout: duration(timeout, "timeout"),
    keyHold: duration(keyHold, "keyHold"),
    keyDebounceLimit: duration(keyDebounceLimit, "keyDebounceLimit"),
    keyPolicy: enumOf(KeyPolicy, options.keyPolicy, "keyPolicy"),
    onHolderFailure: enumOf(HolderFailure, options.onHolderFailure, "onHolderFailure"),
    history: enumOf(HistoryMode, options.history, "history"),
    stagePayload: enumOf(StagePayload, options.stagePayload, "stagePayload"),
    onDependencyFailure: enumOf(DependencyFailure, options.onDependencyFailure, "onDependencyFailure"),
    retryPolicy: retryPolicy && policy(retryPolicy),
  });
  return jsonMessage(NewJobSchema, job);
}

/** @internal */
export function policy(options: RetryPolicyOptions) {
  refuseUnknown(options, RetryPolicySchema.field, "retryPolicy");
  const { kind, initialDelay, maxDelay, delays = [], multiplier, jitter } = options;
  return {
    kind: enumOf(RetryPolicyKind, kind, "retryPolicy.kind"),
    initialDelay: duration(initialDelay, "retryPolicy.initialDelay"),
    maxDelay: duration(maxDelay, "retryPolicy.maxDelay"),
    delays: delays.map((delay, index) =>
      durationFromMs(Math.round(milliseconds(delay, `retryPolicy.delays[${index}]`))),
    ),
    multiplier,
    jitter,
  };
}

/** @internal */
export function asTask<P>(task: string | Task<P>): Task<P> {
  return typeof task === "string" ? jsonTask<P>(task) : task;
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

function when<C extends string>(name: C, time: Date | undefined) {
  if (time === undefined) return undefined;
  if (!(time instanceof Date) || Number.isNaN(time.getTime()))
    throw invalid(name, `${JSON.stringify(time)} is not a valid Date`);
  return { case: name, value: timestampFromDate(time) };
}

const within = <C extends string>(name: C, time: Duration | undefined) =>
  time === undefined ? undefined : { case: name, value: durationFromMs(Math.round(milliseconds(time, name))) };

/** @internal Returns the number of an enum value. */
export function enumOf<E extends object>(names: E, name: Name<E> | undefined, field: string): number {
  if (name === undefined) return 0;
  const value = names[name.toUpperCase() as keyof E];
  if (typeof value === "number") return value;
  const known = Object.values(names).filter((each) => typeof each === "string" && each !== "UNSPECIFIED");
  throw invalid(field, `${JSON.stringify(name)} is none of ${known.join(", ").toLowerCase()}`);
}

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
