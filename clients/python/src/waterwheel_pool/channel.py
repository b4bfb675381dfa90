"""How a server is reached: address, TLS, token, keepalive, service config."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import grpc

from .messages import current


class Access(TypedDict, total=False):
    """How to reach a server, beside its address."""

    #: A bearer token, or a function that returns the present one; by default what WATERWHEEL_TOKEN_FILE has.
    token: str | Callable[[], str]
    #: TLS; also by https://, or if one of the files is given. WATERWHEEL_CA, _CERT and _KEY are their defaults.
    tls: bool
    ca_file: str
    cert_file: str
    key_file: str
    #: The host name for the server, in place of that of the address.
    authority: str
    #: A proxy or a mesh balances and checks health, so that the client does not.
    behind_proxy: bool
    #: Further channel options of gRPC, which overrule those of this package.
    options: Sequence[tuple[str, Any]]


# Finds a server that is gone, also while nothing is sent. Payloads may be larger than gRPC's default of 4 MiB.
_OPTIONS: dict[str, Any] = {
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.max_pings_without_data": 0,
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
}
_BALANCING = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": "waterwheel.v1.WorkerPoolService"},
}


class Connection:
    """A server to which channels can be opened."""

    def __init__(self, address: str, **access: Unpack[Access]) -> None:
        self.target = address.removeprefix("https://").removeprefix("http://").rstrip("/")
        is_file = self.target.startswith("unix:")
        # The core of gRPC would name the path of a socket as the authority, which is none.
        self._authority = access.get("authority", "localhost" if is_file else "")
        names = {"ca_file": "WATERWHEEL_CA", "key_file": "WATERWHEEL_KEY", "cert_file": "WATERWHEEL_CERT"}
        paths = [access.get(name) or os.environ.get(variable) for name, variable in names.items()]
        is_plain = is_file or address.startswith("http://")
        self._tls = address.startswith("https://") or access.get("tls") or any(map(bool, paths)) and not is_plain
        self._files = [Path(str(path)).read_bytes() if path and self._tls else None for path in paths]
        token, path = access.get("token"), os.environ.get("WATERWHEEL_TOKEN_FILE")
        self._token = (lambda: Path(path).read_text()) if token is None and path else token
        self._behind_proxy, self._options = access.get("behind_proxy", False), access.get("options", ())

    def channel(self, aio: Any = grpc, target: str = "", balances: bool = True) -> Any:
        """Opens a channel of `grpc` or of `grpc.aio`; `target` is one of the addresses behind the name."""
        options = dict(_OPTIONS)
        if balances and not self._behind_proxy:
            options["grpc.service_config"] = json.dumps(_BALANCING)
        if host := self._authority or (target and self.target):
            options |= {"grpc.default_authority": host, "grpc.ssl_target_name_override": host.rpartition(":")[0] or host}
        every = [*(options | dict(self._options)).items()]
        if self._tls:
            return aio.secure_channel(target or self.target, grpc.ssl_channel_credentials(*self._files), every)
        return aio.insecure_channel(target or self.target, every)

    def metadata(self, request_id: str = "") -> tuple[tuple[str, str], ...]:
        """Metadata of a call: the token, and what ties it to the job whose handler makes it."""
        job, token = current.get(), self._token() if callable(self._token) else self._token
        found = {
            "authorization": token and "Bearer " + token.strip(),
            "x-request-id": request_id or (job and job.request_id),
            "traceparent": job and job.traceparent,
        }
        return tuple((key, value) for key, value in found.items() if value)
