/** The client. It enqueues jobs, creates producers and workers, and contains the generated clients of all services. */
import { setTimeout as sleep } from "node:timers/promises";
import {
  type CallOptions,
  Code,
  createClient,
  type Client as ServiceClient,
  type Transport,
} from "@connectrpc/connect";
import { newRequestKey } from "./batch.js";
import { Backoff, HowdahError, recordBroker, repeating } from "./calls.js";
import * as pb from "./gen/index.js";
import { checking, checkOptions, idsOf, type Kinds } from "./given.js";
import { type Broker, checkMiddleware, type Middleware } from "./handler.js";
import { type Duration, duration, milliseconds } from "./duration.js";
import {
  checkJobs,
  type Enqueued,
  enqueued,
  type EnqueueJobOptions,
  jsonMessage,
  newRequest,
  type Task,
} from "./job.js";
import { Network } from "./network.js";
import { Operations } from "./operations.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { type ClientOptions, resolve } from "./settings.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** Settings of an enqueue. */
export interface EnqueueOptions extends Pick<CallOptions, "signal"> {
  /** Timeout of the call, including its retries. Default: the client's. */
  timeout?: Duration;
  /**
   * Request key, which makes the call idempotent for 24 hours, from any process. Default: a new key, for the retries of
   * this call.
   */
  requestKey?: string;
}

/** @internal */
export const ENQUEUE_OPTIONS: Kinds<EnqueueOptions> = { timeout: "duration", requestKey: "text", signal: "signal" };

/** Settings of a wait. */
export interface WaitOptions extends Pick<CallOptions, "signal"> {
  /** Time after which the wait fails. Default: 60 s. */
  timeout?: Duration;
}

/** Enqueues jobs: a {@link Client}, or a `RecordingClient` in tests. */
export interface Enqueuer extends Pick<Client, "enqueue" | "enqueueAll"> {
  /** Returns a producer, which enqueues many jobs over one stream. */
  producer(): Pick<Producer, keyof Producer>;
}

/** A client of one or more brokers of one database. Create it once, and share it. */
export class Client extends Operations {
  /**
   * The generated client for jobs. All generated clients use this client's connections, token, deadlines and retries.
   */
  readonly jobs: ServiceClient<typeof pb.JobService>;
  /** The generated client for task types and limit keys. */
  readonly taskTypes: ServiceClient<typeof pb.TaskTypeService>;
  /** The generated client for schedules. */
  readonly schedules: ServiceClient<typeof pb.ScheduleService>;
  /** The generated client for the cluster settings. */
  readonly settings: ServiceClient<typeof pb.SettingsService>;
  /** The generated client for tokens and the audit log. */
  readonly access: ServiceClient<typeof pb.AccessService>;
  /** The generated client for bulk operations. */
  readonly bulks: ServiceClient<typeof pb.BulkService>;
  /** The generated client for listing workers, and for workers that poll with PullJobs instead of a stream. */
  readonly workers: ServiceClient<typeof pb.WorkerService>;
  /** The generated client for the stores of the broker. */
  readonly stores: ServiceClient<typeof pb.StoreService>;
  /** The transport of the generated clients. Use it for generated clients of other services. */
  readonly transport: Transport;
  readonly #network: Network;
  readonly #middleware: Middleware[];

  /** Connects at the first use, so that the broker may start later than this program. */
  constructor(options?: ClientOptions | string);
  /** @internal */
  constructor(network: Network, middleware: Middleware[]);
  constructor(options: ClientOptions | string | Network = {}, middleware: Middleware[] = []) {
    super();
    const named = typeof options === "string" ? { servers: options } : options;
    this.#network = named instanceof Network ? named : new Network(resolve(named));
    this.#middleware = middleware;
    this.transport = checking(repeating(this.#network));
    this.jobs = createClient(pb.JobService, this.transport);
    this.taskTypes = createClient(pb.TaskTypeService, this.transport);
    this.schedules = createClient(pb.ScheduleService, this.transport);
    this.settings = createClient(pb.SettingsService, this.transport);
    this.access = createClient(pb.AccessService, this.transport);
    this.bulks = createClient(pb.BulkService, this.transport);
    this.workers = createClient(pb.WorkerService, this.transport);
    this.stores = createClient(pb.StoreService, this.transport);
  }

  /** Creates a client, and connects it to the first broker that answers. */
  static async connect(options: ClientOptions | string = {}): Promise<Client> {
    const client = new Client(options);
    try {
      await client.#network.connect();
      return client;
    } catch (error) {
      await client.close();
      throw error;
    }
  }

  /**
   * Returns a client for one of the stores that a broker serves. Its calls, jobs and workers use only that store. A
   * worker of a client without a store gets jobs of all stores. Both clients share their connections and middleware, so
   * close only one of them.
   */
  inStore(name: string): Client {
    return new Client(this.#network.inStore(name), this.#middleware);
  }

  /** Adds middleware around each enqueue, and around each handler of workers that are created later. */
  use(middleware: Middleware): this {
    checkMiddleware(middleware);
    this.#middleware.push(middleware);
    return this;
  }

  /** Enqueues a job. When this resolves, the job is committed. See {@link enqueueAll}. */
  async enqueue<P>(task: string | Task<P>, payload?: P, options: EnqueueJobOptions = {}): Promise<Enqueued> {
    const { jobs, call } = newRequest(task, payload, options);
    const [first] = await this.enqueueAll(jobs, call);
    return first as Enqueued;
  }

  /**
   * Enqueues up to 10,000 jobs, made by {@link newJob}, in one transaction: all of them or none. While no broker
   * answers, it retries until its timeout. Retries never enqueue a job twice.
   */
  async enqueueAll(jobs: pb.NewJob[], options: EnqueueOptions = {}): Promise<Enqueued[]> {
    checkJobs(jobs);
    checkOptions(options, ENQUEUE_OPTIONS, "an option of an enqueue");
    const { requestKey, timeout, ...call } = options;
    if (jobs.length === 0) return [];
    const key = requestKey ?? newRequestKey();
    const used = { url: this.#network.url(this.#network.current) };
    const timeoutMs = timeout === undefined ? undefined : milliseconds(timeout, "timeout");
    const settings = { ...call, ...(timeoutMs !== undefined && { timeoutMs }), contextValues: recordBroker(used) };
    const send = async (jobs: pb.NewJob[]) => (await this.jobs.enqueueJobs({ jobs, requestKey: key }, settings)).jobs;
    const answers = await this.around(jobs, send, used, requestKey);
    return answers.map((answer, index) => enqueued(answer, requestKey === undefined && jobs[index]?.key === ""));
  }

  /** @internal Runs the middleware around an enqueue. */
  around(
    jobs: pb.NewJob[],
    send: (jobs: pb.NewJob[]) => Promise<pb.EnqueuedJob[]>,
    broker: Broker,
    requestKey?: string,
  ): Promise<pb.EnqueuedJob[]> {
    if (!this.#middleware.some(({ enqueue }) => enqueue)) return send(jobs);
    const copies = jobs.map((job) => ({ ...job, headers: { ...job.headers } }));
    const add = (next: () => Promise<pb.EnqueuedJob[]>, { enqueue }: Middleware) =>
      enqueue ? async () => enqueue(copies, next, requestKey, broker) : next;
    return this.#middleware.reduceRight(add, () => send(copies))();
  }

  /** Returns a producer, which enqueues many jobs over one stream. Reuse it, because each producer opens a stream. */
  producer(options: ProducerOptions = {}): Producer {
    return new Producer(this, this.#network, options);
  }

  /** Returns a worker, which has a separate stream. */
  worker(options: WorkerOptions = {}): Worker {
    return new Worker(this.#network, this.#middleware, options);
  }

  /**
   * Yields each job once, with its result, as soon as it is finished or dead. Fails after `timeout` (default: 60 s).
   */
  async *wait(ids: Iterable<bigint>, options: WaitOptions = {}): AsyncGenerator<pb.Job> {
    checkOptions(options, { timeout: "duration", signal: "signal" }, "an option of a wait");
    const left = new Set(idsOf(ids, "ids"));
    const { size } = this.#network;
    const timeoutMs = milliseconds(options.timeout ?? 60_000, "timeout");
    const until = performance.now() + timeoutMs;
    let [attempts, brokerWorks] = [0, false];
    const backoff = new Backoff();
    // Aborts the call if the caller leaves the `for await` loop early.
    const done = new AbortController();
    const signal = AbortSignal.any([done.signal, ...(options.signal ? [options.signal] : [])]);
    try {
      while (left.size > 0) {
        const began = performance.now();
        const [waitMs, limitMs] = waitTimes(Math.max(0, until - began), brokerWorks ? 1 : size - (attempts % size));
        try {
          const request = { ids: [...left], timeout: duration(waitMs, "timeout") };
          for await (const { job } of this.jobs.waitJobs(request, { signal, timeoutMs: limitMs })) {
            backoff.reset();
            if (job && left.delete(job.id)) yield jsonMessage(pb.JobSchema, job);
          }
          return;
        } catch (error) {
          if (!(error instanceof HowdahError) || !error.retryable || error.retryAfterMs !== undefined) throw error;
          // Only a broker sends this reason: the wait time of the call has passed. So the broker works, and the next
          // call goes to it. After other temporary errors, the next call goes to the next broker.
          brokerWorks = error.reason === "DEADLINE_EXCEEDED";
          if (!brokerWorks) attempts++;
          const remaining = until - performance.now();
          if (remaining <= 0 && brokerWorks) throw error;
          if (remaining <= 0 && attempts >= size)
            throw new HowdahError(`wait: no answer within ${timeoutMs} ms`, Code.DeadlineExceeded, { cause: error });
          if (brokerWorks && performance.now() - began > waitMs - WAIT_SLACK_MS) backoff.reset();
          else await sleep(Math.max(0, Math.min(backoff.next(), remaining)), undefined, { signal });
        }
      }
    } finally {
      done.abort();
    }
  }

  /** Closes the connections. Stop workers and close producers first. */
  async close(): Promise<void> {
    this.#network.close();
  }

  [Symbol.asyncDispose] = () => this.close();
}

/**
 * Longest wait time of a WaitJobs call, and the extra time for its answer. A wait consists of many such calls, because
 * proxies end calls after 15 s (Envoy) to a minute. Also, a lost broker is noticed only when a call gets no answer in
 * time.
 */
const [LONGEST_WAIT_CALL_MS, WAIT_SLACK_MS] = [10_000, 2_000];

/**
 * Returns the wait time and the timeout of the next WaitJobs call. The remaining time is divided among the brokers not
 * yet tried.
 */
function waitTimes(remainingMs: number, untried: number): [number, number] {
  const share = remainingMs / untried;
  const longest = LONGEST_WAIT_CALL_MS + WAIT_SLACK_MS;
  if (untried > 1)
    return [Math.min(share * 0.75, LONGEST_WAIT_CALL_MS), Math.max(WAIT_SLACK_MS / 2, Math.min(share, longest))];
  const waitMs = Math.min(share, LONGEST_WAIT_CALL_MS);
  return [waitMs, waitMs + WAIT_SLACK_MS];
}
