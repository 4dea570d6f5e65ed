"""Why did the trained policy grow, or not? Its decisions in real scripts, and in others that differ in one respect.

    python -m benchmarks.decisions [--quick] [--policy CHECKPOINT] [--json FILE]

A script of examples/models runs with a policy whose inputs are recorded. At one epoch the policy is then asked again,
512 times: once with what it saw, and once for each change of what it saw in all epochs until then, such as another
price. A row shows the probability that it acts by this epoch, which decides, and those of germinating at this epoch and
of the column sizes.
"""

from __future__ import annotations

import io
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiyo
from actors.blueprints.family import blueprint_index
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rules.choices import SIZES
from actors.rules.reader import ObservationReader
from actors.sessions.local import LocalPolicy, LocalSession
from actors.sessions.session import Answer
from actors.slots.model_view import symlog
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces
from benchmarks.form import parser, publish
from learner.run.checkpoint import load_policy

SCRIPTS = Path(__file__).parent.parent / "examples" / "models"
DRAWS = 512
Change = Callable[[ObservationReader, NDArray[np.float32]], None]


@dataclass
class Asked:
    """What the policy was asked, epoch by epoch."""

    network: FactoredRecurrentActorCritic
    obs: list[NDArray[np.float32]] = field(default_factory=list)
    blueprints: list[NDArray[np.int64]] = field(default_factory=list)
    masks: list[ActionMasks] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)


class RecordedPolicy(LocalPolicy):
    """A `LocalPolicy` that keeps what it is asked."""

    asked: Asked

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> LocalSession:
        session = super().open(spaces, seed, latest, state)
        self.asked = asked = Asked(self._networks[spaces.hash])
        step = session.step

        def recorded(
            obs: NDArray[np.float32],
            blueprint_indices: NDArray[np.int64],
            masks: ActionMasks,
            deterministic: bool = True,
        ) -> Answer:
            answer = step(obs, blueprint_indices, masks, deterministic)
            asked.obs.append(np.array(obs, dtype=np.float32))
            asked.blueprints.append(np.array(blueprint_indices, dtype=np.int64))
            asked.masks.append(masks)
            asked.ops.append(int(answer.action[0]))
            return answer

        session.step = recorded  # type: ignore[method-assign]
        return session


def price(points: float) -> Change:
    def change(reader: ObservationReader, obs: NDArray[np.float32]) -> None:
        reader.base(obs, "price")[:] = np.log2(points) / 8.0

    return change


def larger(factor: float) -> Change:
    """A host of so many times the parameters, trained on as many rows."""

    def change(reader: ObservationReader, obs: NDArray[np.float32]) -> None:
        reader.base(obs, "host_params")[:] += np.log2(factor) / 32.0
        reader.base(obs, "params_per_row")[:, 1] += np.log2(factor) / 16.0

    return change


def learning(accuracy: float, loss: float) -> Change:
    """Accuracies and losses (relative to guessing) from the first trained epoch on that end where these say."""

    def change(reader: ObservationReader, obs: NDArray[np.float32]) -> None:
        for name, value in (("accuracy", accuracy), ("loss", symlog(loss)), ("train_loss", symlog(loss))):
            history = reader.base(obs, name)  # newest first
            for epoch in range(1, len(obs)):
                history[epoch, : min(epoch, history.shape[1])] = value

    return change


@dataclass(frozen=True)
class Case:
    """A run of a script, whose first germination is in question, and changes."""

    script: str
    width: int
    changes: Mapping[str, Change]


CASES = (
    Case(
        "resnet_digits",
        4,
        {
            "a doubling costs 8 points instead of 1": price(8.0),
            "a doubling costs 1/4 point": price(0.25),
            "it learns at once: 98%, 5% of the loss of guessing": learning(0.98, 0.05),
        },
    ),
    Case(
        "mlp_digits",
        4,
        {
            "a doubling costs 8 points instead of 1": price(8.0),
            "a doubling costs 1/4 point": price(0.25),
            "it learns at once: 98%, 5% of the loss of guessing": learning(0.98, 0.05),
            "64 times the parameters": larger(64.0),
        },
    ),
    Case(
        "mlp_breast_cancer",
        8,
        {
            "a doubling costs 1/4 point instead of 1": price(0.25),
            "it learns slowly: 70%, 90% of the loss of guessing": learning(0.70, 0.90),
            "1/16 of the parameters": larger(1.0 / 16.0),
        },
    ),
)


def run(script: str, width: int, policy: RecordedPolicy, epochs: int | None) -> list[str]:
    """Run a script with the policy. Returns its decisions other than WAIT."""
    controller, given = tamiyo.GrowthController, sys.argv
    sys.argv = [script, f"--width={width}", *([] if epochs is None else [f"--epochs={epochs}"])]

    def recorded(model: Any, *, config: tamiyo.GrowthConfig, **settings: Any) -> tamiyo.GrowthController:
        return controller(model, config=replace(config, policy=policy, on_error="raise"), **settings)

    tamiyo.GrowthController = recorded  # type: ignore[misc, assignment]
    try:
        with redirect_stdout(io.StringIO()):
            left = runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    finally:
        tamiyo.GrowthController, sys.argv = controller, given  # type: ignore[misc]
    return [f"{d.epoch} {d.op} {d.slot} {d.blueprint}".rstrip() for d in left["grower"].log if not d.waited]


def ask_again(asked: Asked, epoch: int, change: Change | None) -> dict[str, Any]:
    """Return the probabilities of the decision after `epoch` epochs, with what was seen until then changed."""
    obs = np.stack(asked.obs[: epoch + 1])
    if change is not None:
        change(ObservationReader(asked.network.spaces), obs)
    state, heads = asked.network.initial_state(DRAWS), len(asked.network.spaces.action.heads)
    rng, still_waits = np.random.default_rng(0), 1.0
    for t in range(epoch + 1):
        masks = asked.masks[t]
        slot = None if masks.slot is None else np.repeat(masks.slot[None], DRAWS, 0)
        batch = ActionMasks(np.repeat(masks.op[None], DRAWS, 0), slot, np.repeat(masks.rest[None], DRAWS, 0))
        output, state = asked.network.act(
            np.repeat(obs[t][None], DRAWS, 0),
            np.repeat(asked.blueprints[t][None], DRAWS, 0),
            batch,
            state,
            rng.random((DRAWS, heads)),
        )
        still_waits *= float((output.actions[:, 0] == Op.WAIT).mean())
    grown = output.actions[:, 0] == Op.GERMINATE
    sizes = {f"column_{size}": output.actions[:, 2] == blueprint_index(f"column_{size}") for size in SIZES}
    shares = {name: float((grown & chosen).mean()) for name, chosen in sizes.items()}
    summary = {"acted by then": 1.0 - still_waits, "germinates": float(grown.mean())}
    return {**summary, **shares, "in the stream": float(grown.mean()) - sum(shares.values())}


def explain(case: Case, checkpoint: str, epochs: int | None = None) -> list[dict[str, Any]]:
    policy = RecordedPolicy(load_policy(checkpoint))
    decisions = run(case.script, case.width, policy, epochs)
    print(f"{case.script} --width {case.width}: {'; '.join(decisions) or 'waits to the end'}")
    germinated = [epoch for epoch, op in enumerate(policy.asked.ops) if op == Op.GERMINATE]
    epoch = (germinated or [3])[0]
    changes: Sequence[tuple[str, Change | None]] = [("as it was", None), *case.changes.items()]
    return [
        {
            "script": f"{case.script} {case.width}",
            "epoch": epoch,
            "seen": name,
            **ask_again(policy.asked, epoch, change),
        }
        for name, change in changes
    ]


def main() -> None:
    known = parser("decisions", "Explain decisions of the trained policy by what it saw.")
    known.add_argument("--policy", default="trained", help="a checkpoint (default: that of the package)")
    args = known.parse_args()
    cases = CASES[1:2] if args.quick else CASES
    rows = [row for case in cases for row in explain(case, args.policy, 8 if args.quick else None)]
    publish(rows, [], args.json)


if __name__ == "__main__":
    main()
