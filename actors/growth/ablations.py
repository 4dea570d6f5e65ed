"""`Ablations`: measures a user's model with each subset of its seeds switched on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from math import nan

import torch
from torch import nn

from actors.growth.config import GrowthConfig
from actors.growth.flop_count import inputs_of
from actors.growth.seed_manager import SeedManager
from actors.growth.training.isolation import reset_statistics, without_side_effects
from actors.growth.training.metric import MetricPoints
from actors.slots.contributions import EvalResult, Subset, subsets_to_evaluate

logger = logging.getLogger(__name__)


class Ablations:
    """Measures what contributions are computed from, by the user's `evaluate` and `calibrate`."""

    def __init__(self, model: nn.Module, seeds: SeedManager, config: GrowthConfig, metric: MetricPoints) -> None:
        self._model, self._seeds, self._config, self._metric = model, seeds, config, metric
        self.inputs = 0.0  # elements that the model read for each subset of the last measurement; 0 if unknown

    def measure(self, blended: Mapping[int, float], training: Mapping[int, float]) -> dict[Subset, EvalResult]:
        """Return the accuracy with each subset of seeds switched on; empty if a measurement failed."""
        evaluate, calibrate = self._config.evaluate, self._config.calibrate
        assert evaluate is not None
        alphas, measured, self.inputs = {**blended, **training}, dict[Subset, EvalResult](), 0.0
        try:
            # A hook would compile a compiled model's graphs again.
            with nullcontext(list[int]()) if self._seeds.compiled else inputs_of(self._seeds.called) as inputs:
                for subset in subsets_to_evaluate(blended, training):
                    on = {s: alpha for s, alpha in alphas.items() if s in subset}
                    with torch.no_grad(), without_side_effects(self._model), self._seeds.activated(on):
                        if calibrate is not None:
                            reset_statistics(self._model)
                            calibrate()
                        points = self._metric.points(float(evaluate()))
                    measured[subset] = EvalResult(nan if points is None else points, 0.0)
        except Exception as error:  # a failed measurement is unknown, and no reason to end a training run
            logger.warning("contributions could not be measured: %s", error)
            return {}
        self.inputs = sum(inputs) / len(measured)
        return measured
