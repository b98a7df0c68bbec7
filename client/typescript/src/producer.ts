/** Enqueues many jobs over one stream, in batches. */
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { Code, createClient } from "@connectrpc/connect";
import { type Batch, cost, jobsOf, newBatch, ofRequest, type Part, split } from "./batch.js";
import { Backoff, HowdahError, noting } from "./calls.js";
import { type Client, type Enqueued, enqueued } from "./client.js";
import * as pb from "./gen/index.js";
import { type JobOptions, newJob, type Task } from "./job.js";
import type { Link, Network } from "./network.js";
import { defined } from "./settings.js";

/** Limits of a {@link Producer}. */
export interface ProducerOptions {
  /** The most requests that are sent and not answered. Default: 4. */
  maxInFlight?: number;
  /** The most jobs of a request; those of one call stay together. Default: 1,000. */
  maxBatchJobs?: number;
  /** The most bytes of a request of several calls. Default: 4 MiB. */
  maxBatchBytes?: number;
  /** With so many bytes gathered and in flight, {@link Producer.ready} waits. Default: 64 MiB. */
  maxGatheredBytes?: number;
}

/** A broker that cannot reach Postgres answers within 15 s. */
const ANSWER_MS = 16_000;
const DEFAULTS = { maxInFlight: 4, maxBatchJobs: 1_000, maxBatchBytes: 4 << 20, maxGatheredBytes: 64 << 20 };

/** A pipeline of enqueues; made by {@link Client.producer}. Await {@link ready} before each of them to bound its memory. */
export class Producer {
  readonly #limits: Required<ProducerOptions>;
  readonly #broker: { url: URL };
  readonly #gathered: Part[] = [];
  readonly #again: Batch[] = [];
  readonly #sent = new Map<bigint, Batch>();
  readonly #backoff = new Backoff();
  readonly #waiting: (() => void)[] = [];
  #bytes = 0;
  #open = 0;
  #sequence = 0n;
  #pausedUntil = 0;
  #failure: Error | undefined;
  #isClosed = false;
  #running = Promise.resolve();
  #isRunning = false;
  #wake = () => {};

  /** @internal */
  constructor(
    private readonly client: Client,
    private readonly network: Network,
    options: ProducerOptions,
  ) {
    this.#broker = { url: network.url(network.current) };
    this.#limits = { ...DEFAULTS, ...defined(options) };
  }

  /** Waits until there is room for another job. */
  async ready(): Promise<void> {
    while (this.#bytes >= this.#limits.maxGatheredBytes)
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  /** Enqueues a job. When this resolves, the job is committed. */
  enqueue<P>(task: string | Task<P>, payload?: P, options?: JobOptions): Promise<Enqueued> {
    const answer = this.enqueueAll([newJob(task, payload, options)]).then(([first]) => first as Enqueued);
    answer.catch(() => {});
    return answer;
  }

  /** Enqueues several jobs: all of them or none. */
  enqueueAll(jobs: pb.NewJob[]): Promise<Enqueued[]> {
    const answer = this.client
      .around(jobs, (own) => this.#submit(own), this.#broker)
      .then((answers) => answers.map((answer, index) => enqueued(answer, jobs[index]?.key === "")));
    answer.catch(() => {});
    return answer;
  }

  /** Waits until all jobs before are answered. Fails if one of them since the last flush has failed. */
  async flush(): Promise<void> {
    while (this.#open > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure) throw failure;
  }

  /** Flushes, and closes the stream. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush().finally(() => {
      this.#wake();
      return this.#running;
    });
  }

  [Symbol.asyncDispose] = () => this.close();

  async #submit(jobs: pb.NewJob[]): Promise<pb.EnqueuedJob[]> {
    if (this.#isClosed) throw new HowdahError("the producer is closed", Code.Canceled);
    const bytes = jobs.reduce((sum, job) => sum + cost(job), 0);
    const { requestTimeoutMs } = this.network.settings;
    const part: Part = { jobs, bytes, isOver: false, resolve: () => {}, reject: () => {} };
    const answer = new Promise<pb.EnqueuedJob[]>((resolve, reject) => Object.assign(part, { resolve, reject }));
    // Whoever does not wait for the answer is told by flush.
    answer.catch((error: Error) => {
      this.#failure ??= error;
    });
    const late = () => new HowdahError(`enqueue: no answer within ${requestTimeoutMs} ms`, Code.DeadlineExceeded);
    const timer = setTimeout(() => part.reject(late()), requestTimeoutMs);
    this.#gathered.push(part);
    this.#bytes += bytes;
    this.#open++;
    this.#start();
    return answer.finally(() => {
      clearTimeout(timer);
      part.isOver = true;
      this.#bytes -= bytes;
      this.#open--;
      for (const resolve of this.#waiting.splice(0)) resolve();
    });
  }

  #start(): void {
    this.#wake();
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#running = this.#run().finally(() => {
      this.#isRunning = false;
      // A job may have come after the last look.
      if (this.#open > 0) this.#start();
    });
  }

  async #run(): Promise<void> {
    for (let broker = this.network.current; this.#open > 0; broker++) {
      let link: Link | undefined;
      this.#broker.url = this.network.url(broker);
      try {
        link = await this.network.dial(broker);
        await this.#serve(link);
      } catch (thrown) {
        const error = HowdahError.from(thrown, this.network.name(broker));
        this.#again.unshift(...this.#sent.values());
        this.#sent.clear();
        // The broker refuses a request, or the stream: single calls find out which.
        if (error.refused) await this.#callEach();
        else if (this.#open > 0) await sleep(this.#backoff.next());
      } finally {
        link?.close();
      }
    }
  }

  async #serve(link: Link): Promise<void> {
    const abort = new AbortController();
    const watch = setInterval(() => {
      const [oldest] = this.#sent.values();
      if (oldest && performance.now() - oldest.sentAt > ANSWER_MS) abort.abort();
    }, 1_000);
    try {
      const jobs = createClient(pb.JobService, link.transport);
      const answers = jobs.streamEnqueue(this.#requests(abort.signal), { signal: abort.signal });
      for await (const { sequence, jobs, error } of answers) {
        const batch = this.#sent.get(sequence);
        this.#sent.delete(sequence);
        if (batch) this.#conclude(batch, error ? ofRequest(error) : jobs);
        this.#wake();
      }
    } finally {
      clearInterval(watch);
      abort.abort();
      this.#wake();
    }
    if (!this.#isClosed) throw new HowdahError("the broker closed the stream", Code.Unavailable, { broken: true });
  }

  async *#requests(ended: AbortSignal): AsyncGenerator<pb.StreamEnqueueRequest> {
    while (!ended.aborted && !(this.#isClosed && this.#open === 0)) {
      const batch = this.#sent.size < this.#limits.maxInFlight ? this.#next() : undefined;
      if (!batch) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        continue;
      }
      const sequence = ++this.#sequence;
      batch.sentAt = performance.now();
      this.#sent.set(sequence, batch);
      yield create(pb.StreamEnqueueRequestSchema, {
        sequence,
        jobs: jobsOf(batch),
        requestKey: batch.requestKey,
      });
    }
  }

  /** The next request: one to repeat, or the gathered jobs that fit into one, in order. */
  #next(): Batch | undefined {
    while (this.#again.length > 0 && performance.now() >= this.#pausedUntil) {
      const batch = this.#again.shift();
      if (batch?.parts.some((part) => !part.isOver)) return batch;
    }
    const { maxBatchJobs, maxBatchBytes } = this.#limits;
    let [jobs, bytes, count] = [0, 0, 0];
    for (const part of this.#gathered) {
      jobs += part.jobs.length;
      bytes += part.bytes;
      if (count > 0 && (jobs > maxBatchJobs || bytes > maxBatchBytes)) break;
      count++;
    }
    const parts = this.#gathered.splice(0, count).filter((part) => !part.isOver);
    return parts.length > 0 ? newBatch(parts) : undefined;
  }

  async #callEach(): Promise<void> {
    for (let batch = this.#next(); batch; batch = this.#next()) {
      const request = { jobs: jobsOf(batch), requestKey: batch.requestKey };
      const result = await this.client.jobs.enqueueJobs(request, { contextValues: noting(this.#broker) }).then(
        ({ jobs }) => jobs,
        (error) => error as HowdahError,
      );
      this.#conclude(batch, result);
    }
  }

  #conclude(batch: Batch, result: pb.EnqueuedJob[] | HowdahError): void {
    if (Array.isArray(result)) {
      this.#backoff.reset();
      const answers = [...result];
      for (const part of batch.parts) part.resolve(answers.splice(0, part.jobs.length));
    } else if (result.retryable && result.retryAfterMs === undefined) {
      const pause = this.#backoff.next();
      this.#pausedUntil = performance.now() + pause;
      this.#again.push(batch);
      setTimeout(() => this.#wake(), pause + 1);
    } else this.#again.unshift(...split(batch, result));
  }
}
