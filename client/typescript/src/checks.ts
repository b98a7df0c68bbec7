/** Checks of jobs to enqueue that need no database, with the broker's fields and the default limits of a cluster. */
import { isFieldSet } from "@bufbuild/protobuf";
import type { Duration as PbDuration } from "@bufbuild/protobuf/wkt";
import { durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import { KeyPolicy, type NewJob, NewJobSchema, type RetryPolicy, RetryPolicyKind } from "./gen/index.js";
import { BOUNDS } from "./options.js";

type Problem = [field: string, problem: string];

const [BATCH, NAME_BYTES, PAYLOAD_BYTES, HEADER_BYTES] = [10_000, 200, 1 << 20, 8 << 10];
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
    const [first] = [...types(job), ...bounds(job), ...contradictions(job), ...policyOf(job.retryPolicy)];
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

function* types(job: NewJob): Generator<Problem> {
  const types = [["task_type", job.taskType], ...job.nextStages.map((name, index) => [`next_stages[${index}]`, name])];
  if (job.fallback !== "") types.push(["fallback", job.fallback]);
  for (const [field = "", name = ""] of types)
    if (!/^[A-Za-z0-9._:/-]+$/.test(name) || name.length > NAME_BYTES)
      yield [field, `"${name.slice(0, 40)}" is not 1 to ${NAME_BYTES} of the characters A-Z a-z 0-9 . _ : / -`];
  if (job.payload.length > PAYLOAD_BYTES)
    yield ["payload", `has ${job.payload.length} bytes; at most ${PAYLOAD_BYTES} are allowed`];
}

function* bounds(job: NewJob): Generator<Problem> {
  const given = (name: string) => {
    // `keep` is the policy of every job.
    const field = NewJobSchema.fields.find((field) => field.name === name);
    if (!field || !isFieldSet(job, field) || (name === "key_policy" && job.keyPolicy === KeyPolicy.KEEP))
      return undefined;
    return field.oneof ? job[field.oneof.localName as "start"].value : job[field.localName as keyof NewJob];
  };
  for (const [name, kind, least, most, needs] of BOUNDS) {
    const value = given(name);
    if (value === undefined) continue;
    if (needs.length > 0 && needs.every((need) => given(need) === undefined))
      yield [name, `is set without ${needs.join(" or ")}; set ${needs.length > 1 ? "one of them" : "that"} too`];
    const amount = kind === "ms" ? durationMs(value as PbDuration) : kind === "number" ? (value as number) : undefined;
    if (amount !== undefined && !(amount >= least && amount <= most))
      yield [name, `is ${amount}; ${least} to ${most} is allowed`];
    if (kind === "text") yield* text(name, value as string, most);
    const count = ["tags", "names", "list", "headers"].includes(kind) ? Object.keys(value).length : 0;
    if (count > most) yield [name, `has ${count} entries; ${least} to ${most} are allowed`];
  }
  const bytes = Buffer.byteLength(Object.entries(job.headers).flat().join(""));
  if (bytes > HEADER_BYTES) yield ["headers", `has ${bytes} bytes together; at most ${HEADER_BYTES} are allowed`];
  for (const [index, tag] of job.tags.entries()) {
    if (tag === "") yield [`tags[${index}]`, "is empty; leave it out"];
    yield* text(`tags[${index}]`, tag, 64);
  }
}

function* text(field: string, value: string, most: number): Generator<Problem> {
  const bytes = Buffer.byteLength(value);
  if (bytes > most) yield [field, `has ${bytes} bytes; at most ${most} are allowed`];
  if (/\p{Cc}/u.test(value)) yield [field, `${JSON.stringify(value)} has a control character; none are allowed`];
}

function* contradictions(job: NewJob): Generator<Problem> {
  const { start, expiry, keyPolicy, keyVersion, keyDebounceLimit } = job;
  const delay = start.case === "delay" ? start.value : undefined;
  const expireAfter = expiry.case === "expireAfter" ? expiry.value : undefined;
  const late = "is not after the job's start, so the job would never run; set a later time";
  if (delay && expireAfter && durationMs(delay) >= durationMs(expireAfter)) yield ["expire_after", late];
  const both = start.case === "runAt" && expiry.case === "expireAt";
  if (both && timestampMs(expiry.value) <= timestampMs(start.value)) yield ["expire_at", late];
  if (keyPolicy === KeyPolicy.REPLACE_IF_NEWER && keyVersion === undefined)
    yield ["key_version", "is not set; KEY_POLICY_REPLACE_IF_NEWER requires it"];
  if (keyPolicy === KeyPolicy.DEBOUNCE && job.start.case === undefined)
    yield ["key_policy", "is KEY_POLICY_DEBOUNCE without a delay or run_at; set how far the job is put off"];
  if (keyPolicy !== KeyPolicy.DEBOUNCE && keyDebounceLimit)
    yield ["key_debounce_limit", "is set without KEY_POLICY_DEBOUNCE; set key_policy too"];
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
