"""`PolicyServer`: listens, loads and follows weights, expires sessions, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial

import grpc
import structlog
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from actors.codec import InvalidWeights
from actors.errors import UserError
from actors.kernels.cache import is_compiled
from actors.metrics.http import MetricsServer
from actors.serving.external import ExternalConfig
from actors.serving.methods import SERVICE
from actors.serving.options import ServeOptions, server_channel_options
from actors.serving.server.calls import Calls
from actors.serving.server.credentials import CertificateReloader, TokenFile
from actors.serving.server.handlers import Handlers
from actors.serving.server.metrics import ServingMetrics
from actors.serving.server.models import ModelVersions, ServedRule
from actors.serving.server.service import PolicyService
from actors.serving.server.training import EpisodeCollector, EpisodeSink
from actors.sessions.session_state import read_key
from actors.transport.base import Unreachable
from actors.transport.redis_weights import RedisWeights
from actors.types.weights import WeightSet

POLL_S = 0.2  # between two checks for new weights
SWEEP_S = 1.0  # between two checks for expired sessions, and calls whose token is no longer valid
MAX_CONNECTIONS = 4096  # fewer where the limit of open files does not allow as many
RESERVED_FILES = 128  # for everything but connections: weights, the store, the token file, the metrics port
FLUSH_S = 0.5  # grace period of gRPC for the last answers

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


PolicySource = RedisWeights | WeightSet | ServedRule
"""What a server serves: the store whose newest weights it follows, or weights or a rule that never change."""


class PolicyServer:
    """The policy server. Await `start`, which sets `address`, then `run`, which returns after `stop` is set."""

    def __init__(
        self,
        options: ServeOptions,
        source: PolicySource,
        external: ExternalConfig | None = None,
        sink: EpisodeSink | None = None,
        key: bytes | None = None,
    ) -> None:
        """With `external` and `sink`, training sessions can be opened, and their episodes go to `sink`. `key` signs
        exported sessions instead of that of the options."""
        self.options, self.source, self.address = options, source, options.listen
        self.metrics = ServingMetrics()
        self.stop = asyncio.Event()
        self._log = structlog.get_logger("tamiyo.serving")
        self._key = key or read_key(options.state_key_file)
        self._tokens = TokenFile(options.token_file) if options.token_file else None
        self._collector = EpisodeCollector(external, sink, self._tokens) if external and sink else None
        self.calls = Calls(options.max_concurrent_calls, self._tokens, self.metrics)
        self.handlers = Handlers(self.calls, self.metrics)
        channel_options = server_channel_options(options, _possible_connections())
        self._server = grpc.aio.server(interceptors=[self.calls] if self._tokens else [], options=channel_options)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]

    async def start(self) -> None:
        """Listen on the address. Health is NOT_SERVING until `run` has loaded weights. Raises `UserError`."""
        self.loop = asyncio.get_running_loop()
        for name in ("", SERVICE):
            await self._health.set(name, _NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers((self.handlers.generic_handler(),))
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        listen, options = self.options.listen, self.options
        add_port: Callable[[str], int] = self._server.add_insecure_port
        if options.tls_cert is not None and options.tls_key is not None:
            files = CertificateReloader(options.tls_cert, options.tls_key, options.tls_client_ca)
            add_port = partial(self._server.add_secure_port, server_credentials=files.credentials)
        if listen.startswith("unix:") and _accepts_connections(listen.removeprefix("unix:")):
            raise UserError(f"a server listens on {listen} already: give --listen another address")
        try:
            port = add_port(listen)
        except RuntimeError as error:
            raise UserError(f"cannot listen on {listen} ({error}): give --listen another address") from error
        if not listen.startswith("unix:"):
            self.address = f"{listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        self._log.info("listening", address=self.address, tls=self.options.tls_cert is not None)

    async def run(self) -> None:
        """Load weights, serve, and follow new weights. After `stop` is set, answer the calls in progress and return."""
        metrics_server = None
        if self.options.metrics_port is not None:
            host = self.options.host or "0.0.0.0"
            try:
                metrics_server = MetricsServer(host, self.options.metrics_port, self.metrics.registry)
            except (OSError, OverflowError) as error:
                raise UserError(
                    f"cannot serve metrics on port {self.options.metrics_port} ({error}): choose another --metrics-port"
                ) from error
        tasks = [asyncio.create_task(loop) for loop in (self._follow_weights(), self._sweep())]
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            await self._drain()
            for task in tasks:
                if task.done():
                    task.result()  # raises its exception
        finally:
            for pending in (*tasks, stopping):
                pending.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
            await self._server.stop(0)
            if metrics_server is not None:
                metrics_server.close()

    async def _drain(self) -> None:
        """Refuse new work, wait for the calls in progress, and stop listening."""
        self._log.info("draining", calls=self.calls.active)
        await self._health.enter_graceful_shutdown()
        if self.handlers.service is not None:
            self.handlers.service.draining = True
        for reader in self.handlers.readers:
            reader.cancel()
        deadline = time.monotonic() + self.options.drain_s
        while self.calls.active and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self._server.stop(FLUSH_S)
        if self.handlers.service is not None:
            for session in self.handlers.service.sessions:
                self.handlers.service.sessions.close(session)
        self._log.info("stopped", calls=self.calls.active)

    async def _follow_weights(self) -> None:
        """Load the first weights, then adopt newer ones as they appear."""
        source = self.source
        if isinstance(source, ServedRule | WeightSet):
            await self._load(source)
            await self.stop.wait()
            return
        digest = ""
        while True:
            try:
                weights = await asyncio.to_thread(source.fetch, digest)
                if weights is not None:
                    digest = weights.digest
                    await (self._load(weights) if self.handlers.service is None else self._adopt(weights))
            except InvalidWeights as error:
                self._log.error("weights damaged", reason=str(error))
            except Unreachable as error:
                self._log.warning("weight store unreachable", reason=str(error))
            await asyncio.sleep(POLL_S)

    async def _adopt(self, weights: WeightSet) -> None:
        service = self.handlers.service
        assert service is not None
        try:
            model = await asyncio.to_thread(service.models.build, weights)
        except UserError as error:
            self._log.error("weights refused", version=weights.version, reason=str(error))
            return
        service.adopt(model)
        self._log.info("weights adopted", version=model.version, versions_held=len(service.models.held))

    async def _load(self, first: WeightSet | ServedRule) -> None:
        if not is_compiled("policy"):
            self._log.info("compiling the policy's step for this machine (once, about 20 s)")
        models = await asyncio.to_thread(ModelVersions, first, _device(self.options.device))
        needed, limit = models.layouts[models.spaces.hash].request_bytes, self.options.max_message_bytes
        if needed > limit:
            raise UserError(
                f"a step with {models.spaces.obs_size} features takes {needed} bytes, and larger requests than "
                f"{limit} bytes are refused: give --max-message-bytes {needed}"
            )
        self.handlers.service = PolicyService(
            models, self.options, self._key, self.metrics, self._tokens, self._collector
        )
        for name in ("", SERVICE):
            await self._health.set(name, _SERVING)
        self._log.info("serving", version=first.version, spaces=models.spaces.hash)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.calls.end_invalid()
            if self.handlers.service is not None and (count := self.handlers.service.expire()):
                self._log.info("sessions expired", count=count)


async def serve(
    options: ServeOptions,
    source: PolicySource,
    started: Callable[[PolicyServer], None],
    external: ExternalConfig | None = None,
    sink: EpisodeSink | None = None,
    loaded: Callable[[PolicyServer], None] = lambda server: None,
    key: bytes | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called when the server listens, `loaded` when it has weights."""
    server = PolicyServer(options, source, external, sink, key)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop.set)
    await server.start()
    started(server)
    freezing = asyncio.create_task(_once_loaded(server, loaded))
    await server.run()
    freezing.cancel()


async def _once_loaded(server: PolicyServer, loaded: Callable[[PolicyServer], None]) -> None:
    """Call `loaded` once there are weights. Then exclude the objects that exist from garbage collection: full
    collections of them would each stop the server for tenths of a second."""
    while server.handlers.service is None:
        await asyncio.sleep(0.05)
    loaded(server)
    gc.collect()
    gc.freeze()


def _possible_connections() -> int:
    """Return how many connections the limit of open files allows, which is raised if possible."""
    files = MAX_CONNECTIONS + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        files = soft
    return max(1, files - RESERVED_FILES)


def _accepts_connections(path: str) -> bool:
    """Whether a server has this unix socket. gRPC would replace it, and later remove that of the other server."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path.removeprefix("//"))  # of unix:///path
        except OSError as error:
            return isinstance(error, BlockingIOError)  # many connections are waiting
    return True


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name} is not available: give --device cpu or auto")
    return torch.device(name)
