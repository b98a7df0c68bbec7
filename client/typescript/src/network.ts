/** The brokers of a client, and connections to them. */
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { HowdahError, invalid, wrong } from "./calls.js";
import { SettingsService } from "./gen/index.js";
import { checkKind } from "./given.js";
import { CLIENT_NAME, type Settings } from "./settings.js";
import { StreamLink } from "./thread.js";

/**
 * Connections whose errors do not end the program. The manager stops listening to a connection when it opens the next one,
 * and the error of a broken connection may come later.
 */
class SessionManager extends Http2SessionManager {
  override async request(...[method, path, headers, options]: Parameters<Http2SessionManager["request"]>) {
    const stream = await super.request(method, path, headers, options);
    const { session } = stream;
    if (session && !session.listeners("error").includes(ignore)) session.on("error", ignore);
    return stream;
  }
}

const ignore = () => {};

/** @internal One HTTP/2 connection to a broker. */
export class Link {
  /** Transport for calls to the store of the client that opened the connection. */
  readonly transport: Transport;
  readonly #manager: SessionManager;
  readonly #transports = new Map<string, Transport>();

  constructor(
    private readonly settings: Settings,
    readonly url: URL,
    store: string,
  ) {
    // HTTP/2 PINGs detect a dead connection. Without PINGs, the detection takes minutes.
    const pings = { pingIntervalMs: settings.keepaliveMs, pingTimeoutMs: 20_000 };
    // The HTTP/2 flow-control window is enlarged, because the default of 64 KiB would stall a stream of jobs at each
    // round trip.
    const options = { ...settings.tls, settings: { initialWindowSize: 8 << 20 } };
    this.#manager = new SessionManager(url.origin, pings, options);
    this.transport = this.inStore(store);
  }

  /** Returns a transport on this connection for calls to a store. It adds the store's name and the token. */
  inStore(store: string): Transport {
    const known = this.#transports.get(store);
    if (known) return known;
    const { credential, maxMessageBytes } = this.settings;
    const address: Interceptor = (next) => (request) => {
      const { token } = credential;
      if (token !== undefined) request.header.set("authorization", `Bearer ${token}`);
      if (store !== "") request.header.set("howdah-store", store);
      request.header.set("user-agent", CLIENT_NAME);
      return next(request);
    };
    const transport = createGrpcTransport({
      baseUrl: this.url.origin,
      sessionManager: this.#manager,
      interceptors: [address],
      acceptCompression: [],
      readMaxBytes: maxMessageBytes,
      writeMaxBytes: maxMessageBytes,
    });
    this.#transports.set(store, transport);
    return transport;
  }

  /** Connects, unless the connection is already open. */
  async ready(signal?: AbortSignal): Promise<void> {
    const { connectTimeoutMs } = this.settings;
    const timeout = AbortSignal.timeout(connectTimeoutMs);
    const stop = AbortSignal.any(signal ? [timeout, signal] : [timeout]);
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

/** State shared by a client and its clients for one store. */
class Shared {
  current = 0;
  database: { id: string; name: string } | undefined;
  readonly links = new Map<number, Link>();
  readonly checked = new Set<number>();
}

/** @internal The brokers of a client: connections for its calls, and separate ones for its streams. */
export class Network {
  constructor(
    readonly settings: Settings,
    private readonly store = "",
    private readonly common = new Shared(),
  ) {}

  /** Returns a network with the same connections, for calls to one store. */
  inStore(name: string): Network {
    // The header `howdah-store` permits only printable ASCII, like all text metadata of gRPC. The broker checks whether
    // the store exists.
    checkKind(name, "text", "store");
    if (!/^[\x20-\x7e]*$/.test(name)) throw wrong("store", name, "give the name of a store");
    return new Network(this.settings, name, this.common);
  }

  /** Index of the broker that calls use now. */
  get current(): number {
    return this.common.current;
  }

  get size(): number {
    return this.settings.addresses.length;
  }

  name = (broker: number) => this.url(broker).host;

  url(broker: number): URL {
    return this.settings.addresses[broker % this.size] as URL;
  }

  moveOnFrom(broker: number): void {
    if (this.current === broker % this.size) this.common.current = (broker + 1) % this.size;
  }

  /** Tries the brokers in order until one answers. */
  async connect(): Promise<void> {
    for (let broker = 0; ; broker++) {
      try {
        this.common.current = broker;
        await this.shared(broker, true);
        break;
      } catch (error) {
        if (broker + 1 >= this.size || (error instanceof HowdahError && error.refused)) throw error;
      }
    }
    // Also checks the databases of the other brokers. If a broker does not answer within 500 ms, its database is
    // checked before the broker's first use.
    const checks = this.settings.addresses.map((_, broker) => this.shared(broker).then(() => {}, onlyInvalid));
    await Promise.race([Promise.all(checks), sleep(500, undefined, { ref: false })]);
  }

  /**
   * Returns the transport on the connection that all calls to a broker share. With `probes`, checks that a broker answers
   * there.
   */
  async shared(broker: number, probes = false): Promise<Transport> {
    const index = broker % this.size;
    const { links } = this.common;
    const link = links.get(index) ?? new Link(this.settings, this.url(index), this.store);
    links.set(index, link);
    await link.ready();
    await this.#check(index, link, probes);
    return link.inStore(this.store);
  }

  /** Opens a new connection for a producer, because an existing one may be dead without the client having noticed. */
  dial(broker: number, signal?: AbortSignal): Promise<Link> {
    return this.#dialed(new Link(this.settings, this.url(broker), this.store), broker, signal);
  }

  /** Opens a new connection for a worker's stream. A separate thread serves the connection. */
  dialThread(broker: number, signal?: AbortSignal): Promise<StreamLink> {
    return this.#dialed(new StreamLink(this.settings, this.url(broker), this.store), broker, signal);
  }

  async #dialed<L extends Link | StreamLink>(link: L, broker: number, signal?: AbortSignal): Promise<L> {
    try {
      await link.ready(signal);
      if (link instanceof Link) await this.#check(broker % this.size, link);
      else if (this.size > 1 && !this.common.checked.has(broker % this.size)) await this.shared(broker);
      return link;
    } catch (error) {
      link.close();
      this.moveOnFrom(broker);
      throw HowdahError.from(error, this.name(broker));
    }
  }

  /**
   * Checks that all brokers serve one database. With several databases, jobs could wait in a database without workers.
   */
  async #check(index: number, link: Link, probes = false): Promise<void> {
    if ((this.size === 1 && !probes) || this.common.checked.has(index)) return;
    let id: string | null = null;
    try {
      const noteId = (header: Headers) => {
        id = header.get("howdah-database");
      };
      await createClient(SettingsService, link.transport).getSettings({}, { timeoutMs: 5_000, onHeader: noteId });
    } catch (thrown) {
      // The broker names its database even if it refuses the call.
      id = ConnectError.from(thrown).metadata.get("howdah-database");
      const error = HowdahError.from(thrown, this.name(index));
      if (id === null && error.broken) throw error.within("", "; a broker has its gRPC port at 7432 by default");
      if (id === null && error.retryable) throw error;
    }
    if (id !== null) {
      const first = (this.common.database ??= { id, name: this.name(index) });
      if (first.id !== id) throw invalid("servers", `${this.name(index)} serves another database than ${first.name}`);
    }
    this.common.checked.add(index);
  }

  close(): void {
    for (const link of this.common.links.values()) link.close();
    this.common.links.clear();
  }
}
