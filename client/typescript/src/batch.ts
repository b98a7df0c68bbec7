/** Requests of a pipeline, and how one that is refused is split. */
import { randomBytes } from "node:crypto";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import type * as pb from "./gen/index.js";

/** @internal The time and 80 random bits: keys of the same minute are neighbours in the index. */
export const newRequestKey = () => Date.now().toString(16).padStart(12, "0") + randomBytes(10).toString("hex");

/** @internal The jobs of one call, and who waits for them. */
export interface Part {
  readonly jobs: pb.NewJob[];
  readonly bytes: number;
  isOver: boolean;
  resolve(jobs: pb.EnqueuedJob[]): void;
  reject(error: unknown): void;
}

/** @internal One request. It is repeated unchanged, under its key, until it is answered. */
export interface Batch {
  readonly parts: Part[];
  readonly requestKey: string;
  sentAt: number;
}

/** @internal */
export const newBatch = (parts: Part[]): Batch => ({ parts, requestKey: newRequestKey(), sentAt: 0 });
/** @internal */
export const jobsOf = (batch: Batch) => batch.parts.flatMap((part) => part.jobs);

/** @internal The bytes of a job in memory and on the wire, more or less. */
export function cost({ payload, headers }: pb.NewJob): number {
  return Object.entries(headers).reduce((sum, [name, value]) => sum + name.length + value.length, payload.length + 512);
}

/** @internal The error of a request. */
export function ofRequest({ message, code, reason, field, retryAfter }: pb.RequestError): HowdahError {
  return new HowdahError(message, code, { reason, field, retryAfterMs: retryAfter && durationMs(retryAfter) });
}

/** @internal A request was refused, and nothing of it is stored: answers the call that caused it, and returns the rest. */
export function split({ parts }: Batch, error: HowdahError): Batch[] {
  const index = Number(/^jobs\[(\d+)\]/.exec(error.field)?.[1] ?? -1);
  let first = 0;
  for (const part of parts) {
    if (index >= first && index < first + part.jobs.length) {
      const own = (text: string) => text.replaceAll(`jobs[${index}]`, `jobs[${index - first}]`);
      part.reject(new HowdahError(own(error.message), error.code, { ...error, field: own(error.field) }));
      const rest = parts.filter((other) => other !== part);
      return rest.length > 0 ? [newBatch(rest)] : [];
    }
    first += part.jobs.length;
  }
  // An error about the caller would come for each part of it.
  const isForAll = [Code.Unauthenticated, Code.Unimplemented].includes(error.code);
  if (parts.length > 1 && !isForAll) {
    const half = parts.length >> 1;
    return [newBatch(parts.slice(0, half)), newBatch(parts.slice(half))];
  }
  for (const part of parts) part.reject(error);
  return [];
}
