/** How an attempt ends: what handlers return and throw. */
import { create } from "@bufbuild/protobuf";
import { chain } from "./calls.js";
import * as pb from "./gen/index.js";
import { duration, toBytes } from "./job.js";

/** @internal An outcome in the words of the protocol. */
export type Wire = Exclude<pb.Outcome["outcome"], { case: undefined }>;

/** Known by name, so that the ES module and the CommonJS module of this package understand each other. */
const WIRE = Symbol.for("howdah.outcome");

/** What a handler may return instead of a result; made by {@link nextStage}, {@link snooze} and {@link release}. */
export class Outcome {
  /** @internal */
  readonly [WIRE]: Wire;

  /** @internal */
  constructor(wire: Wire) {
    this[WIRE] = wire;
  }
}

/** The attempt succeeded, and the job goes on as this task type instead of its planned next stage. */
export function nextStage(taskType: string, result?: unknown): Outcome {
  return new Outcome({ case: "ack", value: create(pb.AckSchema, { result: toBytes(result), nextStage: taskType }) });
}

/** The job runs again after this time, at most a year. The attempt does not count. */
export function snooze(delayMs: number): Outcome {
  return new Outcome({ case: "snooze", value: create(pb.SnoozeSchema, { delay: duration(delayMs) }) });
}

/** Another worker runs the job at once. The attempt does not count. */
export function release(): Outcome {
  return new Outcome(RELEASE);
}

/** Thrown by a handler: the attempt failed and would fail again, so the job is not tried again. */
export class FatalError extends Error {
  override readonly name = "FatalError";
  /** @internal */
  readonly [WIRE]: Wire;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this[WIRE] = nack(chain(this), { noRetry: true });
  }
}

/** Thrown by a handler: the attempt failed. Every error is tried again; this one says when. */
export class RetryError extends Error {
  override readonly name = "RetryError";
  /** @internal */
  readonly [WIRE]: Wire;

  /** Without `afterMs`, at most a year, the retry policy decides. */
  constructor(message: string, { afterMs, ...options }: ErrorOptions & { afterMs?: number } = {}) {
    super(message, options);
    this[WIRE] = nack(chain(this), { retryAfter: duration(afterMs) });
  }
}

/** Why a handler should stop: the broker has ended the lease, or the worker stops and has waited long enough. */
export type CancelReason = "cancelled" | "timeout" | "lease_lost" | "stop";

/** The reason of a job's signal that is aborted. */
export class CancelledError extends Error {
  override readonly name = "CancelledError";

  constructor(
    jobId: bigint,
    readonly reason: CancelReason,
  ) {
    super(`job ${jobId} should stop: ${reason}`);
  }
}

/** @internal */
export const RELEASE: Wire = { case: "release", value: create(pb.ReleaseSchema) };

/** @internal A failed attempt. The broker truncates errors at 16 KiB, and marks them. */
export function nack(error: string, more: { noRetry?: boolean; retryAfter?: ReturnType<typeof duration> } = {}): Wire {
  return { case: "nack", value: create(pb.NackSchema, { error: error.slice(0, 32 << 10), ...more }) };
}

const wireOf = (value: unknown): Wire | undefined =>
  typeof value === "object" && value !== null && WIRE in value ? (value[WIRE] as Wire) : undefined;

/** @internal The outcome of a handler that has returned this. */
export function returned(value: unknown): Wire {
  return wireOf(value) ?? { case: "ack", value: create(pb.AckSchema, { result: toBytes(value) }) };
}

/** @internal The outcome of a handler that has thrown this. One that stopped when it was told to has not failed. */
export function thrown(error: unknown, signal: AbortSignal): Wire {
  const isAbort = error === signal.reason || (error instanceof Error && error.name === "AbortError");
  return wireOf(error) ?? (signal.aborted && isAbort ? RELEASE : nack(chain(error)));
}
