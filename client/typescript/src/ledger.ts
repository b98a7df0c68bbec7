/** The leases that a worker holds, and the outcomes that the broker has not confirmed. There is no I/O here. */
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { HowdahError, LeaseLostError } from "./calls.js";
import * as pb from "./gen/index.js";
import type { Settled } from "./handler.js";
import { CancelledError, type CancelReason, nack, RELEASE, type Wire } from "./outcome.js";

/** @internal A Settle message that is not fully answered. */
export interface Batch {
  left: number;
  sentAt: number;
}

/** @internal One delivery of a job. */
export interface Entry {
  readonly job: pb.LeasedJob;
  readonly abort: AbortController;
  /** `over`: the lease is lost, and the handler still runs. `ended`: kept until the broker confirms the outcome. */
  state: "queued" | "running" | "over" | "ended";
  outcome: Wire;
  batch?: Batch | undefined;
  refused?: boolean;
  /** When its handler has ended, of those that had one. */
  endedAt?: number;
  /** Whoever wants to know what became of the outcome. */
  tell?: (settled: Settled) => void;
}

const STORED = { ack: "acked", nack: "failed", snooze: "snoozed", release: "released" } as const;

/** @internal */
export class Ledger {
  /** By token, which is new for each delivery. */
  readonly #entries = new Map<bigint, Entry>();
  readonly #unsent = new Set<Entry>();
  readonly #later = new Set<Entry>();

  get isEmpty(): boolean {
    return this.#entries.size === 0;
  }

  /** How many outcomes are to be sent. */
  get unsent(): number {
    return this.#unsent.size;
  }

  #in(...states: Entry["state"][]): Entry[] {
    return [...this.#entries.values()].filter((entry) => states.includes(entry.state));
  }

  /** The jobs whose outcomes are not confirmed. */
  unconfirmed = () => this.#in("ended").map((entry) => entry.job.id);

  /** Adds a delivery; undefined: it is there already. */
  add(job: pb.LeasedJob): Entry | undefined {
    if (this.#entries.has(job.token)) return undefined;
    const entry: Entry = { job, abort: new AbortController(), state: "queued", outcome: RELEASE };
    this.#entries.set(job.token, entry);
    return entry;
  }

  end(entry: Entry, outcome: Wire): void {
    entry.endedAt ??= performance.now();
    Object.assign(entry, { state: "ended", outcome });
    this.#unsent.add(entry);
  }

  /** A handler has returned. */
  finish(entry: Entry, outcome: Wire): void {
    if (entry.state === "running") this.end(entry, outcome);
    else if (entry.state === "over") this.#entries.delete(entry.job.token);
  }

  /** The broker has ended a lease. An outcome in flight gets its own answer. Returns whether the job was worked on. */
  cancel(token: bigint, reason: CancelReason): boolean {
    const entry = this.#entries.get(token);
    if (entry?.state !== "queued" && entry?.state !== "running") return false;
    if (entry.state === "queued") this.#entries.delete(token);
    entry.state = "over";
    entry.abort.abort(new CancelledError(entry.job.id, reason));
    return true;
  }

  /** Tells every handler to stop. What they return still counts. */
  cancelAll(reason: CancelReason): void {
    for (const entry of this.#in("queued", "running")) entry.abort.abort(new CancelledError(entry.job.id, reason));
  }

  /** Releases jobs in a state, whatever their handlers return. */
  release(state: "queued" | "running"): void {
    for (const entry of this.#in(state)) this.end(entry, RELEASE);
    if (state === "running") for (const entry of this.#in("over")) this.#entries.delete(entry.job.token);
  }

  /** The leases to name when a session is resumed: each job once, and of two deliveries the one that runs. */
  held(): pb.Lease[] {
    const jobs = new Map(this.#in("ended").map(({ job }) => [job.id, job.token]));
    for (const { job } of this.#in("queued", "running")) jobs.set(job.id, job.token);
    return Array.from(jobs, ([id, token]) => create(pb.LeaseSchema, { id, token })).slice(0, 100_000);
  }

  /**
   * A stream has begun, whose session has kept these leases. Outcomes are sent again in any case: they may have been
   * committed, and then the answer is OK again. Returns how many running jobs are lost.
   */
  resume(kept: pb.Lease[]): number {
    const tokens = new Set(kept.map((lease) => lease.token));
    this.#later.clear();
    for (const entry of this.#in("ended")) {
      entry.batch = undefined;
      this.#unsent.add(entry);
    }
    const gone = this.#in("queued", "running").filter(({ job }) => !tokens.has(job.token));
    return gone.filter(({ job }) => this.cancel(job.token, "lease_lost")).length;
  }

  /** The outcomes of the next message: as many as fit, at least one, and each job once. */
  nextBatch(maxOutcomes: number, maxBytes: number): { outcomes: pb.Outcome[]; batch: Batch } {
    const batch: Batch = { left: 0, sentAt: performance.now() };
    const outcomes = new Map<bigint, pb.Outcome>();
    let bytes = 0;
    for (const entry of this.#unsent) {
      const { id, token } = entry.job;
      if (size(entry.outcome) > maxBytes)
        entry.outcome = nack(`the result is too large: brokers take ${maxBytes} bytes`);
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

  /** Takes the broker's answer to an outcome, and says what it means. `later`: it is to be sent again. */
  settled({ token, status, message }: pb.SettleResult) {
    const entry = this.#entries.get(token);
    if (entry?.state !== "ended") return undefined;
    if (entry.batch) entry.batch.left--;
    entry.batch = undefined;
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
    if (status === pb.SettleStatus.OK) tell(entry);
    else tell(entry, invalid ? failed(message, "INVALID", Code.InvalidArgument) : new LeaseLostError(entry.job.id));
    return status === pb.SettleStatus.OK ? STORED[entry.outcome.case] : "lost";
  }

  /** The worker has ended: no more answers will come. */
  giveUp(): void {
    const text = "the worker ended before the broker confirmed the outcome";
    for (const entry of this.#in("ended")) tell(entry, failed(text, "UNCONFIRMED", Code.Canceled));
  }

  /** Outcomes that could not be stored may be sent again. */
  sendAgain(): void {
    for (const entry of this.#later) this.#unsent.add(entry);
    this.#later.clear();
  }
}

const failed = (message: string, reason: string, code: Code) => new HowdahError(message, code, { reason });

function tell({ tell, outcome, endedAt = performance.now() }: Entry, error?: HowdahError): void {
  tell?.({ outcome: outcome.case, durationMs: performance.now() - endedAt, error });
}

function size({ case: kind, value }: Wire): number {
  if (kind === "ack") return value.result.length + 64;
  return kind === "nack" ? Buffer.byteLength(value.error) + 64 : 64;
}
