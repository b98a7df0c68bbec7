/** Handlers, and the jobs that they get. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { HowdahError } from "./calls.js";
import type * as pb from "./gen/index.js";
import { fromJsonBytes, toBytes } from "./job.js";
import { FatalError, type Wire } from "./outcome.js";
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

/** One attempt of one job, as its handler sees it. */
export interface Job extends Readonly<Pick<pb.LeasedJob, Shown>> {
  /** When the attempt times out unless it is extended, by the database's clock. */
  readonly deadline: Date | undefined;
  readonly createTime: Date;
  /** What an earlier attempt has stored; empty: nothing. */
  readonly checkpoint: Uint8Array;
  /** Aborted with a {@link CancelledError} when the handler should give up the job. */
  readonly signal: AbortSignal;
  /** The checkpoint as JSON; undefined if there is none. */
  checkpointJson<T>(): T | undefined;
  /** Sets the deadline to this long from now, 1 ms to 30 days. Fails with {@link LeaseLostError}. */
  extend(durationMs: number): Promise<void>;
  /** Reports how far the job has come, for people: a part of 1, and a text of at most 1 KiB. Fails as `extend` does. */
  progress(fraction?: number, text?: string): Promise<void>;
  /** Stores at most 64 KiB for the next attempt: bytes, or a value as JSON. Fails as `extend` does. */
  saveCheckpoint(value: unknown): Promise<void>;
  /** Progress and a checkpoint together. What is not set stays as it is. Fails as `extend` does. */
  report(report: Progress): Promise<void>;
}

/** Runs a job. What it returns, or promises, is the result: bytes as they are, other values as JSON; or an {@link Outcome}. */
export type Handler<P = unknown> = (payload: P, job: Job) => unknown;

/** The broker that an enqueue or a worker uses. */
export interface Broker {
  /** Where it is: after a retry, that of the last one. */
  readonly url: URL;
}

/** What became of an outcome. */
export interface Settled {
  readonly outcome: "ack" | "nack" | "snooze" | "release";
  /** From the end of the handler until now. */
  readonly durationMs: number;
  /** Why it had no effect, with the reason `LEASE_LOST`, `INVALID` or `UNCONFIRMED`. */
  readonly error?: HowdahError | undefined;
}

/** Code around each enqueue and each handler; what it throws is the error of the enqueue or of the attempt. */
export interface Middleware {
  /** May change the jobs, which are copies. With a request key of the caller, they must stay the same each time. */
  enqueue?: (
    jobs: pb.NewJob[],
    next: () => Promise<pb.EnqueuedJob[]>,
    key: string | undefined,
    broker: Broker,
  ) => Promise<pb.EnqueuedJob[]>;
  handle?: (job: Job, next: () => Promise<unknown>, broker: Broker) => Promise<unknown>;
  /** The broker has answered the outcome of a job that was given to `handle`, or the worker has ended before that. */
  settled?: (job: Job, settled: Settled, broker: Broker) => void;
  /** @internal What the handler has returned or thrown is an outcome. */
  decided?: (job: Job, outcome: Wire, error: unknown) => void;
}

/** @internal What a job asks of its broker. */
export interface Asks {
  extend(durationMs: number): Promise<void>;
  report(report: Progress): Promise<void>;
}

/** @internal */
export function makeJob(message: pb.LeasedJob, signal: AbortSignal, asks: Asks): Job {
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
    checkpointJson: () => fromJsonBytes(message.checkpoint),
    extend: (ms) => asks.extend(ms),
    progress: (fraction, text) => asks.report({ fraction, text }),
    report: (report) => asks.report(report),
    saveCheckpoint: (value) => asks.report({ checkpoint: toBytes(value) }),
  };
}

/** @internal */
export function decoded<P>(decode: (bytes: Uint8Array) => P, job: Job): P {
  try {
    return decode(job.payload);
  } catch (error) {
    throw new FatalError("the payload cannot be read", { cause: error });
  }
}
