/** The life of a worker, over all of its streams: connect, serve, reconnect, stop. */
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { Asks } from "./asks.js";
import { Backoff, HowdahError } from "./calls.js";
import * as pb from "./gen/index.js";
import { duration } from "./job.js";
import { type Entry, Ledger } from "./ledger.js";
import type { Network } from "./network.js";
import { type CancelReason, RELEASE, type Wire } from "./outcome.js";
import type { Slot } from "./slot.js";
import { Stream } from "./stream.js";

const ZERO = { received: 0, acked: 0, failed: 0, snoozed: 0, released: 0, lost: 0, cancelled: 0, reconnects: 0 };

/** Counters of a worker. Outcomes count when the broker has confirmed them. */
export type WorkerReport = typeof ZERO & { unconfirmed: number };

/** How far a job has come, for people, and what its next attempt gets. */
export type Progress = Partial<Pick<pb.ProgressReport, "fraction" | "text" | "checkpoint">>;

/** @internal */
export interface SessionConfig {
  readonly slots: Map<string, Slot>;
  readonly windowBytes: number;
  readonly maxMessageBytes: number;
  readonly labels: Record<string, string>;
  readonly onConnected: (broker: string) => void;
}

/** How long handlers may take that were told to stop, and then the last confirmations. */
const [HANDLER_MS, CONFIRM_MS] = [1_000, 5_000];

/** @internal */
export class Session {
  readonly report: WorkerReport = { ...ZERO, unconfirmed: 0 };
  readonly ledger = new Ledger();
  readonly extensions = new Asks<pb.Extension>();
  readonly reports = new Asks<pb.ProgressReport>();
  /** Where the stream is, or was the last time. */
  readonly broker: { url: URL };
  isStopping = false;
  readonly #quit = new AbortController();
  readonly #backoff = new Backoff();
  readonly #again = new Backoff();
  #againTimer: NodeJS.Timeout | undefined;
  #lostTimer: NodeJS.Timeout | undefined;
  #stream: Stream | undefined;
  #streams = 0;
  #id = "";
  #graceMs = 10_000;

  constructor(
    readonly network: Network,
    private readonly config: SessionConfig,
  ) {
    this.broker = { url: network.url(network.current) };
  }

  /** Runs until it has stopped. Fails if the broker refuses this worker. */
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
    clearTimeout(this.#againTimer);
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

  /** Serves one stream to its end. Returns how long to wait before the next one. */
  async #serve(broker: number): Promise<number> {
    const link = await this.network.dial(broker, this.#quit.signal);
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
      if (stream.isGood) this.#backoff.reset();
    }
    return Math.max(0, (stream.reconnectAt ?? 0) - performance.now());
  }

  /** How many handlers may run at once. */
  get slots(): number {
    return Array.from(this.config.slots.values()).reduce((sum, { limit }) => sum + limit, 0);
  }

  /** The first message of a stream. */
  subscribe() {
    const { labels, maxMessageBytes, slots } = this.config;
    const windows = this.isStopping ? [] : Array.from(slots.values(), (slot) => this.#window(slot));
    return { sessionId: this.#id, held: this.ledger.held(), windows, labels, maxMessageBytes };
  }

  #window = ({ name, limit }: Slot) =>
    create(pb.WindowSchema, { taskType: name, jobs: limit, bytes: BigInt(this.config.windowBytes) });

  /** A stream has begun. */
  welcome({ sessionId, sessionGrace, broker, kept, lost }: pb.Welcome): void {
    clearTimeout(this.#lostTimer);
    if (sessionGrace) this.#graceMs = durationMs(sessionGrace);
    this.#id = sessionId;
    this.report.reconnects = this.#streams++;
    this.report.lost += this.ledger.resume(kept);
    for (const asks of [this.extensions, this.reports]) asks.sendAgain(true);
    // Without the session's id: who knows it may take over the session.
    this.network.settings.logger.info("howdah: connected", { broker, kept: kept.length, lost: lost.length });
    this.config.onConnected(broker);
  }

  /** A job has arrived. */
  take(job: pb.LeasedJob): void {
    const entry = this.ledger.add(job);
    if (!entry) return;
    this.report.received++;
    const slot = this.config.slots.get(job.taskType);
    if (slot && !this.isStopping) slot.take(entry);
    else this.ledger.end(entry, RELEASE);
  }

  /** A handler has returned. */
  finished(entry: Entry, outcome: Wire): void {
    this.ledger.finish(entry, outcome);
    this.update();
  }

  /** The broker has answered an outcome. Returns whether it could store it. */
  settled(result: pb.SettleResult): boolean {
    const answer = this.ledger.settled(result);
    const { id: job, message } = result;
    if (answer === "later") this.sendAgainLater();
    if (answer === "refused" || answer === "lost")
      this.network.settings.logger.warn(`howdah: an outcome was ${answer}`, { job, message });
    if (!answer || answer === "later" || answer === "refused") return false;
    this.report[answer]++;
    this.#again.reset();
    return true;
  }

  /** The broker has ended a lease. */
  cancelled(token: bigint, reason: CancelReason): void {
    if (this.ledger.cancel(token, reason)) this.report[reason === "lease_lost" ? "lost" : "cancelled"]++;
  }

  /** Sends again what the broker could not store. */
  sendAgainLater(): void {
    const again = () => {
      this.#againTimer = undefined;
      for (const list of [this.ledger, this.extensions, this.reports]) list.sendAgain();
      this.update();
    };
    this.#againTimer ??= setTimeout(again, this.#again.next());
  }

  extend({ id, token }: pb.LeasedJob, ms: number): Promise<void> {
    const extension = create(pb.ExtensionSchema, { id, token, duration: duration(ms) });
    return this.#ask(this.extensions, extension);
  }

  reportProgress({ id, token }: pb.LeasedJob, report: Progress): Promise<void> {
    return this.#ask(this.reports, create(pb.ProgressReportSchema, { ...report, id, token }));
  }

  #ask<T extends pb.Extension | pb.ProgressReport>(asks: Asks<T>, what: T): Promise<void> {
    const answer = asks.add(what, this.network.settings.requestTimeoutMs);
    this.update();
    return answer;
  }

  /** Something has changed. */
  update(): void {
    this.#stream?.update();
    if (!this.#stream && this.isStopping && this.ledger.isEmpty) this.#quit.abort();
  }

  resize(taskType: string, limit: number): void {
    const slot = this.config.slots.get(taskType);
    if (!slot) return;
    slot.resize(limit);
    if (!this.isStopping) this.#stream?.send({ case: "window", value: this.#window(slot) });
    this.update();
  }

  /** Takes no more jobs. After a time, handlers are told to stop, and then their jobs are released. */
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
      // It has ended before.
    }
  }

  /** Ends at once. Jobs that are held go to other workers after the session's grace time. */
  abort(): void {
    this.ledger.cancelAll("stop");
    this.#quit.abort();
  }
}
