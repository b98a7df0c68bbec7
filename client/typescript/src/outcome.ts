/** Outcomes of attempts, and their conversion from the results and errors of handlers. */
import { create } from "@bufbuild/protobuf";
import { chain } from "./calls.js";
import * as pb from "./gen/index.js";
import { type Duration, duration } from "./duration.js";
import { toBytes } from "./job.js";

/** @internal An outcome as the protocol represents it. */
export type OutcomeMessage = Exclude<pb.Outcome["outcome"], { case: undefined }>;

/** The symbol is global, because a program may load this package twice, as ES module and as CommonJS module. */
const OUTCOME = Symbol.for("howdah.outcome");

/** Outcome that a handler may return instead of a result. See {@link nextStage}, {@link snooze} and {@link release}. */
export class Outcome {
  /** @internal */
  readonly [OUTCOME]: OutcomeMessage;

  /** @internal */
  constructor(message: OutcomeMessage) {
    this[OUTCOME] = message;
  }
}

/** The attempt succeeded, and the job continues in this task type instead of its planned next stage. */
export function nextStage(taskType: string, result?: unknown): Outcome {
  return new Outcome({ case: "ack", value: create(pb.AckSchema, { result: toBytes(result), nextStage: taskType }) });
}

/** The job runs again after this time, at most a year. The attempt does not count. */
export function snooze(delay: Duration): Outcome {
  return new Outcome({ case: "snooze", value: create(pb.SnoozeSchema, { delay: duration(delay, "delay") }) });
}

/** Another worker may run the job at once. The attempt does not count. */
export function release(): Outcome {
  return new Outcome(RELEASE);
}

/** Thrown by a handler if the attempt failed for good: the job is not retried. */
export class FatalError extends Error {
  override readonly name = "FatalError";
  /** @internal */
  readonly [OUTCOME]: OutcomeMessage;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this[OUTCOME] = nack(chain(this), { noRetry: true, ...origin(this) });
  }
}

/** Thrown by a handler to set the delay before the retry. Other errors are retried after the retry policy's delay. */
export class RetryError extends Error {
  override readonly name = "RetryError";
  /** @internal */
  readonly [OUTCOME]: OutcomeMessage;

  /** `after` is at most a year. Default: the retry policy's delay. */
  constructor(message: string, { after, ...options }: ErrorOptions & { after?: Duration } = {}) {
    super(message, options);
    this[OUTCOME] = nack(chain(this), { retryAfter: duration(after, "after"), ...origin(this) });
  }
}

/** The reason why a handler should abandon its job. `stop`: the worker stops and its stop timeout has passed. */
export type CancelReason = "cancelled" | "timeout" | "lease_lost" | "stop";

/** The error with which a job's signal is aborted. */
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
export const RELEASE: OutcomeMessage = { case: "release", value: create(pb.ReleaseSchema) };

/**
 * @internal Returns the outcome of a failed attempt. The broker truncates the error text to 16 KiB and marks it as
 * truncated.
 */
export function nack(
  error: string,
  more: { noRetry?: boolean; retryAfter?: ReturnType<typeof duration>; details?: string; place?: string } = {},
): OutcomeMessage {
  return { case: "nack", value: create(pb.NackSchema, { error: error.slice(0, 32 << 10), ...more }) };
}

/** Returns the stack trace of an error with its causes, and the function that has thrown the innermost one. */
function origin(error: unknown): { details?: string; place?: string } {
  if (!(error instanceof Error)) return {};
  const stacks: string[] = [];
  let last = error;
  for (let each: unknown = error; each instanceof Error && stacks.length < 8; each = each.cause) {
    stacks.push(each.stack ?? String(each));
    last = each;
  }
  // "    at render (file:///app/mail.js:3:9)", "    at async Mailer.send (…)".
  const frame = (last.stack ?? "").split("\n").find((line) => line.startsWith("    at ")) ?? "";
  const place = /^ {4}at (?:async |new )?([^\s(]+) \(/.exec(frame)?.[1] ?? "";
  return { details: stacks.join("\ncaused by: ").slice(0, 32 << 10), place };
}

const outcomeOf = (value: unknown): OutcomeMessage | undefined =>
  typeof value === "object" && value !== null && OUTCOME in value ? (value[OUTCOME] as OutcomeMessage) : undefined;

/** @internal Returns the outcome of a handler that has returned this value. */
export function returned(value: unknown): OutcomeMessage {
  return outcomeOf(value) ?? { case: "ack", value: create(pb.AckSchema, { result: toBytes(value) }) };
}

/**
 * @internal Returns the outcome of a handler that has thrown this error. If the job's signal was aborted and the error
 * is an abort error, the attempt has not failed: the job is released.
 */
export function thrown(error: unknown, signal: AbortSignal): OutcomeMessage {
  const isAbort = error === signal.reason || (error instanceof Error && error.name === "AbortError");
  return outcomeOf(error) ?? (signal.aborted && isAbort ? RELEASE : nack(chain(error), origin(error)));
}
