from actors.wire import episode_pb2 as _episode_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Head(_message.Message):
    __slots__ = ("name", "choices")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., choices: _Optional[_Iterable[str]] = ...) -> None: ...

class AcceptedSpaces(_message.Message):
    __slots__ = ("slots", "spaces_hash", "obs_size")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SPACES_HASH_FIELD_NUMBER: _ClassVar[int]
    OBS_SIZE_FIELD_NUMBER: _ClassVar[int]
    slots: int
    spaces_hash: str
    obs_size: int
    def __init__(self, slots: _Optional[int] = ..., spaces_hash: _Optional[str] = ..., obs_size: _Optional[int] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("policy_version", "generation", "held_versions", "spaces_json", "accepted", "heads", "session_ttl_s", "max_message_bytes", "server")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HELD_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SPACES_JSON_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    generation: int
    held_versions: _containers.RepeatedScalarFieldContainer[int]
    spaces_json: str
    accepted: _containers.RepeatedCompositeFieldContainer[AcceptedSpaces]
    heads: _containers.RepeatedCompositeFieldContainer[Head]
    session_ttl_s: float
    max_message_bytes: int
    server: str
    def __init__(self, policy_version: _Optional[int] = ..., generation: _Optional[int] = ..., held_versions: _Optional[_Iterable[int]] = ..., spaces_json: _Optional[str] = ..., accepted: _Optional[_Iterable[_Union[AcceptedSpaces, _Mapping]]] = ..., heads: _Optional[_Iterable[_Union[Head, _Mapping]]] = ..., session_ttl_s: _Optional[float] = ..., max_message_bytes: _Optional[int] = ..., server: _Optional[str] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("spaces_hash", "seed", "latest", "exported_state", "train")
    SPACES_HASH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_STATE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    spaces_hash: str
    seed: int
    latest: bool
    exported_state: bytes
    train: bool
    def __init__(self, spaces_hash: _Optional[str] = ..., seed: _Optional[int] = ..., latest: _Optional[bool] = ..., exported_state: _Optional[bytes] = ..., train: _Optional[bool] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id", "next_step_index", "policy_version", "session_ttl_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    next_step_index: int
    policy_version: int
    session_ttl_s: float
    def __init__(self, session_id: _Optional[str] = ..., next_step_index: _Optional[int] = ..., policy_version: _Optional[int] = ..., session_ttl_s: _Optional[float] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("session_id", "step_index", "obs", "blueprint_indices", "mask", "slot_mask_by_op", "rest_mask", "deterministic", "export_state", "reward")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    OBS_FIELD_NUMBER: _ClassVar[int]
    BLUEPRINT_INDICES_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SLOT_MASK_BY_OP_FIELD_NUMBER: _ClassVar[int]
    REST_MASK_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    EXPORT_STATE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_index: int
    obs: _episode_pb2.Array
    blueprint_indices: _episode_pb2.Array
    mask: _episode_pb2.Array
    slot_mask_by_op: _episode_pb2.Array
    rest_mask: _episode_pb2.Array
    deterministic: bool
    export_state: bool
    reward: float
    def __init__(self, session_id: _Optional[str] = ..., step_index: _Optional[int] = ..., obs: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., blueprint_indices: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., mask: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., slot_mask_by_op: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., rest_mask: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., deterministic: _Optional[bool] = ..., export_state: _Optional[bool] = ..., reward: _Optional[float] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("session_id", "step_index", "action", "log_probs", "value", "policy_version", "exported_state", "continuous")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_STATE_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_index: int
    action: _containers.RepeatedScalarFieldContainer[int]
    log_probs: _containers.RepeatedScalarFieldContainer[float]
    value: float
    policy_version: int
    exported_state: bytes
    continuous: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session_id: _Optional[str] = ..., step_index: _Optional[int] = ..., action: _Optional[_Iterable[int]] = ..., log_probs: _Optional[_Iterable[float]] = ..., value: _Optional[float] = ..., policy_version: _Optional[int] = ..., exported_state: _Optional[bytes] = ..., continuous: _Optional[_Iterable[float]] = ...) -> None: ...

class StepStreamRequest(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: StepRequest
    def __init__(self, step: _Optional[_Union[StepRequest, _Mapping]] = ...) -> None: ...

class StepFailure(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StepStreamResponse(_message.Message):
    __slots__ = ("session_id", "step_index", "step", "failure")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_index: int
    step: StepResponse
    failure: StepFailure
    def __init__(self, session_id: _Optional[str] = ..., step_index: _Optional[int] = ..., step: _Optional[_Union[StepResponse, _Mapping]] = ..., failure: _Optional[_Union[StepFailure, _Mapping]] = ...) -> None: ...

class ResetSessionRequest(_message.Message):
    __slots__ = ("session_id", "seed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    seed: int
    def __init__(self, session_id: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class ResetSessionResponse(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class EndEpisodeRequest(_message.Message):
    __slots__ = ("session_id", "step_index", "reward", "terminated", "truncated", "obs", "blueprint_indices", "mask", "slot_mask_by_op", "rest_mask")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    OBS_FIELD_NUMBER: _ClassVar[int]
    BLUEPRINT_INDICES_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    SLOT_MASK_BY_OP_FIELD_NUMBER: _ClassVar[int]
    REST_MASK_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    step_index: int
    reward: float
    terminated: bool
    truncated: bool
    obs: _episode_pb2.Array
    blueprint_indices: _episode_pb2.Array
    mask: _episode_pb2.Array
    slot_mask_by_op: _episode_pb2.Array
    rest_mask: _episode_pb2.Array
    def __init__(self, session_id: _Optional[str] = ..., step_index: _Optional[int] = ..., reward: _Optional[float] = ..., terminated: _Optional[bool] = ..., truncated: _Optional[bool] = ..., obs: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., blueprint_indices: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., mask: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., slot_mask_by_op: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ..., rest_mask: _Optional[_Union[_episode_pb2.Array, _Mapping]] = ...) -> None: ...

class TrainingAccount(_message.Message):
    __slots__ = ("name", "produced", "accepted", "fenced", "dropped", "unsent", "steps", "cut_sessions", "dropped_sessions", "refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    UNSENT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CUT_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    produced: int
    accepted: int
    fenced: int
    dropped: int
    unsent: int
    steps: int
    cut_sessions: int
    dropped_sessions: int
    refused: int
    def __init__(self, name: _Optional[str] = ..., produced: _Optional[int] = ..., accepted: _Optional[int] = ..., fenced: _Optional[int] = ..., dropped: _Optional[int] = ..., unsent: _Optional[int] = ..., steps: _Optional[int] = ..., cut_sessions: _Optional[int] = ..., dropped_sessions: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class EndEpisodeResponse(_message.Message):
    __slots__ = ("episode_return", "steps", "segments", "policy_lag", "account")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_LAG_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    steps: int
    segments: int
    policy_lag: int
    account: TrainingAccount
    def __init__(self, episode_return: _Optional[float] = ..., steps: _Optional[int] = ..., segments: _Optional[int] = ..., policy_lag: _Optional[int] = ..., account: _Optional[_Union[TrainingAccount, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionState(_message.Message):
    __slots__ = ("session_id", "spaces_hash", "architecture_hash", "next_step_index", "seed", "latest", "policy_version", "state", "last_request", "last_response", "hazard", "owner")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SPACES_HASH_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_HASH_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LAST_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HAZARD_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    spaces_hash: str
    architecture_hash: str
    next_step_index: int
    seed: int
    latest: bool
    policy_version: int
    state: _episode_pb2.RecurrentState
    last_request: bytes
    last_response: bytes
    hazard: float
    owner: str
    def __init__(self, session_id: _Optional[str] = ..., spaces_hash: _Optional[str] = ..., architecture_hash: _Optional[str] = ..., next_step_index: _Optional[int] = ..., seed: _Optional[int] = ..., latest: _Optional[bool] = ..., policy_version: _Optional[int] = ..., state: _Optional[_Union[_episode_pb2.RecurrentState, _Mapping]] = ..., last_request: _Optional[bytes] = ..., last_response: _Optional[bytes] = ..., hazard: _Optional[float] = ..., owner: _Optional[str] = ...) -> None: ...

class SignedState(_message.Message):
    __slots__ = ("state", "signature")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    state: bytes
    signature: bytes
    def __init__(self, state: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
