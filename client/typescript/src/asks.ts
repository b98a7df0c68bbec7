/** Extensions and progress reports that the broker has not answered. There is no I/O here. */
import { Code } from "@connectrpc/connect";
import { HowdahError, invalid, LeaseLostError } from "./calls.js";
import * as pb from "./gen/index.js";

interface Ask<T> {
  readonly what: T;
  state: "unsent" | "sent" | "later";
  resolve(): void;
  reject(error: HowdahError): void;
}

/** @internal Extensions, or progress reports, that the broker has not answered. */
export class Asks<T extends { id: bigint; token: bigint }> {
  readonly #open = new Set<Ask<T>>();

  async add(what: T, patienceMs: number): Promise<void> {
    const ask: Ask<T> = { what, state: "unsent", resolve: () => {}, reject: () => {} };
    const answer = new Promise<void>((resolve, reject) => this.#open.add(Object.assign(ask, { resolve, reject })));
    const late = () => new HowdahError(`job ${what.id}: no answer within ${patienceMs} ms`, Code.DeadlineExceeded);
    const timer = setTimeout(() => ask.reject(late()), patienceMs);
    return answer.finally(() => {
      clearTimeout(timer);
      this.#open.delete(ask);
    });
  }

  /** The next ones to send. A message names a job once; 32 checkpoints of 64 KiB are 2 MiB. */
  next(): T[] {
    const jobs = new Set<bigint>();
    const isNext = ({ what, state }: Ask<T>) => jobs.size < jobs.add(what.id).size && state === "unsent";
    const asks = [...this.#open].filter(isNext).slice(0, 32);
    for (const ask of asks) ask.state = "sent";
    return asks.map((ask) => ask.what);
  }

  /** Takes the broker's answers. Returns whether some are to be sent again a little later. */
  answered(results: pb.SettleResult[]): boolean {
    for (const { id, token, status, message } of results) {
      const ask = [...this.#open].find((ask) => ask.state === "sent" && ask.what.token === token);
      if (!ask) continue;
      ask.state = "later";
      if (status === pb.SettleStatus.OK) ask.resolve();
      else if (status === pb.SettleStatus.INVALID) ask.reject(invalid("job", message));
      else if (status !== pb.SettleStatus.UNAVAILABLE) ask.reject(new LeaseLostError(id));
    }
    return results.some((result) => result.status === pb.SettleStatus.UNAVAILABLE);
  }

  /** Those that the broker could not store are sent again; on a new stream, all that are not answered. */
  sendAgain(all = false): void {
    for (const ask of this.#open) if (all || ask.state === "later") ask.state = "unsent";
  }
}
