"""The policy's step as an ONNX model: the program of `exported`, in operations that every ONNX runtime has.

State and masks that the policy does not have are left out, since ONNX runtimes dislike empty tensors, and the state's
outputs are called `next_h`, `next_c`, ...: in ONNX, an input and an output cannot share a name.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from actors.errors import UserError
from actors.policy.acting.exported import BATCH_AXES, INPUTS, OUTPUTS, ExportedStep, example_inputs
from actors.policy.distribution import TAIL
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram


class OnnxStep(NamedTuple):
    """An ONNX model of the step, with the names of its tensors."""

    program: ONNXProgram
    inputs: tuple[str, ...]  # those of INPUTS that are not empty, in that order
    outputs: tuple[str, ...]  # those of OUTPUTS that are not empty; the state's with `next_` before them
    opset: int


def onnx_step(network: FactoredRecurrentActorCritic) -> OnnxStep:
    """Translate the step of a network on the CPU, for any number N of environments.

    Raises:
        UserError: If the extra `onnx` is not installed, or if an operation of this policy has no translation.
    """
    try:
        import onnxscript  # noqa: F401, torch.onnx needs it and says so in many lines
    except ImportError:
        raise UserError("exporting to ONNX needs the extra `onnx`: pip install 'tamiyo[onnx]'") from None
    step = _NonEmpty(network).eval()
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    axes = [BATCH_AXES.get(name) for name in step.inputs]
    shapes = tuple({} if axis is None else {axis: batch} for axis in axes)
    with _quiet(), torch.no_grad():
        exported = torch.export.export(step, step.examples, dynamic_shapes={"given": shapes})
        try:
            program = torch.onnx.export(
                exported.run_decompositions(_DECOMPOSITIONS),
                dynamo=True,
                input_names=list(step.inputs),
                output_names=list(step.outputs),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"this policy cannot be translated to ONNX ({reason}): export it as .pt2") from error
    assert program is not None
    return OnnxStep(program, step.inputs, step.outputs, program.model.opset_imports[""])


class _NonEmpty(nn.Module):
    """`ExportedStep` without its empty inputs and outputs."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        super().__init__()
        self.step = ExportedStep(network)
        all_inputs = dict(zip(INPUTS, example_inputs(network, 2), strict=True))
        given = {name: t for name, t in all_inputs.items() if t.numel()}
        self.inputs, self.examples = tuple(given), tuple(given.values())
        self.left_out = {name: t for name, t in all_inputs.items() if not t.numel()}
        self.returned = [n for n in OUTPUTS if n not in self.left_out]
        self.outputs = tuple(f"next_{n}" if n in PolicyState._fields else n for n in self.returned)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        tensors, rows = dict(zip(self.inputs, given, strict=True)), given[0].shape[0]
        for name, empty in self.left_out.items():
            axis, shape = BATCH_AXES.get(name), list(empty.shape)
            if axis is not None and empty.dim() > axis:
                shape[axis] = rows
            tensors[name] = empty.new_zeros(shape)
        found = dict(zip(OUTPUTS, self.step(*(tensors[name] for name in INPUTS)), strict=True))
        return tuple(found[name] for name in self.returned)


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """onnxruntime has no `Where` for booleans."""
    if a.dtype != torch.bool:
        return NotImplemented  # type: ignore[no-any-return]  # torch's word for "leave it as it is"
    return (condition & a) | (~condition & b)


def _erfinv(x: Tensor) -> Tensor:
    """The inverse error function, by the percentage points of the normal distribution.

    Source: Wichura, "Algorithm AS 241", Applied Statistics 37 (1988), PPND16, whose relative error is about 1e-16. The
    exporter writes numbers as float32, which leaves a relative error of about 1e-7, one hundredth of a cell. It also
    rounds the largest noise that `sample_cells` accepts to 1, so the tail ends here.
    """
    q = 0.5 * x  # p - 1/2, where p is the probability below
    central = q * _ratio(0.180625 - q * q, _CENTRAL)
    r = (-(0.5 - q.abs()).clamp(min=TAIL).log()).sqrt()
    tail = torch.where(r <= 5.0, _ratio(r - 1.6, _MIDDLE), _ratio(r - 5.0, _FAR))
    return torch.where(q.abs() <= 0.425, central, torch.where(q < 0, -tail, tail)) / sqrt(2.0)


def _ratio(x: Tensor, coefficients: tuple[tuple[float, float], ...]) -> Tensor:
    above, below = (torch.full_like(x, c) for c in coefficients[-1])
    for a, b in coefficients[-2::-1]:
        above, below = above * x + a, below * x + b
    return above / below


# Pairs of the coefficients of x^0, x^1, ... above and below the line.
_CENTRAL = (
    (3.3871328727963665, 1.0),
    (133.14166789178438, 42.31333070160091),
    (1971.5909503065513, 687.1870074920579),
    (13731.69376550946, 5394.196021424751),
    (45921.95393154987, 21213.794301586597),
    (67265.7709270087, 39307.89580009271),
    (33430.57558358813, 28729.085735721943),
    (2509.0809287301227, 5226.495278852854),
)
_MIDDLE = (
    (1.4234371107496835, 1.0),
    (4.630337846156546, 2.053191626637759),
    (5.769497221460691, 1.6763848301838038),
    (3.6478483247632045, 0.6897673349851),
    (1.2704582524523684, 0.14810397642748008),
    (0.2417807251774506, 0.015198666563616457),
    (0.022723844989269184, 0.0005475938084995345),
    (0.0007745450142783414, 1.0507500716444169e-09),
)
_FAR = (
    (6.657904643501103, 1.0),
    (5.463784911164114, 0.599832206555888),
    (1.7848265399172913, 0.1369298809227358),
    (0.29656057182850487, 0.014875361290850615),
    (0.026532189526576124, 0.0007868691311456133),
    (0.0012426609473880784, 1.8463183175100548e-05),
    (2.7115555687434876e-05, 1.421511758316446e-07),
    (2.0103343992922881e-07, 2.0442631033899397e-15),
)
_DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.where.self: _where,
    torch.ops.aten.erfinv.default: _erfinv,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's advice, which is for people who write exporters."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
