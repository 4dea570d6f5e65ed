"""The teacher of pretraining: columns are tried on a sample of hosts, and regressions learn which trials pay."""

from __future__ import annotations

import hashlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.policy.baselines import NeverGrow
from actors.rng import Purpose, stream
from actors.rollout.wave import Provenance, run_wave
from actors.rules.reader import ObservationReader
from actors.slots.spaces import seed_spaces
from actors.slots.stage import Stage
from actors.types.episode import Episode
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.evaluation.play import gain, wave
from deploy.evaluation.suite import on_family
from deploy.imitation import trials
from deploy.imitation.trials import MARGIN, SIZES, TRIALS, Judgement, TrialTeacher
from learner.run.checkpoint import write_durably

WAVE = 32  # episodes that one process plays in parallel
SURVEY = 20_270_120  # seed of the survey: runs of all seeds share it
SURVEYS = "surveys"  # folder beside the runs
TEMPERATURE = 0.2  # points: the teacher starts a trial in proportion to exp(expected J / temperature)
TREES, LEAF, STEP_LEAF = 80, 8, 30
"""Trees of a forest, and least rows in a leaf, of hosts and of epochs. On families that were left out, one forest for
all sizes chose better than one for each, leaves of 8 hosts better than of 40, and splits that try all features
predicted better than splits that try half of them (R2 of going on 0.74 and 0.67)."""

Array = NDArray[np.float64]
Wave = tuple[str, list[int]]
"""A task and seeds."""


EPOCH = np.dtype(
    [
        ("host", np.int64),
        ("size", np.int64),  # index into SIZES
        ("left", np.int64),  # epochs
        ("spent", np.float64),  # training compute so far, doublings
        ("effort", np.float64),  # of training the column to the end, doublings
        ("worth", np.float64),  # of joining now, by what was measured, points
    ]
)
"""An epoch of a trial."""


class Survey(NamedTuple):
    """All of `TRIALS`, to the end, on N hosts. A column that was tried alone joined, so that its worth is known; of two
    columns those joined that paid, by `MARGIN`."""

    seen: Array  # [N, F] of each host after `LOOK` epochs, see `model_features`
    prices: Array  # [N, 2] of the model and of compute
    gains: Array  # [N, trials] points over never growing
    doublings: Array  # [N, trials]
    compute: Array  # [N, trials]
    steps: Array  # [M, F] of each epoch of each column that was tried alone, see `trial_features`
    epochs: NDArray[np.void]  # [M] which epoch each of `steps` is, see `EPOCH`


def demonstrate(config: Config, jobs: int) -> list[Episode]:
    """Play about `imitation.episodes` demonstrations of the teacher, equally many per task, in random order, with
    `jobs` processes.

    First all trials are made on `imitation.hosts` hosts, from which the teacher learns what trials are
    worth; this survey does not depend on the seed of the run and is kept beside the runs. Then the teacher plays other
    hosts, each once, at the prices of its episode.
    """
    rng = stream(config.run.seed, 0, Purpose.DEMONSTRATIONS)
    with workers(jobs) as pool:
        judgement = fit_judgement(kept_survey(config, pool), jobs, config.env.prune)
        waves = _waves(config, config.imitation.episodes, rng)
        play = partial(_teach, config, judgement)
        played = [episode for wave in pool.map(play, waves) for episode in wave]
    return [played[i] for i in rng.permutation(len(played))]


def kept_survey(config: Config, pool: ProcessPoolExecutor) -> Survey:
    """Return the survey of `imitation.hosts` hosts, played once for all runs of the same folder that it fits."""
    # All features are known, all ops legal, and nothing is spent on the rewards of PPO.
    env = replace(config.env, drop_features=0.0, hidden_features=(), prune=True, reference="untrained")
    waves = _waves(config, config.imitation.hosts, stream(SURVEY, 0, Purpose.DEMONSTRATIONS))
    identity = repr((SURVEY, env, *trials.DESIGN, waves))
    path = Path(config.run.root) / SURVEYS / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npz"
    if path.is_file():
        with np.load(path) as kept:
            return Survey(**kept)
    parts = list(pool.map(partial(_survey, env), waves))
    for part, start in zip(parts, np.cumsum([0, *(len(part.seen) for part in parts)]), strict=False):
        part.epochs["host"] += start
    found = Survey(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(packed := BytesIO(), **found._asdict())
    write_durably(path, packed.getvalue(), replace=True)
    return found


def _survey(env: EnvConfig, tasked: Wave) -> Survey:
    env, seeds = _on_task(env, tasked)
    spaces = seed_spaces(env.total_slots, env.profile)
    reader = ObservationReader(spaces)

    bare = wave(env, SURVEY, seeds, NeverGrow)
    before = np.stack([episode.obs[min(trials.LOOK, len(episode) - 1)] for _, episode in bare])
    never = np.array([gain(host, episode) for host, episode in bare])
    outcomes, steps, epochs = [], [], []
    for k in range(len(TRIALS)):
        grown = wave(env, SURVEY, seeds, partial(TrialTeacher, judgement=None, trial=k))
        outcomes.append([(gain(h, e), h.standing.doublings, h.standing.compute_doublings) for h, e in grown])
        for i, (host, episode) in enumerate(grown if len(TRIALS[k]) == 1 else ()):
            seen, in_epochs = _trial(reader, episode, host.horizon_epochs)
            in_epochs["host"], in_epochs["size"] = i, TRIALS[k][0]
            steps.append(seen)
            epochs.append(in_epochs)
    gains, doublings, compute = np.array(outcomes).transpose(2, 1, 0)
    prices = np.array([host.prices for host, _ in bare])
    return Survey(
        trials.model_features(reader, before).astype(np.float64), prices, gains - never[:, None], doublings, compute,
        np.concatenate(steps), np.concatenate(epochs),
    )  # fmt: skip


def _trial(reader: ObservationReader, episode: Episode, horizon_epochs: int) -> tuple[Array, NDArray[np.void]]:
    """Return what was seen of the column in each epoch of its training, and these epochs, without host and size."""
    obs = episode.obs[: len(episode)]
    training = reader.slot(obs, "stage").argmax(-1) == Stage.TRAINING
    steps = np.flatnonzero(training.any(1))
    slots = training[steps].argmax(1)
    seen = trials.trial_features(reader, obs[steps], slots).astype(np.float64)
    epochs = np.zeros(len(steps), EPOCH)
    epochs["left"] = horizon_epochs - steps
    epochs["spent"] = 4.0 * reader.base(obs[steps], "compute")[:, 0]
    epochs["effort"] = 4.0 * reader.slot(obs[steps], "effort")[np.arange(len(steps)), slots, 0]
    epochs["worth"] = trials.worth_now(reader, obs[steps])[np.arange(len(steps)), slots]
    return seen, epochs


def fit_judgement(survey: Survey, jobs: int = 1, prune: bool = True) -> Judgement:
    """Fit what the teacher expects, from the end to the start: what going on with a column is worth, which joins if its
    contribution exceeds its price by `MARGIN`; and what trials are worth in which columns are given up, from half of
    the trial on, where going on is worth too little and PRUNE is legal. Columns in isolation do not affect each other:
    the one that is left of two is as if it had been alone.

    What going on is worth on a host, the regressions of the start learn from a forest that has not seen it.
    """
    price, compute_price = survey.prices.T
    going = survey.epochs["left"] > trials.LEFT
    epochs, steps, last = survey.epochs[going], survey.steps[going], survey.epochs[~going]
    outcome = survey.gains - price[:, None] * survey.doublings  # [N, trials], compute excluded
    alone = [TRIALS.index((size,)) for size in range(len(SIZES))]
    pays = np.zeros((len(outcome), len(SIZES)), bool)
    pays[last["host"], last["size"]] = last["worth"] >= MARGIN
    worth, spent = np.where(pays, outcome[:, alone], 0.0), survey.compute[:, alone]
    target = worth[epochs["host"], epochs["size"]]
    expected = _unseen(steps, target, epochs["host"], jobs)
    hopeless = expected.clip(min=0.0) < compute_price[epochs["host"]] * epochs["effort"]
    begun = np.zeros(pays.shape, np.int64)
    np.maximum.at(begun, (epochs["host"], epochs["size"]), epochs["left"])
    trained = begun[epochs["host"], epochs["size"]] - epochs["left"] + 1
    late = trained >= epochs["left"] - trials.LEFT
    given_up = epochs[hopeless & late & prune][::-1]  # the first epoch counts
    worth[given_up["host"], given_up["size"]] = 0.0
    spent[given_up["host"], given_up["size"]] = given_up["spent"]
    kept = np.ones_like(pays)
    kept[given_up["host"], given_up["size"]] = False
    objective = np.empty_like(outcome)
    for k, trial in enumerate(map(list, TRIALS)):
        whole = kept[:, trial].all(1) & (len(trial) > 1)
        compute = np.log2(1.0 + (2.0 ** spent[:, trial] - 1.0).sum(1))
        objective[:, k] = np.where(whole, outcome[:, k], worth[:, trial].sum(1)) - compute_price * compute
    return Judgement(_forest(survey.seen, objective[:, -1], LEAF, jobs), _forest(steps, target, STEP_LEAF, jobs))


def _forest(x: Array, y: Array, leaf: int, jobs: int) -> ExtraTreesRegressor:
    """Fit extremely randomized trees (Geurts et al., 2006)."""
    forest = ExtraTreesRegressor(TREES, min_samples_leaf=leaf, random_state=0, n_jobs=jobs)
    forest.fit(x, y)
    forest.n_jobs = 1
    return forest


def _unseen(x: Array, y: Array, of_host: NDArray[np.int64], jobs: int) -> Array:
    """Return what forests expect of hosts that they have not seen: each half of the hosts is fitted to the other."""
    expected, odd = np.zeros(len(y)), of_host % 2 == 1
    for half in (odd, ~odd):
        expected[half] = _forest(x[~half], y[~half], STEP_LEAF, jobs).predict(x[half])
    return expected


def _waves(config: Config, hosts: int, rng: np.random.Generator) -> list[Wave]:
    """Return tasks with seeds, equally many per task, in groups that one process plays."""
    tasks = tuple(dict.fromkeys(config.env.tasks))
    seeds = rng.integers(0, 2**31, (len(tasks), -(-hosts // len(tasks))))
    starts = range(0, seeds.shape[1], WAVE)
    return [(task, seeds[i, k : k + WAVE].tolist()) for i, task in enumerate(tasks) for k in starts]


def _on_task(env: EnvConfig, tasked: Wave) -> tuple[EnvConfig, list[int]]:
    return on_family(replace(env, device="cpu", cuda_graph=False), tasked[0]), tasked[1]


def _teach(config: Config, judgement: Judgement, tasked: Wave) -> list[Episode]:
    env, seeds = _on_task(config.env, tasked)
    fleet = SeedTrainingFleet(env, len(seeds), config.run.seed)
    source = Provenance(0, 0, config.learner.state_stride, config.run.seed)
    return run_wave(fleet, TrialTeacher(fleet.spaces, judgement, temperature=TEMPERATURE), seeds, source)
