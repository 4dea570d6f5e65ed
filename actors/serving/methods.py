"""The methods of `PolicyService`, read from the descriptor of its .proto file, for channels and for servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from actors.wire import policy_pb2

_DESCRIPTOR = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"]
SERVICE = _DESCRIPTOR.full_name


def make_stub(channel: Any) -> Any:
    """Return an object with one function for each method, which calls it on a channel of `grpc` or of `grpc.aio`."""
    stub = SimpleNamespace()
    for method in _DESCRIPTOR.methods:
        request, response = (getattr(policy_pb2, t.name) for t in (method.input_type, method.output_type))
        make = channel.stream_stream if method.client_streaming else channel.unary_unary
        setattr(stub, method.name, make(method_path(method.name), request.SerializeToString, response.FromString))
    return stub


def method_path(name: str) -> str:
    """Return the path of a method, by which gRPC calls it."""
    return f"/{SERVICE}/{name}"


def make_handler(behaviors: Mapping[str, Callable[..., Any]]) -> grpc.GenericRpcHandler[Any, Any]:
    """Return what is registered with a server, given what each method does. A request that cannot be parsed is None; a
    response may be serialized already."""
    handlers = {}
    for name, behavior in behaviors.items():
        method = _DESCRIPTOR.methods_by_name[name]
        parse = partial(_parse, getattr(policy_pb2, method.input_type.name))
        streaming = method.client_streaming
        make = grpc.stream_stream_rpc_method_handler if streaming else grpc.unary_unary_rpc_method_handler
        handlers[name] = make(behavior, parse, _serialize)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _parse(message_type: type[Message], data: bytes) -> Message | None:
    try:
        return message_type.FromString(data)
    except DecodeError:
        return None


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
