/**
 * For tests of programs that use Howdah: handlers without a broker, enqueues without a broker, and a broker.
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
import { decoded, makeJob } from "./handler.js";
import { asTask } from "./job.js";
import { returned, thrown } from "./outcome.js";

/** What a handler did with a job. */
export interface Performed {
  outcome: "ok" | "retry" | "fatal" | "snooze" | "release";
  /** The result, read as JSON if it is JSON. */
  result?: unknown;
  error?: string;
  /** Of a retry or a snooze, if the handler has said it. */
  delayMs?: number | undefined;
  nextStage?: string;
  /** The last progress and checkpoint that it has reported. */
  fraction?: number | undefined;
  text?: string | undefined;
  checkpoint?: Uint8Array | undefined;
}

/** What the handler gets besides its payload. */
export interface PerformOptions<P> extends Partial<Omit<proto.LeasedJob, "payload" | "$typeName" | "$unknown">> {
  /** How the payload is written and read. Default: as JSON. */
  task?: Task<P>;
  signal?: AbortSignal;
}

/** Runs a handler as a worker would, with a payload that was written and read again. */
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

function performed(wire: ReturnType<typeof returned>): Performed {
  switch (wire.case) {
    case "ack": {
      const { result, nextStage } = wire.value;
      return { outcome: "ok", result: readable(result), ...(nextStage && { nextStage }) };
    }
    case "nack": {
      const { error, noRetry, retryAfter } = wire.value;
      return {
        outcome: noRetry ? "fatal" : "retry",
        error,
        ...(retryAfter && { delayMs: durationMs(retryAfter) }),
      };
    }
    case "snooze":
      return { outcome: "snooze", delayMs: wire.value.delay && durationMs(wire.value.delay) };
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

/** Takes jobs in place of a client, and keeps them. */
export class RecordingClient implements Enqueuer {
  /** What was enqueued, in order. */
  readonly enqueued: proto.NewJob[] = [];

  async enqueue<P>(task: string | Task<P>, payload?: P, options?: JobOptions): Promise<Enqueued> {
    const [first] = await this.enqueueAll([newJob(task, payload, options)]);
    return first as Enqueued;
  }

  async enqueueAll(jobs: proto.NewJob[]): Promise<Enqueued[]> {
    return jobs.map((job) => ({ id: BigInt(this.enqueued.push(job)), isNew: true, outcome: "new" }));
  }

  /** Fails unless such a job was enqueued: of this type, with this payload if one is given, and with these options. */
  assertEnqueued<P>(task: string | Task<P>, payload?: P, options: JobOptions = {}): void {
    const wanted = newJob(task, payload, options);
    const given = Object.keys(options).map((name) => name.replace(/Ms$/, ""));
    const fields = given.map(
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

/** A broker for tests, with a Postgres of its own. */
export interface TestBroker extends AsyncDisposable {
  /** Its address, for a client. */
  readonly server: string;
  /** Ends it, and removes its data. */
  stop(): Promise<void>;
}

/** Starts a broker: the program `howdah`, or the one that is named by `HOWDAH_BIN`. */
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
    // It is read on to the end: a broker whose output nobody takes would be blocked, or end.
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
