/** The handlers of one task type that run, and the jobs that wait for one of them to end. */
import type { Entry } from "./ledger.js";
import type { Wire } from "./outcome.js";

/** @internal */
export class Slot {
  #running = 0;
  readonly #queue: Entry[] = [];

  constructor(
    readonly name: string,
    public limit: number,
    private readonly run: (entry: Entry) => Promise<Wire>,
    private readonly finished: (entry: Entry, outcome: Wire) => void,
  ) {}

  /** Runs the job, now or when a handler has ended. */
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
      // It may have been cancelled while it waited.
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
