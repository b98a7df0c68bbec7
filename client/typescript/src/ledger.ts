/**
 * The ledger of a worker: the leases that it holds, and the outcomes that the broker has not confirmed. This module
 * does no I/O.
 */
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { HowdahError, LeaseLostError } from "./calls.js";
import * as pb from "./gen/index.js";
import type { Settled } from "./handler.js";
import { CancelledError, type CancelReason, nack, RELEASE, type OutcomeMessage } from "./outcome.js";

/** @internal A sent `Settle` message, with the number of its unanswered outcomes. */
export interface Batch {
  left: number;
  sentAt: number;
}

/** @internal One delivery of a job, from its arrival until the broker has confirmed its outcome. */
export interface Entry {
  readonly job: pb.LeasedJob;
  readonly abort: AbortController;
  /** Time of the delivery. */
  readonly arrivedAt: number;
  /**
   * `lost`: the lease is lost, but the handler still runs. `ended`: the outcome waits for the broker's confirmation.
   */
  state: "queued" | "running" | "lost" | "ended";
  outcome: OutcomeMessage;
  batch?: Batch | undefined;
  /** Whether the outcome is sent with `SettleJobs` instead of the stream. */
  isUnary?: boolean;
  refused?: boolean;
  /** Time at which the handler ended; undefined if no handler ran. */
  endedAt?: number;
  /** Called with the broker's answer to the outcome. */
  onSettled?: (settled: Settled) => void;
}

/**
 * Limit in bytes for resending the unanswered outcomes of a broken stream on the next stream. Above it, they are resent
 * with `SettleJobs`.
 */
const RESEND_LIMIT = 4 << 10;

const STORED = { ack: "acked", nack: "failed", snooze: "snoozed", release: "released" } as const;

/** @internal */
export class Ledger {
  /** Leases by fencing token, which is new for each delivery. */
  readonly #entries = new Map<bigint, Entry>();
  readonly #unsent = new Set<Entry>();
  readonly #later = new Set<Entry>();
  /** Outcomes that were unanswered when a stream broke, and are now sent with `SettleJobs` instead of a stream. */
  readonly unary: Entry[] = [];

  get isEmpty(): boolean {
    return this.#entries.size === 0;
  }

  /** Number of outcomes that are queued for the stream. */
  get unsent(): number {
    return this.#unsent.size;
  }

  #in(...states: Entry["state"][]): Entry[] {
    return [...this.#entries.values()].filter((entry) => states.includes(entry.state));
  }

  /** Returns the ids of jobs whose outcomes are not confirmed. */
  unconfirmed = () => this.#in("ended").map((entry) => entry.job.id);

  /** Adds a delivery. Returns undefined if the ledger already has its token. */
  add(job: pb.LeasedJob): Entry | undefined {
    if (this.#entries.has(job.token)) return undefined;
    const arrivedAt = performance.now();
    const entry: Entry = { job, abort: new AbortController(), arrivedAt, state: "queued", outcome: RELEASE };
    this.#entries.set(job.token, entry);
    return entry;
  }

  end(entry: Entry, outcome: OutcomeMessage): void {
    entry.endedAt ??= performance.now();
    Object.assign(entry, { state: "ended", outcome });
    this.#unsent.add(entry);
  }

  /** Records the outcome of a handler that has returned. */
  finish(entry: Entry, outcome: OutcomeMessage): void {
    if (entry.state === "running") this.end(entry, outcome);
    else if (entry.state === "lost") this.#entries.delete(entry.job.token);
  }

  /**
   * Handles the broker's message that a lease has ended. Returns whether the job was queued or running. Has no effect
   * on an ended job, because the broker also answers the outcome.
   */
  cancel(token: bigint, reason: CancelReason): boolean {
    const entry = this.#entries.get(token);
    if (entry?.state !== "queued" && entry?.state !== "running") return false;
    if (entry.state === "queued") this.#entries.delete(token);
    entry.state = "lost";
    entry.abort.abort(new CancelledError(entry.job.id, reason));
    return true;
  }

  /** Tells every handler to abandon its job. Outcomes that handlers return after that are still sent. */
  cancelAll(reason: CancelReason): void {
    for (const entry of this.#in("queued", "running")) entry.abort.abort(new CancelledError(entry.job.id, reason));
  }

  /** Releases the jobs that are in this state. Later outcomes of their handlers are ignored. */
  release(state: "queued" | "running"): void {
    for (const entry of this.#in(state)) this.end(entry, RELEASE);
    if (state === "running") for (const entry of this.#in("lost")) this.#entries.delete(entry.job.token);
  }

  /**
   * Returns the leases for a `Subscribe`, one per job. If a job was delivered twice, names the delivery that is queued
   * or running.
   */
  held(): pb.Lease[] {
    const jobs = new Map(this.#in("ended").map(({ job }) => [job.id, job.token]));
    for (const { job } of this.#in("queued", "running")) jobs.set(job.id, job.token);
    return Array.from(jobs, ([id, token]) => create(pb.LeaseSchema, { id, token })).slice(0, 100_000);
  }

  /**
   * Resumes the session on a new stream, where the broker has kept these leases. Unconfirmed outcomes are always
   * resent: if the broker has already stored one, it answers OK again. Returns the number of queued and running jobs
   * whose lease is lost.
   */
  resume(kept: pb.Lease[]): number {
    const tokens = new Set(kept.map((lease) => lease.token));
    this.#later.clear();
    const ended = this.#in("ended").filter(({ isUnary }) => !isUnary);
    const unanswered = ended.reduce((sum, { batch, outcome }) => sum + (batch ? size(outcome) : 0), 0);
    for (const entry of ended) {
      entry.isUnary = entry.batch !== undefined && unanswered > RESEND_LIMIT;
      entry.batch = undefined;
      if (entry.isUnary) this.unary.push(entry);
      else this.#unsent.add(entry);
    }
    const lost = this.#in("queued", "running").filter(({ job }) => !tokens.has(job.token));
    return lost.filter(({ job }) => this.cancel(job.token, "lease_lost")).length;
  }

  /** Takes the outcomes of the next `Settle` message: as many as fit, at least one, and each job once. */
  nextBatch(maxOutcomes: number, maxBytes: number): { outcomes: pb.Outcome[]; batch: Batch } {
    const batch: Batch = { left: 0, sentAt: performance.now() };
    const outcomes = new Map<bigint, pb.Outcome>();
    let bytes = 0;
    for (const entry of this.#unsent) {
      const { id, token } = entry.job;
      if (size(entry.outcome) > maxBytes)
        entry.outcome = nack(`the result is too large for a message: the limit is ${maxBytes} bytes`);
      bytes += size(entry.outcome);
      const isFull = outcomes.size >= maxOutcomes || (bytes > maxBytes && outcomes.size > 0);
      if (isFull || outcomes.has(id)) break;
      this.#unsent.delete(entry);
      entry.batch = batch;
      outcomes.set(id, create(pb.OutcomeSchema, { id, token, outcome: entry.outcome }));
    }
    batch.left = outcomes.size;
    return { outcomes: [...outcomes.values()], batch };
  }

  /** Takes the outcomes of the next `SettleJobs` call: at least one, and each job once. */
  nextUnary(maxBytes: number): Entry[] {
    const ids = new Set<bigint>();
    let bytes = 0;
    const last = this.unary.findIndex(({ job, outcome }) => {
      bytes += size(outcome);
      return (bytes > maxBytes && ids.size > 0) || ids.size === ids.add(job.id).size;
    });
    return this.unary.splice(0, last < 0 ? this.unary.length : last);
  }

  /** Queues the outcomes of a `SettleJobs` call for the stream, unless the call has settled them. */
  moveToStream(entries: Entry[]): void {
    for (const entry of entries) if (entry.isUnary) this.#unsent.add(Object.assign(entry, { isUnary: false }));
  }

  /**
   * Handles the broker's answer to an outcome. Returns the name of the report's counter to increment, `later` if the
   * outcome must be sent again, `refused` if a nack replaces it, or undefined if the outcome is unknown.
   */
  settled({ token, status, message }: pb.SettleResult) {
    const entry = this.#entries.get(token);
    if (entry?.state !== "ended") return undefined;
    if (entry.batch) entry.batch.left--;
    entry.batch = undefined;
    entry.isUnary = false;
    if (status === pb.SettleStatus.UNAVAILABLE) {
      this.#later.add(entry);
      return "later";
    }
    if (status === pb.SettleStatus.INVALID && !entry.refused) {
      entry.refused = true;
      this.end(entry, nack(`the outcome was refused: ${message}`));
      return "refused";
    }
    this.#entries.delete(token);
    this.#unsent.delete(entry);
    const invalid = status === pb.SettleStatus.INVALID;
    if (status === pb.SettleStatus.OK) notify(entry);
    else notify(entry, invalid ? failed(message, "INVALID", Code.InvalidArgument) : new LeaseLostError(entry.job.id));
    return status === pb.SettleStatus.OK ? STORED[entry.outcome.case] : "lost";
  }

  /** Tells middleware that the outcomes that are still unconfirmed have failed, because the worker ends. */
  giveUp(): void {
    const text = "the worker ended before the broker confirmed the outcome";
    for (const entry of this.#in("ended")) notify(entry, failed(text, "UNCONFIRMED", Code.Canceled));
  }

  /** Queues the outcomes that the broker could not store, to be sent again. */
  resend(): void {
    for (const entry of this.#later) this.#unsent.add(entry);
    this.#later.clear();
  }
}

const failed = (message: string, reason: string, code: Code) => new HowdahError(message, code, { reason });

function notify({ onSettled, outcome, endedAt = performance.now() }: Entry, error?: HowdahError): void {
  onSettled?.({ outcome: outcome.case, durationMs: performance.now() - endedAt, error });
}

/** @internal Approximate size of an outcome in bytes. */
export function size({ case: kind, value }: OutcomeMessage): number {
  if (kind === "ack") return value.result.length + 64;
  if (kind !== "nack") return 64;
  return Buffer.byteLength(value.error) + Buffer.byteLength(value.details) + Buffer.byteLength(value.place) + 64;
}
