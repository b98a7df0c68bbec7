/** Connections to brokers. */
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { HowdahError, invalid } from "./calls.js";
import { SettingsService } from "./gen/index.js";
import type { Settings } from "./settings.js";

/** @internal One HTTP/2 connection to a broker. */
export class Link {
  readonly transport: Transport;
  readonly #manager: Http2SessionManager;

  constructor(
    private readonly settings: Settings,
    readonly url: URL,
  ) {
    // Without an interval there are no PINGs, and a dead connection would be noticed after minutes.
    const pings = { pingIntervalMs: settings.keepaliveMs, pingTimeoutMs: 20_000 };
    // The default of 64 KiB stalls a stream of jobs at each round trip.
    const options = { ...settings.tls, settings: { initialWindowSize: 8 << 20 } };
    this.#manager = new Http2SessionManager(url.origin, pings, options);
    const authorize: Interceptor = (next) => (request) => {
      const { token } = settings.credential;
      if (token !== undefined) request.header.set("authorization", `Bearer ${token}`);
      return next(request);
    };
    this.transport = createGrpcTransport({
      baseUrl: url.origin,
      sessionManager: this.#manager,
      interceptors: [authorize],
      acceptCompression: [],
      readMaxBytes: settings.maxMessageBytes,
      writeMaxBytes: settings.maxMessageBytes,
    });
  }

  /** Connects, unless it is connected. */
  async ready(signal?: AbortSignal): Promise<void> {
    const { connectTimeoutMs } = this.settings;
    const late = AbortSignal.timeout(connectTimeoutMs);
    const stop = AbortSignal.any(signal ? [late, signal] : [late]);
    const why = new ConnectError(`no connection within ${connectTimeoutMs} ms`, Code.Unavailable);
    stop.onabort = () => this.#manager.abort(why);
    const state = await this.#manager.connect();
    stop.onabort = null;
    if (state === "error") throw HowdahError.from(this.#manager.error(), `cannot reach ${this.url.host}`);
  }

  close = () => this.#manager.abort();
}

const onlyInvalid = (error: unknown) => {
  if (error instanceof HowdahError && error.field === "servers") throw error;
};

/** @internal The brokers of a client: connections for its calls, and others for its streams. */
export class Network {
  /** The broker that calls use. */
  current = 0;
  readonly #links = new Map<number, Link>();
  readonly #checked = new Set<number>();
  #database: { id: string; name: string } | undefined;

  constructor(readonly settings: Settings) {}

  get size(): number {
    return this.settings.addresses.length;
  }

  name = (broker: number) => this.url(broker).host;

  url(broker: number): URL {
    return this.settings.addresses[broker % this.size] as URL;
  }

  moveOnFrom(broker: number): void {
    if (this.current === broker % this.size) this.current = (broker + 1) % this.size;
  }

  /** Finds a broker that answers. */
  async connect(): Promise<void> {
    for (let broker = 0; ; broker++) {
      try {
        this.current = broker;
        await this.shared(broker);
        break;
      } catch (error) {
        if (broker + 1 >= this.size || (error instanceof HowdahError && error.refused)) throw error;
      }
    }
    // The others are looked at before they are used, and now, if they answer soon.
    const looks = this.settings.addresses.map((_, broker) => this.shared(broker).then(() => {}, onlyInvalid));
    await Promise.race([Promise.all(looks), sleep(500, undefined, { ref: false })]);
  }

  /** The connection that all calls to a broker share. */
  async shared(broker: number): Promise<Transport> {
    const index = broker % this.size;
    const link = this.#links.get(index) ?? new Link(this.settings, this.url(index));
    this.#links.set(index, link);
    await link.ready();
    await this.#check(index, link);
    return link.transport;
  }

  /** A new connection for a stream: the death of an old one may only be noticed by its PING. */
  async dial(broker: number, signal?: AbortSignal): Promise<Link> {
    const link = new Link(this.settings, this.url(broker));
    try {
      await link.ready(signal);
      await this.#check(broker % this.size, link);
      return link;
    } catch (error) {
      link.close();
      this.moveOnFrom(broker);
      throw HowdahError.from(error, this.name(broker));
    }
  }

  /** Jobs that were sent to a broker of another database would wait there for workers that never come. */
  async #check(index: number, link: Link): Promise<void> {
    if (this.size === 1 || this.#checked.has(index)) return;
    let id: string | null = null;
    try {
      const noteId = (header: Headers) => {
        id = header.get("howdah-database");
      };
      await createClient(SettingsService, link.transport).getSettings({}, { timeoutMs: 5_000, onHeader: noteId });
    } catch (thrown) {
      // A refusal tells it, too.
      id = ConnectError.from(thrown).metadata.get("howdah-database");
      const error = HowdahError.from(thrown, this.name(index));
      if (id === null && error.retryable) throw error;
    }
    if (id !== null) {
      this.#database ??= { id, name: this.name(index) };
      const { name } = this.#database;
      if (this.#database.id !== id)
        throw invalid("servers", `${this.name(index)} serves another database than ${name}`);
    }
    this.#checked.add(index);
  }

  close(): void {
    for (const link of this.#links.values()) link.close();
    this.#links.clear();
  }
}
