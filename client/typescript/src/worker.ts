/** Runs handlers for jobs. */
import { decoded, type Handler, type Job, makeJob, type Middleware } from "./handler.js";
import { asTask, type Task } from "./job.js";
import type { Entry } from "./ledger.js";
import type { Network } from "./network.js";
import { returned, thrown, type Wire } from "./outcome.js";
import { Session, type WorkerReport } from "./session.js";
import { Slot } from "./slot.js";

/** Settings of a worker. */
export interface WorkerOptions {
  /** How many handlers of each task type run at once. As many jobs are held. Default: 16. */
  concurrency?: number;
  /** The most payload and header bytes of each task type that are held. A larger job is never sent. Default: 64 MiB. */
  windowBytes?: number;
  /** The largest message accepted; larger jobs are left to other workers. Default: the client's. */
  maxMessageBytes?: number;
  /** Texts for people, such as host or version. */
  labels?: Record<string, string>;
  /** How long a stop waits for handlers before they are told to stop. A second later their jobs are released. Default: 30 s. */
  stopTimeoutMs?: number;
}

/** Settings of a run. */
export interface RunOptions {
  /** Stops the worker softly when it is aborted. */
  signal?: AbortSignal;
  /** Stops the worker softly at the first of these signals, such as `["SIGTERM", "SIGINT"]`. A second one ends the program. */
  stopOn?: readonly NodeJS.Signals[];
}

/** Handlers, and the stream that brings them their jobs; made by {@link Client.worker}. */
export class Worker {
  readonly #slots = new Map<string, Slot>();
  readonly #middleware: Middleware[];
  readonly #session: Session;
  readonly #connected: Promise<string>;
  #running: Promise<WorkerReport> | undefined;
  #noteConnected: (broker: string) => void = () => {};

  /** @internal */
  constructor(
    private readonly network: Network,
    middleware: readonly Middleware[],
    private readonly options: WorkerOptions,
  ) {
    this.#middleware = [...middleware];
    const { labels, windowBytes = 0, maxMessageBytes = network.settings.maxMessageBytes } = options;
    this.#connected = new Promise((resolve) => {
      this.#noteConnected = resolve;
    });
    this.#session = new Session(network, {
      slots: this.#slots,
      windowBytes,
      maxMessageBytes,
      labels: { client: "howdah-js", ...labels },
      onConnected: this.#noteConnected,
    });
  }

  /** Handles a task type. A payload that cannot be read ends the job, as a {@link FatalError} does. */
  handle<P = unknown>(task: string | Task<P>, handler: Handler<P>, options: { concurrency?: number } = {}): this {
    const { name, decode } = asTask(task);
    const limit = options.concurrency ?? this.options.concurrency ?? 16;
    const run = (entry: Entry) => this.#run(entry, (job) => handler(decoded(decode, job), job));
    this.#slots.set(name, new Slot(name, limit, run, (entry, outcome) => this.#session.finished(entry, outcome)));
    return this;
  }

  /** Adds code around each handler, inside of what was added before. */
  use(middleware: Middleware): this {
    this.#middleware.push(middleware);
    return this;
  }

  /** Connects, and runs until it is stopped. It goes on at any broker when a stream breaks. Fails if a broker refuses it. */
  run({ signal, stopOn = [] }: RunOptions = {}): Promise<WorkerReport> {
    if (this.#running) return this.#running;
    const stop = () => void this.stop();
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    for (const name of stopOn) process.once(name, stop);
    this.#running = this.#session.run().finally(() => {
      signal?.removeEventListener("abort", stop);
      for (const name of stopOn) process.off(name, stop);
    });
    // It is logged; a program that does not wait for the end need not end by it.
    this.#running.catch(() => {});
    return this.#running;
  }

  /** Waits for the first stream, and returns the broker's name. Fails if a broker refuses the worker. */
  async connected(): Promise<string> {
    const ended = this.run().then(() => "");
    return Promise.race([this.#connected, ended]);
  }

  /** Takes no more jobs, waits for the handlers, and closes the stream when their outcomes are stored. */
  async stop(options: { timeoutMs?: number } = {}): Promise<WorkerReport> {
    void this.#session.stop(options.timeoutMs ?? this.options.stopTimeoutMs ?? 30_000);
    return this.#running ?? this.report;
  }

  /** Ends at once. Its jobs go to other workers after the session's grace time, and the attempts count. */
  abort = (): void => this.#session.abort();

  /** Changes how many handlers of a type run at once. 0 pauses the type. */
  setConcurrency = (taskType: string, jobs: number): void => this.#session.resize(taskType, jobs);

  get report(): WorkerReport {
    return { ...this.#session.report };
  }

  async #run(entry: Entry, handler: (job: Job) => unknown): Promise<Wire> {
    const { job: message, abort } = entry;
    const { broker } = this.#session;
    const pending: Promise<void>[] = [];
    // A handler need not wait for these answers, but the outcome does.
    const noted = (answer: Promise<void>) => {
      pending.push(answer.catch(() => {}));
      return answer;
    };
    const job = makeJob(message, abort.signal, {
      extend: (ms) => noted(this.#session.extend(message, ms)),
      report: (report) => noted(this.#session.reportProgress(message, report)),
    });
    const call = this.#middleware.reduceRight<() => Promise<unknown>>(
      (next, { handle }) => (handle ? async () => handle(job, next, broker) : next),
      async () => handler(job),
    );
    entry.tell = (settled) => this.#tell((each) => each.settled?.(job, settled, broker));
    let outcome: Wire;
    let failure: unknown;
    try {
      outcome = returned(await call());
    } catch (error) {
      outcome = thrown(error, abort.signal);
      failure = error;
      if (outcome.case === "nack")
        this.network.settings.logger.warn(`howdah: job ${job.id} (${job.taskType}) has failed`, { error });
    }
    entry.endedAt ??= performance.now();
    this.#tell((each) => each.decided?.(job, outcome, failure));
    await Promise.all(pending);
    return outcome;
  }

  #tell(how: (middleware: Middleware) => void): void {
    try {
      this.#middleware.forEach(how);
    } catch (error) {
      this.network.settings.logger.warn("howdah: middleware has failed", { error });
    }
  }
}
