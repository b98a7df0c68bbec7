/** Jobs to enqueue: task types, payloads and results. */
import {
  create,
  type DescField,
  type DescMessage,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
  toJson,
} from "@bufbuild/protobuf";
import { DurationSchema, timestampFromDate, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { invalid, refuseUnknown } from "./calls.js";
import { type Duration, duration } from "./duration.js";
import { type EnqueuedJob, EnqueueOutcome, type NewJob, NewJobSchema, RetryPolicySchema } from "./gen/index.js";
import type { JobOptions, Name, RetryPolicyOptions } from "./options.js";

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

/** Creates a job for {@link Client.enqueueAll}. If `task` is only a name, the payload is encoded as JSON. */
export function newJob<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): NewJob {
  const { name, encode } = asTask(task);
  const init = { ...fieldsOf(NewJobSchema, options, "a job"), taskType: name, payload: encode(payload as P) };
  return jsonMessage(NewJobSchema, create(NewJobSchema, init as MessageInitShape<typeof NewJobSchema>));
}

/** @internal */
export const policy = (options: RetryPolicyOptions): MessageInitShape<typeof RetryPolicySchema> =>
  fieldsOf(RetryPolicySchema, options, "retryPolicy", "retryPolicy.");

/** Converts options to the fields of a message. An error names the option after the prefix. */
function fieldsOf(schema: DescMessage, options: object, what: string, prefix = ""): Record<string, unknown> {
  refuseUnknown(options, schema.field, what);
  const fields: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    const field = schema.field[name];
    if (field === undefined || value === undefined) continue;
    const converted = fieldOf(field, value, prefix + name);
    if (field.oneof) fields[field.oneof.localName] = { case: name, value: converted };
    else fields[name] = converted;
  }
  return fields;
}

function fieldOf(field: DescField, value: unknown, path: string): unknown {
  switch (field.fieldKind) {
    case "list":
      if (!Array.isArray(value)) throw invalid(path, `${JSON.stringify(value)} is not an array`);
      return field.listKind === "message"
        ? value.map((each, index) => messageOf(field.message, each, `${path}[${index}]`))
        : value;
    case "enum":
      return enumOf(
        Object.fromEntries(field.enum.values.map(({ localName, number }) => [localName, number])),
        value as never,
        path,
      );
    case "message":
      return messageOf(field.message, value, path);
    default:
      return value;
  }
}

function messageOf(schema: DescMessage, value: unknown, path: string): unknown {
  switch (schema.typeName) {
    case DurationSchema.typeName:
      return duration(value as Duration, path);
    case TimestampSchema.typeName:
      if (value instanceof Date && !Number.isNaN(value.getTime())) return timestampFromDate(value);
      throw invalid(path, `${JSON.stringify(value)} is not a valid Date`);
    default:
      return fieldsOf(schema, value as object, path, `${path}.`);
  }
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

/** @internal Returns the number of an enum value. */
export function enumOf<E extends object>(names: E, name: Name<E> | undefined, field: string): number {
  if (name === undefined) return 0;
  const value = names[name.toUpperCase() as keyof E];
  if (typeof value === "number") return value;
  const known = Object.keys(names).filter((each) => !/^(UNSPECIFIED|\d+)$/.test(each));
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
