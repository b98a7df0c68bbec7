/** Handlers, the jobs that they receive, and middleware. */
import { toJson } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { HowdahError } from "./calls.js";
import type { Duration } from "./duration.js";
import * as pb from "./gen/index.js";
import { checkOptions } from "./given.js";
import { fromJsonBytes, toBytes } from "./job.js";
import { FatalError, type OutcomeMessage } from "./outcome.js";
import type { Progress } from "./session.js";

type Shown =
  | "id"
  | "token"
  | "taskType"
  | "attempt"
  | "maxAttempts"
  | "payload"
  | "headers"
  | "tags"
  | "traceparent"
  | "tracestate";

/** One attempt of one job, as its handler receives it. */
export interface Job extends Readonly<Pick<pb.LeasedJob, Shown>> {
  /** Time at which the attempt times out unless it is extended, by the database's clock. */
  readonly deadline: Date | undefined;
  /** Time of the enqueue, by the database's clock. */
  readonly createTime: Date;
  /** The checkpoint that an earlier attempt stored, or empty. */
  readonly checkpoint: Uint8Array;
  /** Aborted with a {@link CancelledError} when the handler should abandon the job. */
  readonly signal: AbortSignal;
  /** Parses the checkpoint as JSON. Returns undefined without a checkpoint. */
  checkpointJson<T>(): T | undefined;
  /**
   * The jobs that this job ran after (`after`, then `afterLocal`), with their results, in order. With
   * `onDependencyFailure: "run"`, look at `state`: a dependency may have failed. A result is unknown (`missing`) if the
   * database no longer contains the dependency. {@link fromJsonBytes} parses a result.
   */
  results(): AsyncIterable<pb.DependencyResult>;
  /**
   * Sets the deadline to this long from now, 1 ms to 30 days. Fails with {@link LeaseLostError} if the lease is lost.
   */
  extend(duration: Duration): Promise<void>;
  /**
   * Reports progress to operators: the completed fraction (0 to 1), and a text of at most 1 KiB. Fails like `extend`.
   */
  progress(fraction?: number, text?: string): Promise<void>;
  /** Stores a checkpoint of at most 64 KiB for the next attempt: bytes, or a value as JSON. Fails like `extend`. */
  saveCheckpoint(value: unknown): Promise<void>;
  /** Reports progress and a checkpoint together. Unset fields keep their values. Fails like `extend`. */
  report(report: Progress): Promise<void>;
  /**
   * Converts the job to the protocol's JSON mapping, for `JSON.stringify`. Ids become strings, and the token is
   * omitted.
   */
  toJSON(): unknown;
}

/**
 * Runs a job. The returned value, or the value of the returned promise, is the result: bytes unchanged, other values as
 * JSON. A handler may also return an {@link Outcome}.
 */
export type Handler<P = unknown> = (payload: P, job: Job) => unknown;

/** The broker that an enqueue or a worker uses, for middleware. */
export interface Broker {
  /** The broker's address. After retries, it is the address that was used last. */
  readonly url: URL;
}

/** The broker's answer to an outcome, for middleware. */
export interface Settled {
  readonly outcome: "ack" | "nack" | "snooze" | "release";
  /** Time from the end of the handler until the broker's answer. */
  readonly durationMs: number;
  /** Set if the outcome had no effect. The error's reason is `LEASE_LOST`, `INVALID` or `UNCONFIRMED`. */
  readonly error?: HowdahError | undefined;
}

/**
 * Functions that run around each enqueue and each handler. An error that they throw fails the enqueue or the attempt.
 */
export interface Middleware {
  /**
   * Runs around an enqueue. It may change the jobs, which are copies. With the caller's `key`, it must always change
   * them in the same way, because a repeated request must be identical.
   */
  enqueue?: (
    jobs: pb.NewJob[],
    next: () => Promise<pb.EnqueuedJob[]>,
    key: string | undefined,
    broker: Broker,
  ) => Promise<pb.EnqueuedJob[]>;
  /** Runs around a handler. */
  handle?: (job: Job, next: () => Promise<unknown>, broker: Broker) => Promise<unknown>;
  /** Called when the broker has answered the outcome of a job, or when the worker ends without an answer. */
  settled?: (job: Job, settled: Settled, broker: Broker) => void;
  /** @internal Called with the outcome when the handler has returned or thrown. */
  decided?: (job: Job, outcome: OutcomeMessage, error: unknown) => void;
}

const MIDDLEWARE = { enqueue: "function", handle: "function", settled: "function", decided: "function" } as const;

/** @internal Refuses misspelt functions. An object of a class may have other properties too. */
export function checkMiddleware(middleware: Middleware): void {
  const isPlain = Object.getPrototypeOf(Object(middleware)) === Object.prototype;
  if (isPlain || typeof middleware !== "object") checkOptions(middleware, MIDDLEWARE, "a function of middleware");
}

/** @internal The requests that a handler sends to the broker. */
export interface JobRequests {
  /** Returns a page of results, which begins after the first `start` dependencies. */
  results(start: number): Promise<pb.DependencyResult[]>;
  extend(duration: Duration): Promise<void>;
  report(report: Progress): Promise<void>;
}

/** @internal */
export function makeJob(message: pb.LeasedJob, signal: AbortSignal, requests: JobRequests): Job {
  return {
    id: message.id,
    token: message.token,
    taskType: message.taskType,
    attempt: message.attempt,
    maxAttempts: message.maxAttempts,
    payload: message.payload,
    headers: message.headers,
    tags: message.tags,
    traceparent: message.traceparent,
    tracestate: message.tracestate,
    checkpoint: message.checkpoint,
    deadline: message.deadline && timestampDate(message.deadline),
    createTime: message.createTime ? timestampDate(message.createTime) : new Date(0),
    signal,
    results: () => resultsOf(message, requests),
    checkpointJson: () => fromJsonBytes(message.checkpoint),
    extend: (duration) => requests.extend(duration),
    progress: (fraction, text) => requests.report({ fraction, text }),
    report: (report) => requests.report(report),
    saveCheckpoint: (value) => requests.report({ checkpoint: toBytes(value) }),
    toJSON: () => toJson(pb.LeasedJobSchema, { ...message, token: 0n }),
  };
}

/** Yields the results that came with the job, and gets the others from the broker. */
async function* resultsOf({ after, dependencyCount }: pb.LeasedJob, requests: JobRequests) {
  let start = 0;
  for (const sent of after) {
    if (sent.truncated) break;
    yield sent;
    start++;
  }
  while (start < dependencyCount) {
    const page = await requests.results(start);
    if (page.length === 0) return;
    yield* page;
    start += page.length;
  }
}

/** @internal */
export function decoded<P>(decode: (bytes: Uint8Array) => P, job: Job): P {
  try {
    return decode(job.payload);
  } catch (error) {
    throw new FatalError("the payload cannot be read", { cause: error });
  }
}
