/** The session of a worker over all of its streams: connects, serves, reconnects and stops. */
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, createClient } from "@connectrpc/connect";
import { Backoff, HowdahError, repeating } from "./calls.js";
import { type Duration, duration } from "./duration.js";
import * as pb from "./gen/index.js";
import { fieldsOf } from "./given.js";
import { type Entry, Ledger } from "./ledger.js";
import type { Network } from "./network.js";
import { type CancelReason, RELEASE } from "./outcome.js";
import { PendingRequests } from "./requests.js";
import type { Slot, Slots } from "./slots.js";
import { Stream } from "./stream.js";
import { UnarySettler } from "./unary.js";

const ZERO = { received: 0, acked: 0, failed: 0, snoozed: 0, released: 0, lost: 0, cancelled: 0, reconnects: 0 };

/** Counters of a worker. Outcomes count once the broker has confirmed them. */
export type WorkerReport = typeof ZERO & { unconfirmed: number };

/** Progress of a job for operators, and a checkpoint for its next attempt. */
export type Progress = Partial<Pick<pb.ProgressReport, "fraction" | "text" | "checkpoint">>;

/** @internal Checks a progress report. An invalid one would break the stream. */
export const progressOf = (report: Progress): Progress =>
  fieldsOf(pb.ProgressReportSchema, report, "an option of a report", { names: ["fraction", "text", "checkpoint"] });

/** @internal */
export interface SessionConfig {
  readonly slots: Slots;
  readonly windowBytes: number;
  readonly maxMessageBytes: number;
  readonly labels: Record<string, string>;
  readonly onConnected: (broker: string) => void;
  readonly liveness?: Duration | undefined;
}

/**
 * Time that handlers have to end after a stop has told them to, and time that the broker then has to confirm the
 * releases.
 */
const [HANDLER_MS, CONFIRM_MS] = [1_000, 5_000];

/** @internal */
export class Session {
  readonly report: WorkerReport = { ...ZERO, unconfirmed: 0 };
  readonly ledger = new Ledger();
  readonly extensions = new PendingRequests<pb.Extension>();
  readonly reports = new PendingRequests<pb.ProgressReport>();
  readonly #unary: UnarySettler;
  /** The broker of the current stream, or of the last one if no stream is open. */
  readonly broker: { url: URL };
  isStopping = false;
  readonly #quit = new AbortController();
  readonly #backoff = new Backoff();
  readonly #resendBackoff = new Backoff();
  #resendTimer: NodeJS.Timeout | undefined;
  #lostTimer: NodeJS.Timeout | undefined;
  #handBackTimer: NodeJS.Timeout | undefined;
  #stream: Stream | undefined;
  #streams = 0;
  #id = "";
  #graceMs = 10_000;
  /** Time of the last log line about a blocked event loop. */
  #blockedAt = -Infinity;

  constructor(
    readonly network: Network,
    private readonly config: SessionConfig,
  ) {
    this.broker = { url: network.url(network.current) };
    this.#unary = new UnarySettler(this, this.#quit.signal);
  }

  /** Runs until the worker has stopped. Fails if the broker refuses the worker. */
  async run(): Promise<WorkerReport> {
    try {
      return await this.#serveAll();
    } finally {
      this.ledger.giveUp();
    }
  }

  async #serveAll(): Promise<WorkerReport> {
    const { logger } = this.network.settings;
    for (let broker = this.network.current; !this.#quit.signal.aborted; broker++) {
      let pause = 0;
      try {
        pause = await this.#serve(broker);
      } catch (thrown) {
        if (this.#quit.signal.aborted) break;
        const error = HowdahError.from(thrown, this.network.name(broker));
        const isFinal = this.#streams === 0 || [Code.Unauthenticated, Code.PermissionDenied].includes(error.code);
        if (error.refused && isFinal && !this.network.settings.credential.renew()) throw this.#giveUp(error);
        pause = Math.max(this.#backoff.next(), error.retryAfterMs ?? 0);
        const name = this.network.name(broker);
        logger.warn(`howdah: no stream to ${name}; reconnecting`, { error: error.message });
      }
      this.update();
      await sleep(pause, undefined, { signal: this.#quit.signal }).catch(() => {});
    }
    clearTimeout(this.#lostTimer);
    clearTimeout(this.#resendTimer);
    clearTimeout(this.#handBackTimer);
    const jobs = this.ledger.unconfirmed();
    this.report.unconfirmed = jobs.length;
    if (jobs.length > 0) logger.warn("howdah: the worker ended before all outcomes were confirmed", { jobs });
    return this.report;
  }

  #giveUp(error: HowdahError): HowdahError {
    this.network.settings.logger.error("howdah: the broker refuses this worker", { error: error.message });
    this.ledger.cancelAll("lease_lost");
    this.#quit.abort();
    return error;
  }

  /** Serves one stream to its end. Returns the pause before the next stream opens, in milliseconds. */
  async #serve(broker: number): Promise<number> {
    const link = await this.network.dialThread(broker, this.#quit.signal);
    const stream = new Stream(this);
    this.broker.url = link.url;
    this.#stream = stream;
    try {
      await stream.serve(link, this.#quit.signal);
    } finally {
      this.#stream = undefined;
      link.close();
      const lost = () => this.ledger.cancelAll("lease_lost");
      if (stream.limits) this.#lostTimer = setTimeout(lost, this.#graceMs).unref();
      if (stream.worked) this.#backoff.reset();
    }
    return Math.max(0, (stream.reconnectAt ?? 0) - performance.now());
  }

  /** Maximum number of concurrent handlers, over all task types. */
  get slots(): number {
    return this.config.slots.limit;
  }

  /** Returns the content of `Subscribe`, the first message of a stream. */
  subscribe() {
    const { labels, maxMessageBytes, slots, liveness } = this.config;
    const windows = this.isStopping ? [] : Array.from(slots.types.values(), (slot) => this.#window(slot));
    return {
      sessionId: this.#id,
      held: this.ledger.held(),
      windows,
      labels,
      maxMessageBytes,
      liveness: duration(liveness, "liveness"),
    };
  }

  /** Returns the current window of a task type, which the caller sends to the broker. */
  #window(slot: Slot): pb.Window {
    slot.announced = this.config.slots.window(slot);
    const bytes = BigInt(this.config.windowBytes);
    return create(pb.WindowSchema, { taskType: slot.name, jobs: slot.announced, bytes });
  }

  /** Sends the windows that have changed. Without a stream, the next `Subscribe` has them. */
  #announceWindows(): void {
    if (!this.#stream || this.isStopping) return;
    for (const slot of this.config.slots.resized()) this.#stream.send({ case: "window", value: this.#window(slot) });
    this.update();
  }

  /**
   * Handles the broker's `Welcome`: resumes the session's leases, and resends unanswered extensions and progress
   * reports.
   */
  welcome({ sessionId, sessionGrace, broker, kept, lost }: pb.Welcome): void {
    clearTimeout(this.#lostTimer);
    if (sessionGrace) this.#graceMs = durationMs(sessionGrace);
    this.#id = sessionId;
    this.report.reconnects = this.#streams++;
    this.report.lost += this.ledger.resume(kept);
    this.#unary.start();
    for (const pending of [this.extensions, this.reports]) pending.resend(true);
    // The session id is not logged, because anyone who knows it could take over the session.
    this.network.settings.logger.info("howdah: connected", { broker, kept: kept.length, lost: lost.length });
    this.config.onConnected(broker);
  }

  /** Logs that a handler blocked the event loop, and with it all other handlers. Logs at most once a minute. */
  logBlocked(ms: number): void {
    const now = performance.now();
    if (now - this.#blockedAt < 60_000) return;
    this.#blockedAt = now;
    const hint = "use a worker thread or a process for work that does not await";
    this.network.settings.logger.warn(`howdah: a handler blocked the event loop for ${(ms / 1_000).toFixed(1)} s`, {
      hint,
    });
  }

  /** Accepts a job that the broker has sent. */
  take(job: pb.LeasedJob): void {
    const entry = this.ledger.add(job);
    if (!entry) return;
    this.report.received++;
    const slot = this.config.slots.types.get(job.taskType);
    // The broker may have sent the job before it knew that its type is paused here.
    if (slot && slot.limit > 0 && !this.isStopping) slot.queue.push(entry);
    else this.ledger.end(entry, RELEASE);
    this.#fill();
  }

  /** Starts waiting jobs while there are slots. */
  #fill(): void {
    const { slots } = this.config;
    for (let next = slots.next(); next; next = slots.next()) void this.#start(next.slot, next.entry);
    const due = slots.nextHandBack;
    if (due !== undefined) this.#handBackTimer ??= setTimeout(() => this.#handBack(), due - performance.now());
    if (slots.isExact) this.#announceWindows();
  }

  async #start(slot: Slot, entry: Entry): Promise<void> {
    entry.state = "running";
    const outcome = await slot.run(entry);
    if (this.config.slots.ended(slot, performance.now())) this.#announceWindows();
    this.#fill();
    this.ledger.finish(entry, outcome);
    this.update();
  }

  /** Releases the jobs that have waited too long, so that other workers can run them. */
  #handBack(): void {
    this.#handBackTimer = undefined;
    for (const entry of this.config.slots.handBack(performance.now())) this.ledger.end(entry, RELEASE);
    this.#fill();
    this.update();
  }

  /**
   * Handles the broker's answer to an outcome. Returns whether the answer is final, so that the outcome is not sent
   * again.
   */
  settled(result: pb.SettleResult): boolean {
    const answer = this.ledger.settled(result);
    const { id: job, message } = result;
    if (answer === "later") this.resendLater();
    if (answer === "refused" || answer === "lost")
      this.network.settings.logger.warn(`howdah: the broker did not store an outcome: ${answer}`, { job, message });
    if (!answer || answer === "later" || answer === "refused") return false;
    this.report[answer]++;
    this.#resendBackoff.reset();
    return true;
  }

  /** Handles the broker's message that a lease has ended. */
  cancelled(token: bigint, reason: CancelReason): void {
    if (this.ledger.cancel(token, reason)) this.report[reason === "lease_lost" ? "lost" : "cancelled"]++;
  }

  /** Starts a timer after which the outcomes and requests that the broker could not store are resent. */
  resendLater(): void {
    const resend = () => {
      this.#resendTimer = undefined;
      for (const list of [this.ledger, this.extensions, this.reports]) list.resend();
      this.update();
    };
    this.#resendTimer ??= setTimeout(resend, this.#resendBackoff.next());
  }

  /** Gets a page of the results of a job's dependencies. */
  async results({ id }: pb.LeasedJob, start: number): Promise<pb.DependencyResult[]> {
    const workers = createClient(pb.WorkerService, repeating(this.network));
    try {
      return (await workers.getResults({ id, start }, { signal: this.#quit.signal })).results;
    } catch (error) {
      throw HowdahError.from(error, "");
    }
  }

  async extend({ id, token }: pb.LeasedJob, time: Duration): Promise<void> {
    const extension = create(pb.ExtensionSchema, { id, token, duration: duration(time, "duration") });
    return this.#request(this.extensions, extension);
  }

  async reportProgress({ id, token }: pb.LeasedJob, report: Progress): Promise<void> {
    return this.#request(this.reports, create(pb.ProgressReportSchema, { ...progressOf(report), id, token }));
  }

  #request<T extends pb.Extension | pb.ProgressReport>(pending: PendingRequests<T>, message: T): Promise<void> {
    const answer = pending.add(message, this.network.settings.requestTimeoutMs);
    this.update();
    return answer;
  }

  /**
   * Sends new messages, and ends the session when a stop is complete. Must be called after each change of the session's
   * state.
   */
  update(): void {
    this.#stream?.update();
    if (!this.#stream && this.isStopping && this.ledger.isEmpty) this.#quit.abort();
  }

  resize(taskType: string, limit: number): void {
    const slot = this.config.slots.types.get(taskType);
    if (!slot) return;
    slot.limit = limit;
    const released = limit === 0 ? slot.queue.splice(0) : [];
    for (const entry of released) if (entry.state === "queued") this.ledger.end(entry, RELEASE);
    this.#fill();
    this.#announceWindows();
  }

  /**
   * Stops the worker: it takes no more jobs. After the timeout, aborts the handlers' signals, and a second later
   * releases their jobs.
   */
  async stop(timeoutMs: number): Promise<void> {
    this.isStopping = true;
    this.ledger.release("queued");
    this.update();
    const wait = (ms: number) => sleep(ms, undefined, { signal: this.#quit.signal, ref: false });
    try {
      await wait(timeoutMs);
      this.ledger.cancelAll("stop");
      await wait(HANDLER_MS);
      this.ledger.release("running");
      this.update();
      await wait(CONFIRM_MS);
      this.abort();
    } catch {
      // The session has ended before the timeouts passed, which were therefore aborted.
    }
  }

  /** Ends the session at once. Other workers get the held jobs after the session's grace time. */
  abort(): void {
    this.ledger.cancelAll("stop");
    this.#quit.abort();
  }
}
