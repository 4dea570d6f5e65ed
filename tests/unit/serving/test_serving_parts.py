"""Masks that leave an action, requests that are the same, exported metrics, and which sessions are evicted."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.metrics.registry import SERVE
from actors.policy.state import PolicyState, StateSizes
from actors.serving.messages import MASKS_KEPT, MessageLayout, parse_step, step_request, stream_answer
from actors.serving.server.metrics import ServingMetrics
from actors.serving.server.sessions import EVICT_AFTER_S, PendingStep, SessionTable
from actors.sessions.refusal import Refusal
from actors.types.actions import ActionMasks, playable
from actors.wire.policy_pb2 import StepRequest, StepResponse, StepStreamResponse
from tests.support.examples import examples
from tests.support.learning.toy import SPACES, SPEC
from tests.support.serving.servers import step_inputs


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


ROWS, SHARE = 6, 2
LAYOUT = MessageLayout(SPACES)
QUERY = parse_step(step_request("", 0, *step_inputs(0, 0), True, False), LAYOUT)


@dataclass
class ModelSession:
    owner: str
    last_used_s: float
    busy: bool = False


def evicted_for(known: dict[str, ModelSession], owner: str, now: float) -> str | None:
    """Return the session that is evicted for a new one of `owner`: None if there is room, "" if that is refused."""
    held = Counter(k.owner for k in known.values())
    owners = {owner}
    if not (owner and held[owner] >= SHARE):
        if len(known) < ROWS:
            return None
        owners |= {other for other in held if held[other] > held[owner]}
    idle = {i: k for i, k in known.items() if k.owner in owners and not k.busy and now - k.last_used_s >= EVICT_AFTER_S}
    return min(idle, key=lambda i: idle[i].last_used_s, default="")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("oootswc"), st.sampled_from(["", "a", "b", "c", "d"]), st.integers(0, 5)),
    min_size=10, max_size=80,
)  # fmt: skip


@given(OPERATIONS)
@settings(max_examples=examples(300), deadline=None)
def test_sessions_are_opened_and_evicted_as_in_the_model(operations: list[tuple[str, str, int]]) -> None:
    now = 1000.0
    states = PolicyState.zeros(StateSizes((1, 1), (1, 1)), ROWS)
    sessions = SessionTable(states, 1e9, lambda: now, lambda _: None, lambda: SHARE)
    known: dict[str, ModelSession] = {}
    for kind, owner, pick in operations:
        now += 0.001  # no two times are equal
        chosen = sorted(known, key=lambda i: known[i].last_used_s)[pick] if pick < len(known) else None
        if kind == "o":
            expected = evicted_for(known, owner, now)
            if expected == "":
                with pytest.raises(Refusal, match="try again later"):
                    sessions.open(LAYOUT, 0, owner=owner)
                continue
            opened = sessions.open(LAYOUT, 0, owner=owner)
            assert [i for i in known if sessions.find(i, known[i].owner) is None] == [expected] * (expected is not None)
            known.pop(expected, None)
            known[opened.id] = ModelSession(owner, now)
        elif kind == "w":
            now += 0.7 * EVICT_AFTER_S
        elif chosen is not None:
            session = sessions.find(chosen, known[chosen].owner)
            if kind == "t":
                sessions.touch(session)
                known[chosen].last_used_s = now
            elif kind == "s" and session.pending is None:
                session.pending, known[chosen].busy = PendingStep(session, QUERY, StepRequest(), False), True
            elif kind == "s":
                session.pending, known[chosen].busy = None, False
                sessions.touch(session)  # as when a step starts: the wait for its batch is short
                known[chosen].last_used_s = now
            elif kind == "c":
                sessions.close(session)
                del known[chosen]
        assert len(sessions) == len(known)
        assert all(sessions.find(i, k.owner) is not None for i, k in known.items())
