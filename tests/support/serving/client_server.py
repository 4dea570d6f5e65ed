"""A server that speaks Ray's client protocol far enough to refuse connections, to take one, and to know no actor."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import cloudpickle
import grpc
import ray
from ray.core.generated import ray_client_pb2 as pb
from ray.core.generated import ray_client_pb2_grpc as services


class Driver(services.RayletDriverServicer):
    def ClusterInfo(self, request: Any, context: Any) -> Any:
        is_initialized = request.type == pb.ClusterInfoType.IS_INITIALIZED
        return pb.ClusterInfoResponse(type=request.type, json="true" if is_initialized else "{}")

    def KVGet(self, request: Any, context: Any) -> Any:
        return pb.KVGetResponse()

    def KVPut(self, request: Any, context: Any) -> Any:
        return pb.KVPutResponse(already_exists=False)

    def Terminate(self, request: Any, context: Any) -> Any:
        return pb.TerminateResponse(ok=True)


class Data(services.RayletDataStreamerServicer):
    """Fails as many initializations as there are `failures`, each with its text."""

    def __init__(self, failures: list[str]) -> None:
        self.failures, self.connections = failures, 0

    def Datapath(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            kind = request.WhichOneof("type")
            answer = pb.DataResponse(req_id=request.req_id)
            if kind == "init":
                self.connections += 1
                failure = self.failures.pop(0) if self.failures else ""
                answer.init.CopyFrom(pb.InitResponse(ok=not failure, msg=failure))
            elif kind == "connection_info":
                answer.connection_info.num_clients = 1
                answer.connection_info.ray_version = ray.__version__
                answer.connection_info.ray_commit = ray.__commit__
                answer.connection_info.python_version = platform.python_version()
            elif kind == "task":
                error = cloudpickle.dumps(ValueError("there is no such actor"))
                answer.task_ticket.CopyFrom(pb.ClientTaskTicket(valid=False, error=error))
            elif kind == "connection_cleanup":
                answer.connection_cleanup.SetInParent()
                yield answer
                return
            else:
                continue
            yield answer


class Logs(services.RayletLogStreamerServicer):
    def Logstream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for _ in requests:
            pass
        yield from ()


@contextmanager
def client_server(failures: list[str]) -> Iterator[tuple[str, Data]]:
    """Its address, as ray://, and how often it was asked."""
    server, data = grpc.server(ThreadPoolExecutor(8)), Data(failures)
    services.add_RayletDriverServicer_to_server(Driver(), server)
    services.add_RayletDataStreamerServicer_to_server(data, server)
    services.add_RayletLogStreamerServicer_to_server(Logs(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"ray://127.0.0.1:{port}", data
    finally:
        server.stop(None)
