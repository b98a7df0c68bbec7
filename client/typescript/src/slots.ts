/**
 * The slots of a worker: how many jobs run at once, in total and of each task type. The windows follow from free slots.
 * This module does no I/O.
 */
import type { Entry } from "./ledger.js";
import type { OutcomeMessage } from "./outcome.js";

/**
 * Time that a job waits for a slot of the total. Then the job goes to another worker, because its timeout counts from
 * the delivery.
 */
const LONGEST_WAIT_MS = 1_000;
/** Time without a job that waited too long, after which each type may fill all slots again. */
const EXACT_MS = 30_000;

/** @internal The handler of one task type, its running jobs, and the jobs that wait for a free slot. */
export class Slot {
  running = 0;
  readonly queue: Entry[] = [];
  /** The window that the broker knows. */
  announced = 0;
  /** Position of the last start among all starts of the worker. */
  lastStart = 0;

  constructor(
    readonly name: string,
    public limit: number,
    readonly run: (entry: Entry) => Promise<OutcomeMessage>,
  ) {}

  /** Whether a job of this type would start if the worker had another slot. */
  get waitsForTotal(): boolean {
    // Skips jobs whose leases ended while they waited.
    while (this.queue.length > 0 && this.queue[0]?.state !== "queued") this.queue.shift();
    return this.queue.length > 0 && this.running < this.limit;
  }

  get oldest(): number {
    return this.queue[0]?.arrivedAt ?? Infinity;
  }
}

/**
 * @internal The slots of all task types, which share a total.
 *
 * Windows are per task type, so that the broker may deliver more jobs than there are free slots. Such jobs wait. Most
 * handlers are short, and the next jobs are then at hand. If a job waits for `LONGEST_WAIT_MS`, it is handed back. From
 * then on the windows are exact: they have only the jobs that the worker holds and the free slots.
 */
export class Slots {
  readonly types = new Map<string, Slot>();
  isExact = false;
  #running = 0;
  #starts = 0;
  #handedBackAt = -Infinity;

  constructor(readonly total: number) {}

  /** Maximum number of concurrent handlers, over all task types. */
  get limit(): number {
    return Math.min(
      this.total,
      [...this.types.values()].reduce((sum, { limit }) => sum + limit, 0),
    );
  }

  /** Takes the job that has waited longest. Returns undefined if no job may start. */
  next(): { slot: Slot; entry: Entry } | undefined {
    const waiting = this.#running < this.total ? this.#waiting() : [];
    const slot = waiting.sort((a, b) => a.oldest - b.oldest)[0];
    const entry = slot?.queue.shift();
    if (!slot || !entry) return undefined;
    this.#running++;
    slot.running++;
    slot.lastStart = ++this.#starts;
    return { slot, entry };
  }

  /** Frees the slot of a handler. Returns whether the windows may have changed. */
  ended(slot: Slot, now: number): boolean {
    this.#running--;
    slot.running--;
    const wasExact = this.isExact;
    this.isExact &&= now - this.#handedBackAt < EXACT_MS;
    return wasExact;
  }

  /** Time at which the next job must be handed back, unless it starts before. */
  get nextHandBack(): number | undefined {
    const waiting = this.#waiting();
    return waiting.length > 0 ? Math.min(...waiting.map(({ oldest }) => oldest)) + LONGEST_WAIT_MS : undefined;
  }

  /** Takes the jobs that have waited too long for the total. */
  handBack(now: number): Entry[] {
    const entries: Entry[] = [];
    for (const slot of this.#waiting())
      while (slot.oldest + LONGEST_WAIT_MS <= now) entries.push(...slot.queue.splice(0, 1));
    if (entries.length > 0) {
      this.isExact = true;
      this.#handedBackAt = now;
    }
    return entries;
  }

  window({ limit, running, queue }: Slot): number {
    const most = Math.min(limit, this.total);
    if (!this.isExact) return most;
    const waiting = [...this.types.values()].reduce((sum, { queue }) => sum + queue.length, 0);
    const free = Math.max(0, this.total - this.#running - waiting);
    return Math.min(most, running + queue.length + free);
  }

  /**
   * Returns the types whose windows the broker does not know, the type first that has not started for longest. The
   * broker serves the first window first, so that the types take turns.
   */
  resized(): Slot[] {
    const changed = [...this.types.values()].filter((slot) => this.window(slot) !== slot.announced);
    return changed.sort((a, b) => a.lastStart - b.lastStart);
  }

  #waiting(): Slot[] {
    return [...this.types.values()].filter((slot) => slot.waitsForTotal);
  }
}
