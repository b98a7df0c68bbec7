"""Addresses of brokers, and settings of connections to them: tokens, TLS, timeouts."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypedDict, Union, cast
from urllib.parse import urlsplit

import grpc
import grpc.aio

from .errors import HowdahError, invalid
from .messages import Seconds, check_names, seconds
from .v1 import NewJob

VERSION = "0.1.0"
DEFAULT_ADDRESS = "http://127.0.0.1:7432"
Addresses = Union[None, str, Sequence[str]]


class ClientOptions(TypedDict, total=False):
    """Settings of a client. A missing setting is read from its environment variable, or else has its default."""

    token: Optional[str]  #: the credential, for a broker that requires one; ``HOWDAH_TOKEN``
    token_file: Optional[str]  #: file with the token, reread when it changes; ``HOWDAH_TOKEN_FILE``
    insecure_token: bool  #: allow the token over http:// to other machines; ``HOWDAH_CLIENT_INSECURE``
    tls_ca: Optional[str]  #: file of the authorities to trust, instead of the system's; ``HOWDAH_TLS_CA``
    tls_cert: Optional[str]  #: file of the client certificate; ``HOWDAH_TLS_CLIENT_CERT``
    tls_key: Optional[str]  #: file of the certificate's private key; ``HOWDAH_TLS_CLIENT_KEY``
    server_name: Optional[str]  #: the name in the broker's certificate; default: the host of the address
    connect_timeout: Seconds  #: time to connect; default 5 s
    request_timeout: Seconds  #: time for a call with its retries; default 30 s
    max_message_bytes: int  #: largest message sent or accepted, in bytes; default 16 MiB
    middleware: Sequence[Callable[[NewJob], Any]]  #: context managers around the enqueue of each job


class Token:
    """The token that the client sends with each call. Its text is secret: no error, log or repr contains it."""

    def __init__(self, text: Optional[str], path: Optional[str]) -> None:
        self._path, self._seen, self._text = path, (0, 0, 0), ""
        if text is not None:
            self._text = self._checked(text, "token")
        elif path is not None:
            self.read()

    def __bool__(self) -> bool:
        return bool(self._text)

    def read(self) -> str:
        """Returns the token. Rereads the file if it has changed.

        If the file cannot be read, the previous token is returned, because it may still be valid.
        """
        if self._path is not None:
            try:
                stat = os.stat(self._path)
                seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if seen != self._seen:
                    self._text = self._checked(Path(self._path).read_text("utf-8").strip(), "token_file")
                    self._seen = seen
            except (OSError, ValueError, HowdahError) as error:
                if not self._text:
                    raise invalid("token_file", f"{self._path}: {error}") from None
        return self._text

    @staticmethod
    def _checked(text: str, field: str) -> str:
        if not text or not all("!" <= character <= "~" for character in text):
            raise invalid(field, "the token is empty, or contains spaces or characters other than printable ASCII")
        return text


def _read(path: Optional[str], field: str) -> Optional[bytes]:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise invalid(field, f"{path}: {error.strerror}") from None


def _system_authorities() -> Optional[bytes]:
    """Returns the authorities that this machine trusts.

    gRPC for Python includes a separate list, which lacks authorities that a company has installed.
    """
    paths = ssl.get_default_verify_paths()
    known = (
        paths.cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    )
    for path in known:
        if path and os.path.exists(path):
            return Path(path).read_bytes()
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode() or None


# Id of the process that has used gRPC. Its threads do not exist in a process that is forked later, where calls would hang.
_grpc_process = 0


class Broker:
    """The address of a broker, and the channel for unary calls to it."""

    def __init__(self, address: str, token: bool, options: ClientOptions) -> None:
        self.name = address = address.strip()
        url = urlsplit(address if "://" in address else f"http://{address}")
        try:
            host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        except ValueError as error:
            raise invalid("address", f"{address!r}: {error}") from None
        if url.scheme not in ("http", "https") or not host or " " in host:
            raise invalid("address", f"{address!r} is not host:port, http://host:port or https://host:port")
        if token and url.scheme == "http" and not options.get("insecure_token") and not _is_loopback(host):
            hint = "use https://, or set insecure_token where the network itself encrypts"
            text = f"{address!r}: a token over http:// is readable by anyone on the network path: {hint}"
            raise invalid("address", text)
        self.host, self.port = host, port
        self.target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.credentials = self._credentials(options) if url.scheme == "https" else None
        limit = options.get("max_message_bytes", 16 << 20)
        self.options: List[Tuple[str, Any]] = [
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_send_message_length", limit),
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_metadata_size", 64 << 10),
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            # Despite its name, gRPC also uses `min_reconnect_backoff_ms` as the timeout of one attempt to connect.
            (
                "grpc.min_reconnect_backoff_ms",
                int(seconds(options.get("connect_timeout", 5.0), "connect_timeout") * 1_000),
            ),
            ("grpc.primary_user_agent", f"howdah-python/{VERSION}"),
        ]
        if options.get("server_name"):
            self.options.append(("grpc.ssl_target_name_override", options["server_name"]))
        self.checked = False
        self._channel: Optional[grpc.aio.Channel] = None

    @staticmethod
    def _credentials(options: ClientOptions) -> grpc.ChannelCredentials:
        authorities = _read(options.get("tls_ca"), "tls_ca") or _system_authorities()
        key, certificate = _read(options.get("tls_key"), "tls_key"), _read(options.get("tls_cert"), "tls_cert")
        if (key is None) != (certificate is None):
            raise invalid("tls_cert", "only one of tls_cert and tls_key is set: set both")
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def _check_process(self) -> None:
        global _grpc_process
        _grpc_process = _grpc_process or os.getpid()
        if _grpc_process != os.getpid():
            hint = "use clients only after a fork, or start processes with the method spawn"
            text = (
                f"{self.name}: gRPC does not work here, because this process was forked from one that used it: {hint}"
            )
            raise HowdahError(text, grpc.StatusCode.FAILED_PRECONDITION)

    def _dial(self, library: Any) -> Any:
        self._check_process()
        options = [*self.options, ("grpc.use_local_subchannel_pool", 1)]
        if self.credentials is None:
            return library.insecure_channel(self.target, options)
        return library.secure_channel(self.target, self.credentials, options)

    def dial(self) -> grpc.aio.Channel:
        """Returns a channel with a new connection.

        A stream never reuses a connection: after a stream has broken, gRPC may not have detected yet that the
        connection is dead.
        """
        return cast(grpc.aio.Channel, self._dial(grpc.aio))

    def dial_blocking(self) -> grpc.Channel:
        """Returns a channel with a new connection, for use without asyncio."""
        return cast(grpc.Channel, self._dial(grpc))

    @property
    def channel(self) -> grpc.aio.Channel:
        self._check_process()
        if self._channel is None:
            self._channel = self.dial()
        return self._channel

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def from_environment(addresses: Addresses, options: ClientOptions) -> Tuple[List[str], ClientOptions]:
    """Completes addresses and options from the environment variables that the command line also reads."""
    env = os.environ.get
    given = addresses if addresses is not None else env("HOWDAH_SERVER") or DEFAULT_ADDRESS
    listed = [part for text in ([given] if isinstance(given, str) else given) for part in text.split(",")]
    check_names(options, ClientOptions.__annotations__, "a client")
    found: ClientOptions = {**options}
    if found.get("token") is not None and found.get("token_file") is not None:
        raise invalid("token", "token and token_file contradict each other: give one")
    if found.get("token") is None and found.get("token_file") is None:
        found["token"], found["token_file"] = env("HOWDAH_TOKEN") or None, env("HOWDAH_TOKEN_FILE") or None
        if found["token"] and found["token_file"]:
            raise invalid("token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set: unset one")
    insecure = env("HOWDAH_CLIENT_INSECURE", "").lower() not in ("", "0", "n", "no", "f", "false", "off")
    found["insecure_token"] = found.get("insecure_token", insecure)
    found["tls_ca"] = found.get("tls_ca") or env("HOWDAH_TLS_CA") or None
    found["tls_cert"] = found.get("tls_cert") or env("HOWDAH_TLS_CLIENT_CERT") or None
    found["tls_key"] = found.get("tls_key") or env("HOWDAH_TLS_CLIENT_KEY") or None
    return listed, found
