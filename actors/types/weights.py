"""`WeightSet`: one published set of policy weights as numpy arrays, with the metadata needed to act with it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WeightSet:
    """`tensors` holds parameters and buffers (normalizer and PopArt statistics included) by state-dict name."""

    version: int
    generation: int
    spaces_hash: str  # of observation and action spaces
    architecture: str  # canonical JSON of PolicyConfig, spaces and their hash, from which the network can be rebuilt
    state_stride: int  # steps between the recurrent states that episodes store
    tensors: dict[str, NDArray[np.generic]]
    burn_in: int = 0  # steps before a segment that it carries, for the learner to replay
    digest: str = field(default="", compare=False)  # of their manifest, if they were fetched; identifies a publication
