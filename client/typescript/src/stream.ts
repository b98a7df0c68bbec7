/** One stream of a worker: what it sends, what it receives, and how it ends. */
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, createClient } from "@connectrpc/connect";
import { HowdahError } from "./calls.js";
import * as pb from "./gen/index.js";
import type { Batch } from "./ledger.js";
import type { Link } from "./network.js";
import type { CancelReason } from "./outcome.js";
import type { Session } from "./session.js";

type Message = pb.WorkRequest["message"];

/**
 * While `FEW` Settle messages are unanswered, outcomes gather until a quarter of the slots (1/`PART`) have ended with
 * one, and the next message takes them all. So messages grow under load, and few slots stand idle because their outcomes
 * wait. With `MOST`, nothing is sent until an answer comes.
 */
const [FEW, MOST, PART] = [4, 16, 4];
/** How long the broker may take to answer a Settle, to answer a drain, and to end a stream that we have closed. */
const [ANSWER_MS, DRAIN_MS, CLOSE_MS] = [60_000, 5_000, 2_000];
/** Of a broker that does not tell its limits. */
const LIMITS = create(pb.LimitsSchema, { maxMessageBytes: 4n << 20n, maxSettleOutcomes: 10_000 });

const REASONS: Record<number, CancelReason> = { 1: "cancelled", 2: "timeout", 3: "lease_lost" };

/** @internal */
export class Stream {
  /** Set by the welcome: from then on, outcomes may be sent. */
  limits: pb.Limits | undefined;
  /** It has shown that the broker works. */
  isGood = false;
  /** When to open another stream, after a drain by the broker. */
  reconnectAt: number | undefined;
  readonly #control: Message[] = [];
  readonly #abort = new AbortController();
  readonly #batches = new Set<Batch>();
  #wake = () => {};
  #isClosing = false;
  #failure: HowdahError | undefined;
  #isDrained = false;
  #drainAsked = false;
  #pingMs = 5_000;
  #heardAt = performance.now();
  #watchedAt = performance.now();

  constructor(private readonly session: Session) {}

  /** Runs to the end of the stream. Fails if it breaks. */
  async serve({ transport, url }: Link, quit: AbortSignal): Promise<void> {
    const watch = setInterval(() => this.#watch(), 1_000);
    try {
      const signal = AbortSignal.any([this.#abort.signal, quit]);
      const messages = createClient(pb.WorkerService, transport).work(this.#outgoing(), { signal });
      for await (const { message } of messages) {
        this.#heardAt = performance.now();
        this.#receive(message);
        this.session.update();
      }
      if (!this.#isClosing && this.reconnectAt === undefined) this.#fail("the broker closed the stream");
    } catch (error) {
      if (!this.#isClosing) this.#failure ??= HowdahError.from(error, url.host);
    } finally {
      clearInterval(watch);
      this.#leave(false);
    }
    if (this.#failure) throw this.#failure;
  }

  send(message: Message): void {
    this.#control.push(message);
  }

  /** Something has changed: sends what there is to send, and leaves when it is time. */
  update(): void {
    const { isStopping, ledger } = this.session;
    if (this.limits && !this.#isClosing) {
      if (isStopping && !this.#drainAsked) {
        this.#drainAsked = true;
        this.send({ case: "drain", value: create(pb.DrainRequestSchema) });
        const late = () => this.#drained();
        setTimeout(late, DRAIN_MS).unref();
      }
      const isDone = this.reconnectAt !== undefined || (isStopping && this.#isDrained);
      if (isDone && ledger.isEmpty) this.#leave(true);
    }
    this.#wake();
  }

  #drained(): void {
    this.#isDrained = true;
    this.session.update();
  }

  /** Looks once a second whether the broker still speaks. */
  #watch(): void {
    const now = performance.now();
    const wasBusy = now - this.#watchedAt > 2_000;
    this.#watchedAt = now;
    // What the broker has said while this program was busy is not read yet.
    if (wasBusy || this.#isClosing) return;
    if (now - this.#heardAt > 3 * this.#pingMs) this.#fail("the broker is silent");
    const [oldest] = this.#unanswered();
    if (oldest && now - oldest.sentAt > ANSWER_MS) this.#fail("the broker does not answer");
  }

  #fail(message: string): void {
    this.#failure = new HowdahError(message, Code.Unavailable, { broken: true });
    this.#abort.abort();
  }

  /** Ends our side and waits for the broker's, or leaves at once. */
  #leave(orderly: boolean): void {
    this.#isClosing = true;
    this.#wake();
    if (orderly) setTimeout(() => this.#abort.abort(), CLOSE_MS).unref();
    else this.#abort.abort();
  }

  async *#outgoing(): AsyncGenerator<pb.WorkRequest> {
    const subscribe = create(pb.SubscribeSchema, this.session.subscribe());
    yield create(pb.WorkRequestSchema, { message: { case: "subscribe", value: subscribe } });
    while (!this.#isClosing) {
      const message = this.#control.shift() ?? (this.limits && (this.#nextAsk() ?? this.#nextSettle(this.limits)));
      if (message) yield create(pb.WorkRequestSchema, { message });
      else
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
    }
  }

  #nextAsk(): Message | undefined {
    const extensions = this.session.extensions.next();
    if (extensions.length > 0) return { case: "extend", value: create(pb.ExtendSchema, { extensions }) };
    const reports = this.session.reports.next();
    if (reports.length > 0) return { case: "progress", value: create(pb.ProgressSchema, { reports }) };
    return undefined;
  }

  #nextSettle({ maxMessageBytes, maxSettleOutcomes }: pb.Limits): Message | undefined {
    const open = this.#unanswered().length;
    const { unsent } = this.session.ledger;
    if (open >= MOST || (open >= FEW && unsent * PART < this.session.slots)) return undefined;
    const maxBytes = Math.min(Number(maxMessageBytes), this.session.network.settings.maxMessageBytes) - 1024;
    const { outcomes, batch } = this.session.ledger.nextBatch(maxSettleOutcomes, maxBytes);
    if (outcomes.length === 0) return undefined;
    this.#batches.add(batch);
    return { case: "settle", value: create(pb.SettleSchema, { outcomes }) };
  }

  /** The Settle messages that are not fully answered, the oldest first. */
  #unanswered(): Batch[] {
    for (const batch of this.#batches) if (batch.left === 0) this.#batches.delete(batch);
    return [...this.#batches];
  }

  #receive(message: pb.WorkResponse["message"]): void {
    const { session } = this;
    switch (message.case) {
      case "welcome": {
        const { limits, pingInterval } = message.value;
        this.limits = limits ?? LIMITS;
        if (pingInterval) this.#pingMs = durationMs(pingInterval);
        session.welcome(message.value);
        break;
      }
      case "jobs":
        for (const job of message.value.jobs) session.take(job);
        break;
      case "settled":
        for (const result of message.value.results) this.isGood = session.settled(result) || this.isGood;
        break;
      case "extended":
        if (session.extensions.answered(message.value.results)) session.sendAgainLater();
        break;
      case "progressed":
        if (session.reports.answered(message.value.results)) session.sendAgainLater();
        break;
      case "cancel":
        for (const { token, reason } of message.value.jobs) session.cancelled(token, REASONS[reason] ?? "lease_lost");
        break;
      case "drain":
        this.#isDrained = true;
        this.isGood = true;
        if (message.value.reason === pb.DrainReason.SHUTDOWN) this.#reconnect(message.value);
    }
  }

  /** The broker stops: until a time, what is nearly done is settled here. */
  #reconnect({ reconnectAfter }: pb.Drain): void {
    const after = reconnectAfter ? durationMs(reconnectAfter) : 0;
    this.reconnectAt = performance.now() + after;
    setTimeout(() => this.#leave(this.session.ledger.isEmpty), after).unref();
  }
}
