/**
 * Helpers for tests of programs that use Howdah: run handlers without a broker, record enqueues, and start a broker.
 *
 * @packageDocumentation
 */
import { AssertionError } from "node:assert";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { isDeepStrictEqual } from "node:util";
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Enqueued, Enqueuer, Handler, JobOptions, Task } from "./index.js";
import { fromJsonBytes, newJob, proto } from "./index.js";
import { enqueued } from "./client.js";
import { decoded, makeJob } from "./handler.js";
import { asTask } from "./job.js";
import { returned, thrown } from "./outcome.js";

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
  const { task, signal = new AbortController().signal, ...fields } = options;
  const { name, encode, decode } = asTask(task ?? "test");
  const init = {
    id: 1n,
    token: 1n,
    taskType: name,
    attempt: 1,
    maxAttempts: 10,
    ...fields,
    payload: encode(payload),
  };
  const reported: Partial<Performed> = {};
  const job = makeJob(create(proto.LeasedJobSchema, init), signal, {
    extend: async () => {},
    report: async (report) => {
      for (const [field, value] of Object.entries(report))
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

/** A client for tests that records jobs instead of sending them to a broker. */
export class RecordingClient implements Enqueuer {
  /** The enqueued jobs, in order. */
  readonly enqueued: proto.NewJob[] = [];

  async enqueue<P>(task: string | Task<P>, payload?: P, options?: JobOptions): Promise<Enqueued> {
    const [first] = await this.enqueueAll([newJob(task, payload, options)]);
    return first as Enqueued;
  }

  async enqueueAll(jobs: proto.NewJob[]): Promise<Enqueued[]> {
    const stored = (job: proto.NewJob) =>
      create(proto.EnqueuedJobSchema, { id: BigInt(this.enqueued.push(job)), isNew: true });
    return jobs.map((job) => enqueued(stored(job), true));
  }

  /** Fails unless a job of this task type was enqueued with these options and, if one is given, this payload. */
  assertEnqueued<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): void {
    const wanted = newJob(task, payload, options);
    const fields = Object.keys(options).map(
      (name) => ({ runAt: "start", delay: "start", expireAt: "expiry", expireAfter: "expiry" })[name] ?? name,
    );
    const names = ["taskType", ...(payload === undefined ? [] : ["payload"]), ...fields] as (keyof proto.NewJob)[];
    const fits = (job: proto.NewJob) => names.every((name) => isDeepStrictEqual(job[name], wanted[name]));
    if (this.enqueued.some(fits)) return;
    const actual = this.enqueued.map((job) => ({ ...job, payload: readable(job.payload) }));
    const message = `no such ${wanted.taskType} was enqueued`;
    throw new AssertionError({
      message,
      actual,
      expected: wanted,
      operator: "assertEnqueued",
      stackStartFn: this.assertEnqueued.bind(this),
    });
  }
}

/** A broker for tests, with a temporary Postgres. */
export interface TestBroker extends AsyncDisposable {
  /** The broker's address, for clients. */
  readonly server: string;
  /** Stops the broker, and removes its data. */
  stop(): Promise<void>;
}

/** Starts a broker. Runs the program `bin`, or else the program of `HOWDAH_BIN`, or else `howdah` on the PATH. */
export async function startBroker(options: { bin?: string; args?: string[] } = {}): Promise<TestBroker> {
  const bin = options.bin ?? process.env.HOWDAH_BIN ?? "howdah";
  const listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
  const child = spawn(bin, ["dev", "--ephemeral", ...listen, ...(options.args ?? [])], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const stop = () => ended(child);
  const server = await Promise.race([ready(child), once(child, "exit").then(() => undefined)]);
  if (!server) throw new Error(`${bin} dev has ended before it was ready`);
  return { server, stop, [Symbol.asyncDispose]: stop };
}

function ready({ stdout }: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    // The listener stays after the ready line, because a broker whose output is not read would block or end.
    stdout?.on("data", (data) => {
      text += data;
      const address = /^ready grpc=(\S+)/m.exec(text)?.[1];
      if (address) resolve(address);
    });
  });
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, "exit");
  child.kill("SIGTERM");
  await exit;
}
