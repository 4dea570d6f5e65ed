"""Which masks leave an action, which requests are the same, and that every declared metric is exported."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.metrics.registry import SERVE
from actors.serving.messages import MASKS_KEPT, MessageLayout, request_digest, stream_answer
from actors.serving.server.metrics import ServingMetrics
from actors.types.actions import ActionMasks, playable
from actors.wire.policy_pb2 import StepRequest, StepResponse, StepStreamResponse
from tests.support.examples import examples
from tests.support.learning.toy import SPACES, SPEC


def brute_force(masks: ActionMasks) -> bool:
    """Whether an action exists for every legal op and slot, by enumerating all choices."""
    if not masks.op.any():
        return False
    for op in np.flatnonzero(masks.op):
        slots = np.flatnonzero(masks.slot[op]) if SPEC.relevance[op][1] else [0]
        if len(slots) == 0:
            return False
        for slot, (k, head) in itertools.product(slots, enumerate(SPEC.heads)):
            if k >= 2 and SPEC.relevance[op][k]:
                start = SPEC.offsets[k] - SPEC.offsets[2]
                if not masks.rest[op, slot, start : start + head.size].any():
                    return False
    return True


@given(st.integers(0, 2**32), st.sampled_from([0.3, 0.7, 0.9, 0.98]))
@settings(max_examples=examples(300), deadline=None)
def test_playable_agrees_with_an_enumeration_of_all_choices(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    n, ops, slots = 5, SPEC.num_ops, SPEC.num_slots
    masks = ActionMasks(
        rng.random((n, ops)) < 0.5,
        rng.random((n, ops, slots)) < share,
        rng.random((n, ops, slots, SPEC.rest_size)) < share,
    )
    expected = [brute_force(ActionMasks(masks.op[i], masks.slot[i], masks.rest[i])) for i in range(n)]
    assert playable(SPEC, masks).tolist() == expected


def test_every_declared_metric_is_exported() -> None:
    exported = {m.name.removeprefix("tamiyo_") for m in ServingMetrics().registry.collect()}
    assert exported == set(SERVE)


def test_a_repeated_step_may_leave_the_default_out_and_ask_for_the_state() -> None:
    first = request_digest(StepRequest(session_id="a", step_index=3, reward=0.5))
    for again in ({"deterministic": True}, {"session_id": "b"}, {"export_state": True}):
        assert request_digest(StepRequest(**{"session_id": "a", "step_index": 3, "reward": 0.5} | again)) == first
    for other in ({"deterministic": False}, {"reward": 0.25}, {"step_index": 4}):
        assert request_digest(StepRequest(**{"session_id": "a", "step_index": 3, "reward": 0.5} | other)) != first


@pytest.mark.parametrize("actions", [0, 1, 110, 125, 130, 16_370, 20_000, 2**21])
def test_an_answer_on_a_stream_is_the_message_that_protobuf_writes(actions: int) -> None:
    response = StepResponse(action=[1] * actions, value=0.5)
    expected = StepStreamResponse(session_id="a", step_index=3, step=response)
    assert StepStreamResponse.FromString(stream_answer("a", 3, response.SerializeToString())) == expected
    assert stream_answer("a", 3, response.SerializeToString()) == expected.SerializeToString(deterministic=True)


def test_masks_are_refused_for_their_own_reason_however_many_were_seen_before() -> None:
    """The reasons of batches of repeated and of new masks, beyond what is remembered, are those of an enumeration."""
    rng, layout, sizes = np.random.default_rng(0), MessageLayout(SPACES), (SPEC.num_ops, SPEC.num_slots, SPEC.rest_size)
    seen = list[tuple[Any, str | None]]()  # packed masks, and a word of the reason to refuse them
    for batch in range(3):
        for _ in range(MASKS_KEPT // 2 + 1 if batch else 50):
            masks, damaged = ActionMasks(*(rng.random(sizes[:n]) < 0.8 for n in (1, 2, 3))), rng.random() < 0.2
            flat = masks.flat()
            flat[-1] ^= damaged  # no longer the union
            expected = "allow" if not brute_force(masks) else "union" if damaged else None
            seen.append((tuple(np.packbits(m).tobytes() for m in (flat, masks.slot, masks.rest)), expected))
        asked = seen[-100:] + seen[:50]
        found = layout.reasons_against([packed for packed, _ in asked])
        layout.reasons_against([packed for packed, _ in seen])
    for (_, expected), reason in zip(asked, found, strict=True):
        assert (reason is None) == (expected is None)
        assert expected is None or expected in str(reason)
    assert {expected for _, expected in asked} == {None, "allow", "union"}
