/** Checks of the values that a program gives to this client. Each error names the field and says what to do. */
import {
  type DescEnum,
  type DescField,
  type DescMessage,
  type DescOneof,
  isMessage,
  ScalarType,
} from "@bufbuild/protobuf";
import { DurationSchema, timestampFromDate, TimestampSchema } from "@bufbuild/protobuf/wkt";
import type { Transport } from "@connectrpc/connect";
import { refusal, wrong } from "./calls.js";
import { type Duration, duration, milliseconds } from "./duration.js";
import {
  BulkSpecSchema,
  JobConditionsSchema,
  JobFilterSchema,
  OverlapPolicySchema,
  RetryPolicyKind,
  RetryPolicySchema,
} from "./gen/index.js";

type Check = readonly [fits: (value: unknown) => boolean, advice: string];

const isObject = (value: unknown): value is object =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isInteger = (value: unknown, least: number, most: number) =>
  Number.isSafeInteger(value) && Number(value) >= least && Number(value) <= most;
const isText = (value: unknown) => typeof value === "string";

const TEXT: Check = [isText, "give a text"];
const FLAG: Check = [(value) => typeof value === "boolean", "give true or false"];
const INT32: Check = [(value) => isInteger(value, -(2 ** 31), 2 ** 31 - 1), "give an integer"];
const UINT32: Check = [(value) => isInteger(value, 0, 2 ** 32 - 1), "give an integer of at least 0"];
const ID: Check = [(value) => typeof value === "bigint", "give a bigint, such as 17n"];

const SCALARS: { readonly [type in ScalarType]?: Check } = {
  [ScalarType.STRING]: TEXT,
  [ScalarType.BOOL]: FLAG,
  [ScalarType.BYTES]: [(value) => value instanceof Uint8Array, "give bytes (Uint8Array)"],
  [ScalarType.INT32]: INT32,
  [ScalarType.UINT32]: UINT32,
  [ScalarType.INT64]: ID,
  [ScalarType.DOUBLE]: [(value) => typeof value === "number" && !Number.isNaN(value), "give a number"],
};

const KINDS = {
  any: [() => true, ""],
  object: [isObject, "give an object"],
  flag: FLAG,
  text: [(value) => isText(value) && value !== "", "give a text that is not empty, or leave the option out"],
  list: [Array.isArray, "give an array"],
  texts: [(value) => isObject(value) && Object.values(value).every(isText), "give an object whose values are texts"],
  count: [(value) => isInteger(value, 1, Number.MAX_SAFE_INTEGER), "give an integer of at least 1"],
  size: [(value) => isInteger(value, 0, Number.MAX_SAFE_INTEGER), "give an integer of at least 0"],
  duration: [(value) => milliseconds(value as Duration, "") >= 0, "give a duration of at least 0"],
  signal: [(value) => isObject(value) && "aborted" in value, "give an AbortSignal"],
  function: [(value) => typeof value === "function", "give a function"],
} satisfies Record<string, Check>;

/** @internal Names of the options of a call, each with the kind of its values. */
export type Kinds<Options> = Readonly<Record<keyof Options, keyof typeof KINDS>>;

/** @internal Refuses a value that is not of this kind. */
export function checkKind(value: unknown, kind: keyof typeof KINDS, path: string): void {
  if (kind === "duration") milliseconds(value as Duration, path);
  const [fits, advice] = KINDS[kind];
  if (!fits(value)) throw wrong(path, value, advice);
}

/**
 * @internal Refuses unknown options and values of other kinds, because programs without type checks may contain them.
 * `what` completes the error, such as "an option of a worker".
 */
export function checkOptions<Options>(options: unknown, kinds: Kinds<Options>, what: string, path = ""): void {
  checkNames(options, Object.keys(kinds), what, path);
  for (const [name, value] of Object.entries(options as object))
    if (value !== undefined) checkKind(value, kinds[name as keyof Options], pathOf(path, name));
}

/** @internal Refuses a value that is no object, or has other properties than these. */
export function checkNames(options: unknown, names: readonly string[], what: string, path = ""): void {
  const known = names.join(", ");
  const [, kind = "option"] = /^an? (\w+)/.exec(what) ?? [];
  if (!isObject(options)) throw wrong(path || `${kind}s`, options, `give an object with ${known}`);
  for (const name of Object.keys(options))
    if (!names.includes(name)) throw refusal(pathOf(path, name), `is not ${what}; the ${kind}s are ${known}`);
}

const pathOf = (path: string, name: string) => (path ? `${path}.${name}` : name);

/**
 * @internal Refuses conditions that are unset or empty. Without its condition, a call would concern more jobs than the
 * caller means.
 */
export function checkConditions(conditions: object, path = ""): void {
  for (const [name, value] of Object.entries(conditions)) {
    const field = pathOf(path, name);
    if (value === undefined || value === null) throw refusal(field, `is ${value}: leave the condition out`);
    if (value === "") throw refusal(field, "is empty: leave the condition out");
  }
}

/**
 * @internal Converts options to the fields of a message. Refuses options that are not in `names`, have values of other
 * types, or exclude each other in the protocol.
 */
export function fieldsOf(
  schema: DescMessage,
  options: object,
  what: string,
  { names = Object.keys(schema.field), path = "" }: { names?: readonly string[]; path?: string } = {},
): Record<string, unknown> {
  checkNames(options, names, what, path);
  const fields: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options) as [string, unknown][]) {
    const field = schema.field[name];
    if (field === undefined || value === undefined) continue;
    const converted = fieldOf(field, value, pathOf(path, name));
    if (field.oneof) setOneof(fields, field.oneof, name, converted, path);
    else fields[name] = converted;
  }
  return fields;
}

function setOneof(
  fields: Record<string, unknown>,
  { localName }: DescOneof,
  name: string,
  value: unknown,
  path: string,
): void {
  const other = fields[localName] as { case: string } | undefined;
  if (other) throw contradiction(pathOf(path, other.case), name);
  fields[localName] = { case: name, value };
}

/** @internal Returns the error for two options of which only one may be given. */
export const contradiction = (first: string, second: string) =>
  refusal(first, `and ${second} contradict each other: give one`);

function fieldOf(field: DescField, given: unknown, path: string): unknown {
  const value = (each: unknown, path: string) => {
    if (field.message) return messageOf(field.message, each, path);
    if (field.enum) return enumOf(field.enum, each, path);
    return scalarOf(field.scalar, each, path);
  };
  if (field.fieldKind === "list") {
    if (!Array.isArray(given)) throw wrong(path, given, "give an array");
    return given.map((each, index) => value(each, `${path}[${index}]`));
  }
  if (field.fieldKind !== "map") return value(given, path);
  if (!isObject(given)) throw wrong(path, given, "give an object");
  return Object.fromEntries(Object.entries(given).map(([name, each]) => [name, value(each, `${path}.${name}`)]));
}

function scalarOf(type: ScalarType, value: unknown, path: string): unknown {
  const [fits, advice] = SCALARS[type] ?? KINDS.any;
  if (!fits(value)) throw wrong(path, value, advice);
  return value;
}

function messageOf(schema: DescMessage, value: unknown, path: string): unknown {
  if (isMessage(value, schema)) return value;
  if (schema.typeName === DurationSchema.typeName) return duration(value as Duration, path);
  if (schema.typeName === TimestampSchema.typeName) return timeOf(value, path);
  const fields = fieldsOf(schema, value as object, `an option of ${path}`, { path });
  // As on the command line, delays without a kind are a list.
  const isList = schema.typeName === RetryPolicySchema.typeName && "delays" in fields;
  return isList ? { kind: RetryPolicyKind.LIST, ...fields } : fields;
}

function timeOf(value: unknown, path: string) {
  if (value instanceof Date && !Number.isNaN(value.getTime())) return timestampFromDate(value);
  throw wrong(path, value, "give a valid Date");
}

/** Returns the number of an enum value. Its name may be written with hyphens, as in `one-waiting`. */
function enumOf({ typeName, values }: DescEnum, name: unknown, path: string): number {
  const word = String(name).replaceAll("-", "_").toUpperCase();
  const found = values.find(({ localName, number }) => number > 0 && localName === word);
  if (found && isText(name)) return found.number;
  const known = values.filter(({ number }) => number > 0).map(({ localName }) => localName.toLowerCase());
  const text = known.join(", ");
  const isHyphenated = typeName === OverlapPolicySchema.typeName;
  throw wrong(path, name, `give one of ${isHyphenated ? text.replaceAll("_", "-") : text}`);
}

/** @internal Returns the ids of jobs. */
export function idsOf(ids: unknown, field: string): bigint[] {
  const isMany = isIterable(ids);
  const list = isMany ? [...ids] : [ids];
  return list.map((id, index) => scalarOf(ScalarType.INT64, id, isMany ? `${field}[${index}]` : field) as bigint);
}

/** @internal */
export const isIterable = (value: unknown): value is Iterable<unknown> =>
  typeof value === "object" && value !== null && Symbol.iterator in value;

/** The fields of each message that select jobs. */
const SELECTING: Readonly<Record<string, readonly string[]>> = {
  [JobFilterSchema.typeName]: Object.keys(JobFilterSchema.field),
  [JobConditionsSchema.typeName]: Object.keys(JobConditionsSchema.field),
  [BulkSpecSchema.typeName]: ["taskType", "state", "errorGroup", "conditions"],
};

/**
 * @internal Refuses properties of a request that its message does not have, which the encoding would leave out. Also
 * refuses unset conditions. Messages that were made by `create` are complete.
 */
export function checkRequest(schema: DescMessage, request: unknown, path = ""): void {
  if (!isObject(request) || "$typeName" in request) return;
  const names = schema.members.map(({ localName }) => localName);
  const selecting = SELECTING[schema.typeName] ?? [];
  checkNames(request, names, `a field of ${schema.name}`, path);
  checkConditions(Object.fromEntries(Object.entries(request).filter(([name]) => selecting.includes(name))), path);
  for (const member of schema.members) {
    const value: unknown = request[member.localName as keyof typeof request];
    const { field, inner } = innermost(member, value);
    if (!field?.message || field.fieldKind === "map") continue;
    const list = Array.isArray(inner) ? inner : [inner];
    for (const [index, each] of list.entries())
      checkRequest(field.message, each, pathOf(path, field.localName) + (inner === each ? "" : `[${index}]`));
  }
}

/** @internal Checks the requests of the generated clients, see {@link checkRequest}. */
export const checking = (transport: Transport): Transport => ({
  ...transport,
  async unary(method, signal, timeoutMs, header, input, values) {
    checkRequest(method.input, input);
    return transport.unary(method, signal, timeoutMs, header, input, values);
  },
});

/** Returns the field that is set, and its value. */
function innermost(member: DescField | DescOneof, value: unknown): { field?: DescField | undefined; inner: unknown } {
  if (member.kind === "field") return { field: member, inner: value };
  const chosen = value as { case?: string; value?: unknown } | undefined;
  return { field: member.fields.find(({ localName }) => localName === chosen?.case), inner: chosen?.value };
}
