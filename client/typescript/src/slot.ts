/** The running handlers of one task type, and the jobs that wait for a free slot. */
import type { Entry } from "./ledger.js";
import type { OutcomeMessage } from "./outcome.js";

/** @internal */
export class Slot {
  #running = 0;
  readonly #queue: Entry[] = [];

  constructor(
    readonly name: string,
    public limit: number,
    private readonly run: (entry: Entry) => Promise<OutcomeMessage>,
    private readonly finished: (entry: Entry, outcome: OutcomeMessage) => void,
  ) {}

  /** Runs the handler of the job now or, if no slot is free, when another handler has ended. */
  take(entry: Entry): void {
    this.#queue.push(entry);
    this.#fill();
  }

  resize(limit: number): void {
    this.limit = limit;
    this.#fill();
  }

  #fill(): void {
    while (this.#running < this.limit) {
      const entry = this.#queue.shift();
      if (!entry) return;
      // Skips a job whose lease ended while it waited for a slot.
      if (entry.state === "queued") void this.#start(entry);
    }
  }

  async #start(entry: Entry): Promise<void> {
    entry.state = "running";
    this.#running++;
    const outcome = await this.run(entry);
    this.#running--;
    this.finished(entry, outcome);
    this.#fill();
  }
}
