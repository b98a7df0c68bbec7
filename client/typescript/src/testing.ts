/**
 * Helpers for tests of programs that use Howdah: run handlers without a broker, record enqueues, and start a broker.
 *
 * @packageDocumentation
 */
import { AssertionError } from "node:assert";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { inspect, isDeepStrictEqual } from "node:util";
import { create, toJson } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import type {
  Duration,
  Enqueued,
  EnqueueJobOptions,
  EnqueueOptions,
  Enqueuer,
  Handler,
  JobOptions,
  Task,
} from "./index.js";
import { Client, Code, fromJsonBytes, HowdahError, newJob, proto } from "./index.js";
import { check } from "./checks.js";
import { ENQUEUE_OPTIONS } from "./client.js";
import { milliseconds } from "./duration.js";
import { checkNames, checkOptions } from "./given.js";
import { decoded, makeJob } from "./handler.js";
import { asTask, checkJobs, enqueued, newRequest } from "./job.js";
import { returned, thrown } from "./outcome.js";
import { progressOf } from "./session.js";

/** The outcome of a handler that {@link perform} has run, and its last reports. */
export interface Performed {
  outcome: "ok" | "retry" | "fatal" | "snooze" | "release";
  /** The result of the handler: parsed if it is JSON, otherwise bytes. */
  result?: unknown;
  error?: string;
  /** The delay of a retry or a snooze, if the handler has set it. */
  delayMs?: number | undefined;
  nextStage?: string;
  /** The last reported fraction. `text` and `checkpoint` also have the last reported values. */
  fraction?: number | undefined;
  text?: string | undefined;
  checkpoint?: Uint8Array | undefined;
}

/** Fields of the job other than its payload, and options of {@link perform}. */
export interface PerformOptions<P> extends Partial<Omit<proto.LeasedJob, "payload" | "$typeName" | "$unknown">> {
  /** The task type, which determines how the payload is encoded and decoded. Default: JSON. */
  task?: Task<P>;
  signal?: AbortSignal;
}

/**
 * Runs a handler as a worker would, without a broker. The payload is first encoded and decoded, as a broker would
 * deliver it.
 */
export async function perform<P>(handler: Handler<P>, payload: P, options: PerformOptions<P> = {}): Promise<Performed> {
  checkNames(options, [...Object.keys(proto.LeasedJobSchema.field), "task", "signal"], "an option of perform");
  const { task, signal = new AbortController().signal, ...fields } = options;
  const { name, encode, decode } = asTask(task ?? "test");
  const init = {
    id: 1n,
    token: 1n,
    taskType: name,
    attempt: 1,
    maxAttempts: 10,
    dependencyCount: fields.after?.length ?? 0,
    ...fields,
    payload: encode(payload),
  };
  const reported: Partial<Performed> = {};
  const job = makeJob(create(proto.LeasedJobSchema, init), signal, {
    results: async () => [],
    extend: async () => {},
    report: async (report) => {
      for (const [field, value] of Object.entries(progressOf(report)))
        if (value !== undefined) Object.assign(reported, { [field]: value });
    },
  });
  try {
    return { ...performed(returned(await handler(decoded(decode, job), job))), ...reported };
  } catch (error) {
    return { ...performed(thrown(error, signal)), ...reported };
  }
}

function performed(message: ReturnType<typeof returned>): Performed {
  switch (message.case) {
    case "ack": {
      const { result, nextStage } = message.value;
      return { outcome: "ok", result: readable(result), ...(nextStage && { nextStage }) };
    }
    case "nack": {
      const { error, noRetry, retryAfter } = message.value;
      return {
        outcome: noRetry ? "fatal" : "retry",
        error,
        ...(retryAfter && { delayMs: durationMs(retryAfter) }),
      };
    }
    case "snooze":
      return { outcome: "snooze", delayMs: message.value.delay && durationMs(message.value.delay) };
    case "release":
      return { outcome: "release" };
  }
}

function readable(bytes: Uint8Array): unknown {
  try {
    return fromJsonBytes(bytes);
  } catch {
    return bytes;
  }
}

/** A request with a request key, and its answer. */
interface Recorded {
  readonly jobs: proto.NewJob[];
  readonly answers: Enqueued[];
}

/** Returns the jobs of an earlier request with the same key. Like a broker, refuses other jobs. */
function repeated(earlier: Recorded, jobs: proto.NewJob[], requestKey: string): Enqueued[] {
  if (!isDeepStrictEqual(earlier.jobs, jobs)) {
    const text = `request_key ${JSON.stringify(requestKey)} was used with other jobs before; use a new key for new jobs`;
    throw new HowdahError(text, Code.AlreadyExists, { reason: "REQUEST_KEY_REUSED", field: "request_key" });
  }
  const outcome = proto.EnqueueOutcome.REPEATED;
  return earlier.answers.map(({ id }) => enqueued(create(proto.EnqueuedJobSchema, { id, outcome }), false));
}

/** A client for tests. It checks jobs as a broker does, and records them instead of sending them. */
export class RecordingClient implements Enqueuer {
  /** The enqueued jobs, in order. A job that replaces another one takes its place. */
  readonly enqueued: proto.NewJob[] = [];
  /** Indexes of the jobs that hold a key, by task type and key. */
  readonly #keys = new Map<string, number>();
  readonly #requests = new Map<string, Recorded>();

  async enqueue<P>(task: string | Task<P>, payload?: P, options: EnqueueJobOptions = {}): Promise<Enqueued> {
    const { jobs, call } = newRequest(task, payload, options);
    const [first] = await this.enqueueAll(jobs, call);
    return first as Enqueued;
  }

  async enqueueAll(jobs: proto.NewJob[], options: EnqueueOptions = {}): Promise<Enqueued[]> {
    checkJobs(jobs);
    checkOptions(options, ENQUEUE_OPTIONS, "an option of an enqueue");
    check(jobs);
    const { requestKey } = options;
    const earlier = requestKey === undefined ? undefined : this.#requests.get(requestKey);
    if (earlier) return repeated(earlier, jobs, requestKey as string);
    const answers = this.#record(jobs);
    if (requestKey !== undefined) this.#requests.set(requestKey, { jobs, answers });
    return answers;
  }

  #record(jobs: proto.NewJob[]): Enqueued[] {
    const taken = jobs.findIndex(
      (job) => job.keyPolicy === proto.KeyPolicy.REJECT && job.key !== "" && this.#keys.has(holderOf(job)),
    );
    if (taken >= 0) {
      const field = `jobs[${taken}].key`;
      throw new HowdahError(`${field} is held by another job`, Code.AlreadyExists, { reason: "KEY_TAKEN", field });
    }
    return jobs.map((job) => enqueued(create(proto.EnqueuedJobSchema, this.#stored(job)), false));
  }

  #stored(job: proto.NewJob): { id: bigint; isNew: boolean; outcome: proto.EnqueueOutcome } {
    const { KeyPolicy, EnqueueOutcome } = proto;
    const holder = job.key === "" ? undefined : this.#keys.get(holderOf(job));
    if (holder === undefined) {
      const count = this.enqueued.push(job);
      if (job.key !== "") this.#keys.set(holderOf(job), count - 1);
      return { id: BigInt(count), isNew: true, outcome: EnqueueOutcome.NEW };
    }
    const id = BigInt(holder + 1);
    const isNewer = (job.keyVersion ?? 0n) > (this.enqueued[holder]?.keyVersion ?? -(2n ** 63n));
    if (job.keyPolicy === KeyPolicy.REPLACE_IF_NEWER && !isNewer)
      return { id, isNew: false, outcome: EnqueueOutcome.STALE };
    const replaces = [KeyPolicy.REPLACE, KeyPolicy.REPLACE_IF_NEWER, KeyPolicy.DEBOUNCE].includes(job.keyPolicy);
    if (!replaces) return { id, isNew: false, outcome: EnqueueOutcome.KEPT };
    this.enqueued[holder] = job;
    const isDebounced = job.keyPolicy === KeyPolicy.DEBOUNCE;
    return { id, isNew: false, outcome: isDebounced ? EnqueueOutcome.DEBOUNCED : EnqueueOutcome.REPLACED };
  }

  /** Returns a producer that records jobs in this client. */
  producer(): ReturnType<Enqueuer["producer"]> {
    const settle = async () => {};
    return {
      enqueue: (task, payload, options) => this.enqueue(task, payload, options),
      enqueueAll: (jobs) => this.enqueueAll(jobs),
      ready: settle,
      flush: settle,
      close: settle,
      [Symbol.asyncDispose]: settle,
    };
  }

  /** Fails unless a job of this task type was enqueued with these options and, if one is given, this payload. */
  assertEnqueued<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): void {
    const wanted = newJob(task, payload, options);
    const fields = (Object.keys(options) as (keyof JobOptions)[]).map(
      (name) => proto.NewJobSchema.field[name].oneof?.localName ?? name,
    );
    const names = ["taskType", ...(payload === undefined ? [] : ["payload"]), ...fields] as (keyof proto.NewJob)[];
    const fits = (job: proto.NewJob) => names.every((name) => isDeepStrictEqual(job[name], wanted[name]));
    if (this.enqueued.some(fits)) return;
    const actual = this.enqueued.map((job) => ({ ...job, payload: readable(job.payload) }));
    const shown = this.enqueued.map(textOf).join("\n  ") || "nothing";
    const message = `no job was enqueued like\n  ${textOf(wanted)}\nbut\n  ${shown}`;
    throw new AssertionError({
      message,
      actual,
      expected: wanted,
      operator: "assertEnqueued",
      stackStartFn: this.assertEnqueued.bind(this),
    });
  }
}

/** Returns a job as a text in one line, with a readable payload. */
const textOf = (job: proto.NewJob) =>
  inspect(
    { ...(toJson(proto.NewJobSchema, job) as object), payload: readable(job.payload) },
    { depth: 4, breakLength: Infinity },
  );

const holderOf = ({ taskType, key }: proto.NewJob) => `${taskType} ${key}`;

/** A broker for tests, with a temporary Postgres. */
export interface TestBroker extends AsyncDisposable {
  /** The address of the broker's gRPC port, for clients. */
  readonly server: string;
  /** The address of the broker's HTTP port. */
  readonly http: string;
  /** The URL of the broker's database. Empty if the broker serves several stores. */
  readonly postgres: string;
  /**
   * Advances the broker's clock, such as by `"3 days"`, and returns the new time. Delayed jobs, retries, schedules,
   * deadlines and leases become due. `Date` and timers do not follow.
   */
  advance(duration: Duration): Promise<Date>;
  /** Stops the broker, and removes its data. */
  stop(): Promise<void>;
}

/**
 * Starts a broker: the program `bin`, or else the program of `HOWDAH_BIN`, or else `howdah` on the PATH. It logs warnings
 * and errors, unless `HOWDAH_LOG` is set.
 */
export async function startBroker(options: { bin?: string; args?: string[] } = {}): Promise<TestBroker> {
  checkOptions(options, { bin: "text", args: "list" }, "an option of startBroker");
  const bin = options.bin ?? (process.env.HOWDAH_BIN || "howdah");
  const listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
  const child = spawn(bin, ["dev", "--ephemeral", ...listen, ...(options.args ?? [])], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { HOWDAH_LOG: "warn", ...process.env },
  });
  const stop = () => ended(child);
  const exit = once(child, "exit").catch((error: unknown) => {
    throw notStarted(bin, options.bin === undefined, error);
  });
  const fields = await Promise.race([ready(child), exit.then(() => undefined)]);
  if (!fields) throw new Error(`${bin} dev has ended before it was ready`);
  const { grpc = "", http = "", postgres = "" } = Object.fromEntries(fields) as Record<string, string>;
  const advance = (by: Duration) => advanceClock(grpc, by);
  return { server: grpc, http, postgres, advance, stop, [Symbol.asyncDispose]: stop };
}

function notStarted(bin: string, isDefault: boolean, cause: unknown): Error {
  const path = isDefault && !process.env.HOWDAH_BIN;
  const source = isDefault ? "HOWDAH_BIN" : "bin";
  const text = path
    ? "howdah is not on the PATH: install it or set HOWDAH_BIN"
    : `${source} is ${JSON.stringify(bin)}, which cannot be run: name the program howdah`;
  return new Error(text, { cause });
}

async function advanceClock(server: string, by: Duration): Promise<Date> {
  await using client = await Client.connect(server);
  const { time } = await client.settings.advanceClock({ duration: durationFromMs(milliseconds(by, "duration")) });
  return timestampDate(time as Timestamp);
}

/** Waits for the line with which the broker says that it is ready, and returns the fields of the line. */
function ready({ stdout }: ChildProcess): Promise<string[][]> {
  return new Promise((resolve) => {
    let text = "";
    // The listener stays after the ready line, because a broker whose output is not read would block or end.
    stdout?.on("data", (data) => {
      text += data;
      const line = /^ready (.*)\n/m.exec(text)?.[1];
      if (line) resolve(line.split(" ").map((field) => field.split(/=(.*)/, 2)));
    });
  });
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, "exit");
  child.kill("SIGTERM");
  await exit;
}
