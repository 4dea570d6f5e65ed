"""Publishing and fetching weights, on every backend."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.conftest import Connect
from tests.support.builders import make_weights
from tests.support.queueing import OK, header, put
from tests.support.store_copies import freeze

pytestmark = pytest.mark.integration


def test_weights_of_a_store_that_started_afresh_are_followed(open_transport: Connect) -> None:
    """Also if it happens to have reached the same version again."""
    learner, actor = open_transport(), open_transport()
    empty = freeze(learner)
    known = ""
    for version, tensors in ((5, {}), (1, {}), (1, make_weights().tensors)):
        learner.open_generation(-1, "learner")
        learner.publish(make_weights(version, tensors=tensors))
        weights = actor.fetch(known)
        assert weights is not None
        assert weights.version == version
        known = weights.digest
        empty()


def test_weights_are_published_and_fetched_and_old_versions_deleted(open_transport: Connect) -> None:
    learner, actor = open_transport(weights_kept=2), open_transport()
    assert actor.head() == -1
    assert actor.fetch() is None
    generation = learner.open_generation(-1, "learner")
    for version in range(generation.next_version, 4):
        learner.publish(make_weights(version, generation.number))
    learner.publish(make_weights(3))  # repeating it changes nothing
    for repeated in (make_weights(3, tensors={}), make_weights(1)):
        with pytest.raises(ValueError, match="not newer"):
            learner.publish(repeated)
    assert actor.head() == 3
    weights = actor.fetch("of other weights")
    assert weights is not None
    assert actor.fetch(weights.digest) is None
    expected = make_weights(3)
    assert dataclasses.replace(weights, tensors={}) == dataclasses.replace(expected, tensors={})
    assert all(np.array_equal(weights.tensors[name], tensor) for name, tensor in expected.tensors.items())
    assert put(actor, 0) == [OK]
    assert actor.put(header(1), b"x").head_version == 3
