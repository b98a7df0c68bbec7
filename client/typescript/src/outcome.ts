/** Outcomes of attempts, and their conversion from the results and errors of handlers. */
import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { chain } from "./calls.js";
import * as pb from "./gen/index.js";
import { type Duration, duration, milliseconds } from "./duration.js";
import { checkKind, checkOptions } from "./given.js";
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
  checkKind(taskType, "text", "taskType");
  return new Outcome({ case: "ack", value: create(pb.AckSchema, { result: toBytes(result), nextStage: taskType }) });
}

/** The job runs again after this time, at most a year. The attempt does not count. */
export function snooze(delay: Duration): Outcome {
  const ms = Math.round(milliseconds(delay, "delay"));
  return new Outcome({ case: "snooze", value: create(pb.SnoozeSchema, { delay: durationFromMs(ms) }) });
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
    this[OUTCOME] = nack(described(this), { noRetry: true, ...origin(this) });
  }
}

/** Thrown by a handler to set the delay before the retry. Other errors are retried after the retry policy's delay. */
export class RetryError extends Error {
  override readonly name = "RetryError";
  /** @internal */
  readonly [OUTCOME]: OutcomeMessage;

  /** `after` is at most a year. Default: the retry policy's delay. */
  constructor(message: string, given: ErrorOptions & { after?: Duration } = {}) {
    checkOptions(given, { after: "any", cause: "any" }, "an option of a RetryError");
    const { after, ...options } = given;
    super(message, options);
    this[OUTCOME] = nack(described(this), { retryAfter: duration(after, "after"), ...origin(this) });
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

/** Returns the text of an error and its causes, each with the name of its class unless the name tells nothing. */
const described = (error: unknown) => chain(error, ({ name }) => (UNNAMED.has(name) ? "" : name));
const UNNAMED = new Set(["Error", "FatalError", "RetryError"]);

/**
 * The folder of this package in stack traces, to leave out its frames. Undefined in a bundle, whose frames cannot be told
 * apart.
 */
const FOLDER = /([^\s(]*[\\/]dist[\\/](?:esm|cjs)[\\/])outcome\.js:/.exec(new Error().stack ?? "")?.[1];

const isOfProgram = (line: string) =>
  !line.startsWith("    at ") || !((FOLDER && line.includes(FOLDER)) || line.includes("node:internal/process/"));

/** Returns the stack trace of an error with its causes, and the function that has thrown the innermost one. */
function origin(error: unknown): { details?: string; place?: string } {
  if (!(error instanceof Error)) return {};
  const stacks: string[] = [];
  let last = error;
  for (let each: unknown = error; each instanceof Error && stacks.length < 8; each = each.cause) {
    stacks.push((each.stack ?? String(each)).split("\n").filter(isOfProgram).join("\n"));
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
  return outcomeOf(error) ?? (signal.aborted && isAbort ? RELEASE : nack(described(error), origin(error)));
}
