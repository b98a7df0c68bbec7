/** Requests of a producer, and the splitting of refused requests. */
import { randomBytes } from "node:crypto";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import type * as pb from "./gen/index.js";

/**
 * @internal Returns a unique request key, made of the time and 80 random bits. The time comes first, so that keys of
 * the same minute are neighbours in the database's index.
 */
export const newRequestKey = () => Date.now().toString(16).padStart(12, "0") + randomBytes(10).toString("hex");

/** @internal The jobs of one enqueue, and the callbacks for its caller. */
export interface Submission {
  readonly jobs: pb.NewJob[];
  readonly bytes: number;
  isDone: boolean;
  resolve(jobs: pb.EnqueuedJob[]): void;
  reject(error: unknown): void;
}

/** @internal One request of a producer. It is repeated unchanged, with its request key, until it is answered. */
export interface Batch {
  readonly submissions: Submission[];
  readonly requestKey: string;
  sentAt: number;
}

/** @internal */
export const newBatch = (submissions: Submission[]): Batch => ({ submissions, requestKey: newRequestKey(), sentAt: 0 });
/** @internal */
export const jobsOf = (batch: Batch) => batch.submissions.flatMap((submission) => submission.jobs);

/** @internal */
export const bytesOf = (batch: Batch) => batch.submissions.reduce((sum, submission) => sum + submission.bytes, 0);

/** @internal Approximate size of a job in memory and on the wire, in bytes. */
export function cost({ payload, headers }: pb.NewJob): number {
  return Object.entries(headers).reduce((sum, [name, value]) => sum + name.length + value.length, payload.length + 512);
}

/** @internal Converts the error with which the broker answered one request of a stream. */
export function fromRequestError({ message, code, reason, field, retryAfter }: pb.RequestError): HowdahError {
  return new HowdahError(message, code, { reason, field, retryAfterMs: retryAfter && durationMs(retryAfter) });
}

/**
 * @internal Splits a refused request, of which the broker stored nothing. Fails the enqueue that caused the error, and
 * returns the rest as new requests. If the error does not name a job, splits the request in two.
 */
export function split({ submissions }: Batch, error: HowdahError): Batch[] {
  const index = Number(/^jobs\[(\d+)\]/.exec(error.field)?.[1] ?? -1);
  let first = 0;
  for (const submission of submissions) {
    if (index >= first && index < first + submission.jobs.length) {
      const renumber = (text: string) => text.replaceAll(`jobs[${index}]`, `jobs[${index - first}]`);
      submission.reject(
        new HowdahError(renumber(error.message), error.code, { ...error, field: renumber(error.field) }),
      );
      const rest = submissions.filter((other) => other !== submission);
      return rest.length > 0 ? [newBatch(rest)] : [];
    }
    first += submission.jobs.length;
  }
  // Errors with these codes concern the caller or the whole call, not one job. Every part of a split request would fail
  // with them too.
  const isForAll = [Code.Unauthenticated, Code.Unimplemented].includes(error.code);
  if (submissions.length > 1 && !isForAll) {
    const half = submissions.length >> 1;
    return [newBatch(submissions.slice(0, half)), newBatch(submissions.slice(half))];
  }
  for (const submission of submissions) submission.reject(error);
  return [];
}
