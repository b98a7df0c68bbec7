/** Settings of a client, from options and the environment. They include certificates and the token. */
import { readFileSync } from "node:fs";
import type { SecureClientSessionOptions } from "node:http2";
import * as tls from "node:tls";
import { chain, invalid, wrong } from "./calls.js";
import { type Duration, milliseconds } from "./duration.js";
import { checkOptions, type Kinds } from "./given.js";

/** The version of this package. */
export const VERSION = "0.1.0";

/** @internal The name and version of this package, for operators. */
export const CLIENT_NAME = `howdah-js/${VERSION}`;

/** Destination of the client's logs, such as `console`. Tokens are never logged. */
export type Logger = Pick<Console, "debug" | "info" | "warn" | "error">;

/** Certificates for `https://` addresses, as PEM. */
export interface TlsOptions {
  /** The authorities to trust, instead of the system's. Default: the file that `HOWDAH_TLS_CA` names. */
  ca?: string | Buffer;
  /** The client certificate. Default: the file that `HOWDAH_TLS_CLIENT_CERT` names. */
  cert?: string | Buffer;
  /** The private key of the client certificate. Default: the file that `HOWDAH_TLS_CLIENT_KEY` names. */
  key?: string | Buffer;
  /** The name in the broker's certificate. Default: the host of the address. */
  serverName?: string;
}

/** Settings of a client. A missing option is read from its environment variable, or else has its default. */
export interface ClientOptions {
  /** Brokers of one database: `host:port`, `http://…` or `https://…`. Default: `HOWDAH_SERVER`, or `127.0.0.1:7432`. */
  servers?: string | readonly string[];
  /** The token that is sent with each call. Default: `HOWDAH_TOKEN`. */
  token?: string;
  /** A file with the token, reread every 10 s and when a broker refuses the token. Default: `HOWDAH_TOKEN_FILE`. */
  tokenFile?: string;
  /**
   * Allows the token over `http://` to other machines, which exposes it to the network. Default:
   * `HOWDAH_CLIENT_INSECURE`.
   */
  insecureToken?: boolean;
  /** Certificates. Default: the system's authorities, and no client certificate. */
  tls?: TlsOptions;
  /** Timeout of an attempt to connect, including TLS. Default: 5 s. */
  connectTimeout?: Duration;
  /** Timeout of a call, including its retries. Default: 30 s. */
  requestTimeout?: Duration;
  /** Interval of HTTP/2 PINGs on a connection in use. Default: 30 s. */
  keepalive?: Duration;
  /** The largest message sent or accepted, in bytes. Default: 16 MiB. */
  maxMessageBytes?: number;
  /** Destination of logs. Default: warnings and errors go to the console. */
  logger?: Logger;
}

const CLIENT_OPTIONS: Kinds<ClientOptions> = {
  // Errors do not show the token.
  ...{ servers: "any", token: "any", tokenFile: "text", insecureToken: "flag", tls: "object" },
  ...{ connectTimeout: "duration", requestTimeout: "duration", keepalive: "duration" },
  ...{ maxMessageBytes: "count", logger: "object" },
};
const TLS_OPTIONS: Kinds<TlsOptions> = { ca: "any", cert: "any", key: "any", serverName: "text" };

/** @internal All settings of a client, with defaults filled in. */
export interface Settings extends Required<Pick<ClientOptions, "maxMessageBytes" | "logger">> {
  connectTimeoutMs: number;
  requestTimeoutMs: number;
  keepaliveMs: number;
  addresses: URL[];
  credential: Credential;
  tls: SecureClientSessionOptions;
}

const quiet = () => {};
const LOGGER: Logger = { debug: quiet, info: quiet, warn: console.warn, error: console.error };

/** @internal Removes fields that are undefined, because they would replace the defaults when objects are merged. */
export function defined<T extends object>(options: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [K in keyof T]: Exclude<T[K], undefined> };
}

/** @internal Combines options, the environment and the defaults. */
export function resolve(options: ClientOptions): Settings {
  checkOptions(options, CLIENT_OPTIONS, "an option of a client");
  if (options.tls) checkOptions(options.tls, TLS_OPTIONS, "an option of tls", "tls");
  const { HOWDAH_SERVER, HOWDAH_TOKEN, HOWDAH_TOKEN_FILE, HOWDAH_CLIENT_INSECURE } = process.env;
  const { servers = HOWDAH_SERVER || "127.0.0.1:7432", token, tokenFile } = options;
  const { connectTimeout = 5_000, requestTimeout = 30_000, keepalive = 30_000 } = options;
  const { maxMessageBytes = 16 << 20, logger = LOGGER } = options;
  const list = [servers].flat();
  const isText = list.every((each: unknown) => typeof each === "string");
  if (!isText) throw wrong("servers", servers, "give host:port, or an array of such texts");
  const isGiven = token !== undefined || tokenFile !== undefined;
  if (!isGiven && HOWDAH_TOKEN && HOWDAH_TOKEN_FILE)
    throw invalid("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set: unset one");
  const credential = isGiven ? new Credential(token, tokenFile) : new Credential(HOWDAH_TOKEN, HOWDAH_TOKEN_FILE);
  const insecure = options.insecureToken ?? !/^(|0|n|no|f|false|off)$/i.test(HOWDAH_CLIENT_INSECURE ?? "");
  const addresses = list
    .flatMap((text) => text.split(","))
    .map((text) => address(text.trim(), credential.token !== undefined && !insecure));
  const isTls = addresses.some((url) => url.protocol === "https:");
  return {
    ...{ addresses, credential, maxMessageBytes, logger },
    connectTimeoutMs: milliseconds(connectTimeout, "connectTimeout"),
    requestTimeoutMs: milliseconds(requestTimeout, "requestTimeout"),
    keepaliveMs: milliseconds(keepalive, "keepalive"),
    tls: isTls ? certificates(options.tls ?? {}) : {},
  };
}

function address(text: string, isSecret: boolean): URL {
  const full = text.includes("://") ? text : `http://${text}`;
  const url = URL.canParse(full) ? new URL(full) : undefined;
  if (!url?.hostname || !/^https?:$/.test(url.protocol))
    throw invalid("servers", `"${text}" is not host:port, http://host:port or https://host:port`);
  const isLocal = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname);
  if (isSecret && url.protocol === "http:" && !isLocal)
    throw invalid(
      "servers",
      `${text}: a token over http:// is readable by anyone on the network path: use https://, or set insecureToken ` +
        "where the network itself encrypts",
    );
  return url;
}

function read(path: string | undefined, field: string): Buffer | undefined {
  try {
    return path ? readFileSync(path) : undefined;
  } catch (error) {
    throw invalid(field, chain(error));
  }
}

function certificates(options: TlsOptions): SecureClientSessionOptions {
  const { HOWDAH_TLS_CA, HOWDAH_TLS_CLIENT_CERT, HOWDAH_TLS_CLIENT_KEY } = process.env;
  const cert = options.cert ?? read(HOWDAH_TLS_CLIENT_CERT, "tls");
  const key = options.key ?? read(HOWDAH_TLS_CLIENT_KEY, "tls");
  // The client trusts the authorities built into Node and, from Node 22.15 on, the system's authorities.
  const system: typeof tls & { getCACertificates?: (kind: string) => string[] } = tls;
  const roots = system.getCACertificates?.("system").concat(tls.rootCertificates);
  const ca = options.ca ?? read(HOWDAH_TLS_CA, "tls") ?? roots;
  const secret = cert && key ? { cert, key } : {};
  if (!cert !== !key) throw invalid("tls", "only one of the client certificate and its key is set: set both");
  return { ...secret, ...(ca && { ca }), ...(options.serverName && { servername: options.serverName }) };
}

/** @internal The token, from an option or from a file that may be replaced while the program runs. */
export class Credential {
  #token: string | undefined;
  #readAt = performance.now();

  constructor(
    token: string | undefined,
    private readonly file: string | undefined,
  ) {
    this.#token = read(file, "token_file")?.toString().trim() ?? (token || undefined);
    if (this.#token !== undefined && !/^[\x21-\x7e]+$/.test(this.#token))
      throw invalid("token", "the token is empty, or contains spaces or characters other than printable ASCII");
  }

  get token(): string | undefined {
    if (performance.now() - this.#readAt > 10_000) this.renew();
    return this.#token;
  }

  /** Rereads the file. Returns whether the token has changed. */
  renew(): boolean {
    const before = this.#token;
    this.#readAt = performance.now();
    try {
      this.#token = read(this.file, "token_file")?.toString().trim() || before;
    } catch {
      // The file cannot be read: keeps the previous token, which may still be valid.
    }
    return this.#token !== before;
  }
}
