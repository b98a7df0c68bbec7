/** Workers, which run handlers for jobs. */
import { HowdahError, invalid, refusal, wrong } from "./calls.js";
import { type Duration, milliseconds } from "./duration.js";
import { checkKind, checkOptions, type Kinds } from "./given.js";
import { checkMiddleware, decoded, type Handler, type Job, makeJob, type Middleware } from "./handler.js";
import { asTask, type Task } from "./job.js";
import type { Entry } from "./ledger.js";
import type { Network } from "./network.js";
import { returned, thrown, type OutcomeMessage } from "./outcome.js";
import { Session, type WorkerReport } from "./session.js";
import { CLIENT_NAME } from "./settings.js";
import { Slot, Slots } from "./slots.js";

/** Settings of a worker. */
export interface WorkerOptions {
  /**
   * Maximum number of concurrent handlers, over all task types. It is also the window of each type (the jobs that the
   * worker holds at once), so a worker of several types may receive more jobs than it has slots. A job that has waited
   * for a slot for a second is released for another worker. Default: 16.
   */
  concurrency?: number;
  /** Maximum payload and header bytes of each task type in the window. A larger job is never sent. Default: 64 MiB. */
  windowBytes?: number;
  /**
   * The largest message that the worker accepts, in bytes; larger jobs go to other workers. Default: the client's
   * limit.
   */
  maxMessageBytes?: number;
  /** Labels for operators, such as host or version. */
  labels?: Record<string, string>;
  /**
   * Time that a stop waits for handlers. Then the worker tells them to stop, and a second later releases their jobs.
   * Default: 30 s.
   */
  stopTimeout?: Duration;
  /**
   * The broker counts the worker as lost after this time without a message: 10 s to 1 h. A thread answers the broker's
   * heartbeat, also while a handler blocks the event loop. Default: the broker's setting, 60 s.
   */
  liveness?: Duration;
}

const WORKER_OPTIONS: Kinds<WorkerOptions> = {
  ...{ concurrency: "count", windowBytes: "size", maxMessageBytes: "size", labels: "texts" },
  ...{ stopTimeout: "duration", liveness: "duration" },
};

/** Settings of a run. */
export interface RunOptions {
  /** Stops the worker gracefully when this signal is aborted. */
  signal?: AbortSignal;
  /**
   * Stops the worker gracefully at the first of these process signals, such as `["SIGTERM", "SIGINT"]`. A second one
   * ends the program.
   */
  stopOn?: readonly NodeJS.Signals[];
}

/** Runs handlers for the jobs of one stream; created by {@link Client.worker}. */
export class Worker {
  readonly #slots: Slots;
  readonly #middleware: Middleware[];
  readonly #session: Session;
  readonly #connected: Promise<string>;
  #running: Promise<WorkerReport> | undefined;
  #onConnected: (broker: string) => void = () => {};

  /** @internal */
  constructor(
    private readonly network: Network,
    middleware: readonly Middleware[],
    private readonly options: WorkerOptions,
  ) {
    this.#middleware = [...middleware];
    checkOptions(options, WORKER_OPTIONS, "an option of a worker");
    const { labels, windowBytes = 0, maxMessageBytes = network.settings.maxMessageBytes } = options;
    this.#connected = new Promise((resolve) => {
      this.#onConnected = resolve;
    });
    this.#slots = new Slots(options.concurrency ?? 16);
    this.#session = new Session(network, {
      slots: this.#slots,
      windowBytes,
      maxMessageBytes,
      labels: { client: CLIENT_NAME, ...labels },
      onConnected: this.#onConnected,
      liveness: options.liveness,
    });
  }

  /**
   * Adds the handler of a task type. A payload that does not decode makes the job dead, like a {@link FatalError}.
   * `concurrency` is the maximum number of concurrent jobs of this type. Default: the worker's. A task type has one
   * handler.
   */
  handle<P = unknown>(task: string | Task<P>, handler: Handler<P>, options: { concurrency?: number } = {}): this {
    const { name, decode } = asTask(task);
    if (typeof handler !== "function") throw wrong("handler", handler, `give the function that runs jobs of ${name}`);
    checkOptions(options, { concurrency: "count" }, "an option of a handler");
    const { types, total } = this.#slots;
    if (types.has(name)) throw refusal("task", `${name} has a handler in this worker already: give it only one`);
    const concurrency = options.concurrency ?? total;
    const run = (entry: Entry) => this.#run(entry, (job) => handler(decoded(decode, job), job));
    types.set(name, new Slot(name, concurrency, run));
    return this;
  }

  /** Adds middleware around each handler. Middleware that was added earlier runs outside of it. */
  use(middleware: Middleware): this {
    checkMiddleware(middleware);
    this.#middleware.push(middleware);
    return this;
  }

  /**
   * Connects, and runs until the worker is stopped. When a stream breaks, it resumes the session on the next broker.
   * Fails if a broker refuses the worker.
   */
  run(options: RunOptions = {}): Promise<WorkerReport> {
    if (this.#running) return this.#running;
    try {
      checkOptions(options, { signal: "signal", stopOn: "list" }, "an option of a run");
      if (this.#slots.types.size === 0) throw invalid("handle", "the worker has no handlers: call handle before run");
    } catch (error) {
      return Promise.reject(HowdahError.from(error, ""));
    }
    const { signal, stopOn = [] } = options;
    const stop = () => void this.stop();
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    for (const name of stopOn) process.once(name, stop);
    this.#running = this.#session.run().finally(() => {
      signal?.removeEventListener("abort", stop);
      for (const name of stopOn) process.off(name, stop);
    });
    // A rejection of the returned promise must not count as unhandled, because a program need not await the promise.
    // The error is logged.
    this.#running.catch(() => {});
    return this.#running;
  }

  /** Waits until the first stream is open, and returns the broker's name. Fails if a broker refuses the worker. */
  async connected(): Promise<string> {
    const ended = this.run().then(() => "");
    return Promise.race([this.#connected, ended]);
  }

  /** Accepts no more jobs, waits for the handlers, and closes the stream when their outcomes are stored. */
  async stop(options: { timeout?: Duration } = {}): Promise<WorkerReport> {
    checkOptions(options, { timeout: "duration" }, "an option of a stop");
    void this.#session.stop(milliseconds(options.timeout ?? this.options.stopTimeout ?? 30_000, "timeout"));
    return this.#running ?? this.report;
  }

  /**
   * Ends the worker at once. Other workers get the held jobs after the session's grace time, and the attempts count.
   */
  abort = (): void => this.#session.abort();

  /**
   * Changes the concurrency of a task type, and its window. 0 pauses the type in this worker: its waiting jobs go to
   * other workers.
   */
  setConcurrency = (taskType: string, jobs: number): void => {
    checkKind(jobs, "size", "jobs");
    if (!this.#slots.types.has(taskType)) throw wrong("taskType", taskType, "name a task type with a handler");
    this.#session.resize(taskType, jobs);
  };

  get report(): WorkerReport {
    return { ...this.#session.report };
  }

  async #run(entry: Entry, handler: (job: Job) => unknown): Promise<OutcomeMessage> {
    const { job: message, abort } = entry;
    const { broker } = this.#session;
    const pending: Promise<void>[] = [];
    // The outcome waits for the answers to the handler's requests, even if the handler does not await them.
    const tracked = (answer: Promise<void>) => {
      pending.push(answer.catch(() => {}));
      return answer;
    };
    const job = makeJob(message, abort.signal, {
      results: (start) => this.#session.results(message, start),
      extend: (duration) => tracked(this.#session.extend(message, duration)),
      report: (report) => tracked(this.#session.reportProgress(message, report)),
    });
    const call = this.#middleware.reduceRight<() => Promise<unknown>>(
      (next, { handle }) => (handle ? async () => handle(job, next, broker) : next),
      async () => handler(job),
    );
    entry.onSettled = (settled) => this.#callMiddleware((each) => each.settled?.(job, settled, broker));
    let outcome: OutcomeMessage;
    let failure: unknown;
    try {
      outcome = returned(await call());
    } catch (error) {
      outcome = thrown(error, abort.signal);
      failure = error;
      if (outcome.case === "nack") this.#logFailure(job, outcome.value.noRetry, error);
    }
    entry.endedAt ??= performance.now();
    this.#callMiddleware((each) => each.decided?.(job, outcome, failure));
    await Promise.all(pending);
    return outcome;
  }

  /** Logs a failed attempt: as an error if the job is out of attempts or is not retried, otherwise as a warning. */
  #logFailure({ id, taskType, attempt, maxAttempts }: Job, noRetry: boolean, error: unknown): void {
    const { logger } = this.network.settings;
    const text = `howdah: job ${id} (${taskType}): attempt ${attempt} of ${maxAttempts} failed`;
    if (noRetry || attempt >= maxAttempts) logger.error(`${text} for good`, { error });
    else logger.warn(text, { error });
  }

  #callMiddleware(call: (middleware: Middleware) => void): void {
    try {
      this.#middleware.forEach(call);
    } catch (error) {
      this.network.settings.logger.warn("howdah: middleware has failed", { error });
    }
  }
}
