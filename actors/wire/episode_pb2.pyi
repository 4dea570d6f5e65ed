from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]
    DTYPE_INT16: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_BITS: _ClassVar[Dtype]

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_HORIZON: _ClassVar[EndReason]
    END_REASON_GOVERNOR: _ClassVar[EndReason]
    END_REASON_ENVIRONMENT: _ClassVar[EndReason]
    END_REASON_CUT: _ClassVar[EndReason]
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_INT8: Dtype
DTYPE_INT16: Dtype
DTYPE_INT32: Dtype
DTYPE_INT64: Dtype
DTYPE_BITS: Dtype
END_REASON_UNSPECIFIED: EndReason
END_REASON_HORIZON: EndReason
END_REASON_GOVERNOR: EndReason
END_REASON_ENVIRONMENT: EndReason
END_REASON_CUT: EndReason

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class VersionRun(_message.Message):
    __slots__ = ("version", "steps")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    version: int
    steps: int
    def __init__(self, version: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class RecurrentState(_message.Message):
    __slots__ = ("h", "c", "cells", "usage")
    H_FIELD_NUMBER: _ClassVar[int]
    C_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    h: Array
    c: Array
    cells: Array
    usage: Array
    def __init__(self, h: _Optional[_Union[Array, _Mapping]] = ..., c: _Optional[_Union[Array, _Mapping]] = ..., cells: _Optional[_Union[Array, _Mapping]] = ..., usage: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...

class BurnIn(_message.Message):
    __slots__ = ("obs", "blueprint_indices", "version")
    OBS_FIELD_NUMBER: _ClassVar[int]
    BLUEPRINT_INDICES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    obs: Array
    blueprint_indices: Array
    version: int
    def __init__(self, obs: _Optional[_Union[Array, _Mapping]] = ..., blueprint_indices: _Optional[_Union[Array, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("episode_id", "env_id", "task_id", "seed", "spaces_hash", "generation", "policy_version", "obs", "blueprint_indices", "actions", "log_probs", "masks", "values", "baseline_values", "rewards", "end_reason", "terminated", "truncated", "final_obs", "final_blueprint_indices", "final_masks", "bootstrap_value", "initial_state", "states", "state_stride", "telemetry", "burn_in")
    class TelemetryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SPACES_HASH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBS_FIELD_NUMBER: _ClassVar[int]
    BLUEPRINT_INDICES_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BASELINE_VALUES_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBS_FIELD_NUMBER: _ClassVar[int]
    FINAL_BLUEPRINT_INDICES_FIELD_NUMBER: _ClassVar[int]
    FINAL_MASKS_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_VALUE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    STATE_STRIDE_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    BURN_IN_FIELD_NUMBER: _ClassVar[int]
    episode_id: str
    env_id: str
    task_id: str
    seed: int
    spaces_hash: str
    generation: int
    policy_version: _containers.RepeatedCompositeFieldContainer[VersionRun]
    obs: Array
    blueprint_indices: Array
    actions: Array
    log_probs: Array
    masks: Array
    values: Array
    baseline_values: Array
    rewards: Array
    end_reason: EndReason
    terminated: bool
    truncated: bool
    final_obs: Array
    final_blueprint_indices: Array
    final_masks: Array
    bootstrap_value: float
    initial_state: RecurrentState
    states: RecurrentState
    state_stride: int
    telemetry: _containers.ScalarMap[str, float]
    burn_in: BurnIn
    def __init__(self, episode_id: _Optional[str] = ..., env_id: _Optional[str] = ..., task_id: _Optional[str] = ..., seed: _Optional[int] = ..., spaces_hash: _Optional[str] = ..., generation: _Optional[int] = ..., policy_version: _Optional[_Iterable[_Union[VersionRun, _Mapping]]] = ..., obs: _Optional[_Union[Array, _Mapping]] = ..., blueprint_indices: _Optional[_Union[Array, _Mapping]] = ..., actions: _Optional[_Union[Array, _Mapping]] = ..., log_probs: _Optional[_Union[Array, _Mapping]] = ..., masks: _Optional[_Union[Array, _Mapping]] = ..., values: _Optional[_Union[Array, _Mapping]] = ..., baseline_values: _Optional[_Union[Array, _Mapping]] = ..., rewards: _Optional[_Union[Array, _Mapping]] = ..., end_reason: _Optional[_Union[EndReason, str]] = ..., terminated: _Optional[bool] = ..., truncated: _Optional[bool] = ..., final_obs: _Optional[_Union[Array, _Mapping]] = ..., final_blueprint_indices: _Optional[_Union[Array, _Mapping]] = ..., final_masks: _Optional[_Union[Array, _Mapping]] = ..., bootstrap_value: _Optional[float] = ..., initial_state: _Optional[_Union[RecurrentState, _Mapping]] = ..., states: _Optional[_Union[RecurrentState, _Mapping]] = ..., state_stride: _Optional[int] = ..., telemetry: _Optional[_Mapping[str, float]] = ..., burn_in: _Optional[_Union[BurnIn, _Mapping]] = ...) -> None: ...

class EpisodeEnvelope(_message.Message):
    __slots__ = ("schema_version", "checksum", "episode")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    checksum: int
    episode: bytes
    def __init__(self, schema_version: _Optional[int] = ..., checksum: _Optional[int] = ..., episode: _Optional[bytes] = ...) -> None: ...
