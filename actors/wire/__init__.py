"""The messages of `proto/`, from the descriptors and stubs that `deploy/protoc.sh` writes."""

from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from google.protobuf.internal import builder


def define(module: str, names: dict[str, Any]) -> None:
    """Define the messages and enums of a module, `NAME_pb2`, from the descriptor `NAME.binpb` beside it."""
    name = module.rpartition(".")[2].removesuffix("_pb2")
    found = FileDescriptorSet.FromString(files(__name__).joinpath(f"{name}.binpb").read_bytes()).file[0]
    names["DESCRIPTOR"] = Default().AddSerializedFile(found.SerializeToString())
    builder.BuildMessageAndEnumDescriptors(names["DESCRIPTOR"], names)
    builder.BuildTopDescriptorsAndMessages(names["DESCRIPTOR"], module, names)
