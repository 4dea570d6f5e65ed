"""The sweeps: what people do instead of growing. Both follow from the episodes of hosts that were built wider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deploy.evaluation.play import Row


def best_built(built: Sequence[Row], price: float) -> int:
    """Return the index of the width with the highest J; of equals, the first."""
    return max(range(len(built)), key=lambda k: built[k].objective(price))


def sweep(built: Sequence[Row], price: float) -> Row:
    """Train all widths for the whole horizon and keep the one with the highest J. `built` are their rows in one
    episode, narrowest first. The sweep costs the FLOPs of all of them."""
    best = built[best_built(built, price)]
    return replace(
        best,
        training_flops=sum(row.training_flops for row in built),
        measuring_flops=sum(row.measuring_flops for row in built),
    )


def equal_compute(built: Sequence[Row], price: float, flops: float) -> Row:
    """Successive halving (Jamieson & Talwalkar, 2016) over the widths for `flops` training FLOPs.

    Three rungs train four, two and one widths; each has a third of the FLOPs, and what the rungs before it could not
    spend. Where a third does not pay one epoch of every width, the widest are left out. The widths of a rung continue
    for equally many epochs, at most to the horizon; the better half continues to the next.
    """
    costs = [row.training_flops / row.epochs for row in built]  # of an epoch
    horizon = len(built[0].curve) - 1
    left = list(range(len(built)))
    while len(left) > 1 and sum(costs[k] for k in left) > flops / 3:
        left.pop()
    epochs = [0] * len(built)
    spent = 0.0
    for rung in (1, 2, 3):
        most = max(0, horizon - epochs[left[0]])
        affordable = int((rung * flops / 3 - spent) / sum(costs[k] for k in left))
        more = min(most, max(affordable, 1 if rung == 1 else 0))  # the bare host trains for at least one epoch
        for k in left:
            epochs[k] += more
            spent += more * costs[k]
        left.sort(key=lambda k: -_objective(built[k], epochs[k], price))
        left = sorted(left[: max(1, 2 // rung)])
    return _stopped(built, left[0], epochs)


def _objective(row: Row, epochs: int, price: float) -> float:
    return row.curve[epochs] - row.curve[0] - price * row.rent


def _stopped(built: Sequence[Row], chosen: int, epochs: Sequence[int]) -> Row:
    """The chosen width after its epochs. How it does on test rows is known only where it trained to the end."""
    own = built[chosen]
    ended = epochs[chosen] >= own.epochs
    shares = [min(1.0, e / row.epochs) for e, row in zip(epochs, built, strict=True)]
    return replace(
        own,
        gain=own.curve[epochs[chosen]] - own.curve[0] if not ended else own.gain,
        accuracy=own.curve[epochs[chosen]],
        test_accuracy=own.test_accuracy if ended else float("nan"),
        epochs=epochs[chosen],
        training_flops=sum(s * row.training_flops for s, row in zip(shares, built, strict=True)),
        measuring_flops=sum(s * row.measuring_flops for s, row in zip(shares, built, strict=True)),
    )
