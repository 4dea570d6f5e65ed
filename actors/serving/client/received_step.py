"""`received_step`: what a server recorded of a step. Imported only where steps are recorded, as it imports PyTorch."""

from __future__ import annotations

import numpy as np
import torch

from actors.codec import unpack_mask
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState, StateSizes
from actors.sessions.session import RULE_VERSION, RecordedStep
from actors.sessions.session_state import read_state
from actors.wire import policy_pb2


def received_step(response: policy_pb2.StepResponse, exported_before: bytes) -> RecordedStep | None:
    """Return what a server recorded of a step, given the session that was exported before the step ("" at the start);
    None if the server did not record it."""
    after = read_state(response.exported_state) if response.exported_state else None
    if not response.HasField("record") or after is None:
        return None
    record = response.record
    if record.version == RULE_VERSION:  # its memory is no recurrent state from which a network could learn
        before = PolicyState.zeros(StateSizes(), 1)
    elif exported_before:
        before = read_state(exported_before)
    else:
        before = PolicyState(*(torch.zeros_like(t) for t in after))
    floats = (response.log_probs, [response.value], [record.baseline_value], [record.bootstrap_value])
    log_probs, values, baselines, bootstraps = (np.array(f, dtype=np.float32) for f in floats)
    actions = np.array(response.action, dtype=np.int64)[None]
    decision = ActOutput(
        actions, log_probs[None], unpack_mask("mask", record.mask, 1)[None], values, baselines, bootstraps
    )
    return RecordedStep(decision, before, record.version, record.generation, record.state_stride)
