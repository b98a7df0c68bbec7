/** Checks of jobs to enqueue that need no database, with the broker's fields and the default limits of a cluster. */
import type { Duration as PbDuration } from "@bufbuild/protobuf/wkt";
import { durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import {
  DependencyFailure,
  HolderFailure,
  KeyPolicy,
  type NewJob,
  type RetryPolicy,
  RetryPolicyKind,
  StagePayload,
} from "./gen/index.js";

type Problem = [field: string, problem: string];

const [BATCH, NAME_BYTES, PAYLOAD_BYTES, HEADERS, HEADER_BYTES] = [10_000, 200, 1 << 20, 64, 8 << 10];
const TEXTS = { key: 200, limitKey: 200, fairKey: 200, localName: 200, traceparent: 200, tracestate: 512 } as const;
const DAY = 86_400_000;
const KINDS = {
  delays: ["LIST"],
  initialDelay: ["UNSPECIFIED", "EXPONENTIAL", "LINEAR", "FIXED"],
  multiplier: ["UNSPECIFIED", "EXPONENTIAL"],
  maxDelay: ["UNSPECIFIED", "EXPONENTIAL", "LINEAR"],
} as const;

/** @internal Throws the error that a broker returns for the first invalid job. */
export function check(jobs: readonly NewJob[]): void {
  if (jobs.length > BATCH) throw refused("jobs", `has ${jobs.length} entries; 1 to ${BATCH} are allowed`);
  const names = new Set(jobs.map(({ localName }) => localName).filter((name) => name !== ""));
  for (const [index, job] of jobs.entries()) {
    const [first] = [...sizes(job), ...times(job), ...contradictions(job), ...policyOf(job.retryPolicy)];
    if (first) throw refused(`jobs[${index}].${first[0]}`, first[1]);
    const unknown = job.afterLocal.findIndex((name) => !names.has(name));
    if (unknown >= 0)
      throw refused(`jobs[${index}].after_local[${unknown}]`, "is not the local_name of a job in this request");
  }
}

const refused = (field: string, problem: string) =>
  new HowdahError(`${field} ${problem}`, Code.InvalidArgument, { reason: "INVALID_FIELD", field });

/** The name of a field in the protocol and in errors, such as `limit_key`. */
const wire = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function* sizes(job: NewJob): Generator<Problem> {
  const types = [["task_type", job.taskType], ...job.nextStages.map((name, index) => [`next_stages[${index}]`, name])];
  if (job.fallback !== "") types.push(["fallback", job.fallback]);
  for (const [field = "", name = ""] of types)
    if (!/^[A-Za-z0-9._:/-]+$/.test(name) || name.length > NAME_BYTES)
      yield [field, `"${name.slice(0, 40)}" is not 1 to ${NAME_BYTES} of the characters A-Z a-z 0-9 . _ : / -`];
  if (job.payload.length > PAYLOAD_BYTES)
    yield ["payload", `has ${job.payload.length} bytes; at most ${PAYLOAD_BYTES} are allowed`];
  const headers = Object.entries(job.headers);
  const bytes = Buffer.byteLength(headers.flat().join(""));
  if (headers.length > HEADERS || bytes > HEADER_BYTES) {
    const most = `${HEADERS} entries with ${HEADER_BYTES} bytes`;
    yield ["headers", `has ${headers.length} entries with ${bytes} bytes; at most ${most} are allowed`];
  }
  for (const [name, most] of Object.entries(TEXTS)) yield* text(wire(name), job[name as keyof typeof TEXTS], most);
  if (job.tags.length > 16) yield ["tags", `has ${job.tags.length} entries; 0 to 16 are allowed`];
  for (const [index, tag] of job.tags.entries()) {
    if (tag === "") yield [`tags[${index}]`, "is empty; leave it out"];
    yield* text(`tags[${index}]`, tag, 64);
  }
  if (!(job.priority >= -1000 && job.priority <= 1000))
    yield ["priority", `is ${job.priority}; -1000 to 1000 is allowed`];
  if (job.maxAttempts > 1000) yield ["max_attempts", `is ${job.maxAttempts}; 0 to 1000 is allowed`];
  if (job.limitMax > 1_000_000) yield ["limit_max", `is ${job.limitMax}; 0 to 1000000 is allowed`];
}

function* text(field: string, value: string, most: number): Generator<Problem> {
  const bytes = Buffer.byteLength(value);
  if (bytes > most) yield [field, `has ${bytes} bytes; at most ${most} are allowed`];
  if (/\p{Cc}/u.test(value)) yield [field, `${JSON.stringify(value)} has a control character; none are allowed`];
}

function* times({ start, expiry, timeout, keyHold, keyDebounceLimit }: NewJob): Generator<Problem> {
  const delay = start.case === "delay" ? start.value : undefined;
  const expireAfter = expiry.case === "expireAfter" ? expiry.value : undefined;
  const bounds: [string, PbDuration | undefined, number, number][] = [
    ["delay", delay, 0, 3650 * DAY],
    ["timeout", timeout, 1, 30 * DAY],
    ["key_hold", keyHold, 1_000, 365 * DAY],
    ["key_debounce_limit", keyDebounceLimit, 1, 365 * DAY],
    ["expire_after", expireAfter, 1, 3650 * DAY],
  ];
  for (const [field, value, least, most] of bounds) {
    const ms = value && durationMs(value);
    if (ms !== undefined && !(ms >= least && ms <= most))
      yield [field, `is ${ms} ms; ${least} ms to ${most} ms is allowed`];
  }
  const late = "is not after the job's start, so the job would never run; set a later time";
  if (delay && expireAfter && durationMs(delay) >= durationMs(expireAfter)) yield ["expire_after", late];
  const both = start.case === "runAt" && expiry.case === "expireAt";
  if (both && timestampMs(expiry.value) <= timestampMs(start.value)) yield ["expire_at", late];
}

function* contradictions(job: NewJob): Generator<Problem> {
  const { keyPolicy, keyVersion, keyHold, keyDebounceLimit, onHolderFailure } = job;
  const needKey = {
    key_policy: keyPolicy !== KeyPolicy.UNSPECIFIED && keyPolicy !== KeyPolicy.KEEP,
    key_version: keyVersion !== undefined,
    key_hold: keyHold !== undefined,
    key_debounce_limit: keyDebounceLimit !== undefined,
    on_holder_failure: onHolderFailure !== HolderFailure.UNSPECIFIED,
  };
  for (const [field, isSet] of Object.entries(needKey))
    if (isSet && job.key === "") yield [field, "is set without a key; set key too"];
  if (job.limitMax > 0 && job.limitKey === "") yield ["limit_max", "is set without a limit_key; set that too"];
  if (keyPolicy === KeyPolicy.REPLACE_IF_NEWER && keyVersion === undefined)
    yield ["key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER requires it"];
  if (keyPolicy === KeyPolicy.DEBOUNCE && job.start.case === undefined)
    yield ["key_policy", "is KEY_POLICY_DEBOUNCE without a delay or run_at; set how far the job is put off"];
  if (keyPolicy !== KeyPolicy.DEBOUNCE && keyDebounceLimit)
    yield ["key_debounce_limit", "is set without KEY_POLICY_DEBOUNCE; set key_policy too"];
  if (job.onDependencyFailure !== DependencyFailure.UNSPECIFIED && job.after.length + job.afterLocal.length === 0)
    yield ["on_dependency_failure", "is set without after or after_local; set one of those too"];
  if (job.stagePayload !== StagePayload.UNSPECIFIED && job.nextStages.length === 0)
    yield ["stage_payload", "is set without next_stages; set those too"];
  if (job.fallback !== "" && job.fallback === job.taskType)
    yield ["fallback", `is "${job.fallback}", the job's own task type; name another one`];
}

function* policyOf(policy: RetryPolicy | undefined): Generator<Problem> {
  if (!policy) return;
  const kind = RetryPolicyKind[policy.kind] ?? "UNSPECIFIED";
  if (kind === "LIST" && policy.delays.length === 0)
    yield ["retry_policy.delays", "has no entries; kind LIST needs 1 to 100"];
  for (const [name, kinds] of Object.entries(KINDS)) {
    const value = policy[name as keyof typeof KINDS];
    const isSet = Array.isArray(value) ? value.length > 0 : value !== undefined;
    if (isSet && !(kinds as readonly string[]).includes(kind))
      yield [`retry_policy.${wire(name)}`, `is not for kind ${kind}`];
  }
}
