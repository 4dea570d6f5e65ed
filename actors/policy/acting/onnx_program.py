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

    Source: Wichura, "Algorithm AS 241", Applied Statistics 37 (1988), PPND16: relative error of about 1e-16.
    """
    q = 0.5 * x  # p - 1/2, where p is the probability below
    central = q * _ratio(0.180625 - q * q, _CENTRAL)
    r = (-(0.5 - q.abs()).clamp(min=1e-300).log()).sqrt()
    tail = torch.where(r <= 5.0, _ratio(r - 1.6, _MIDDLE), _ratio(r - 5.0, _FAR))
    return torch.where(q.abs() <= 0.425, central, torch.where(q < 0, -tail, tail)) / sqrt(2.0)


def _ratio(x: Tensor, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
    above, below = (torch.full_like(x, c[-1]) for c in coefficients)
    for a, b in zip(coefficients[0][-2::-1], coefficients[1][-2::-1], strict=True):
        above, below = above * x + a, below * x + b
    return above / below


_CENTRAL = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4)
    + (4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3)
    + (2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)
_MIDDLE = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0)
    + (1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1)
    + (1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)
_FAR = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1)
    + (2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2)
    + (7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)
_DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.where.self: _where,
    torch.ops.aten.erfinv.default: _erfinv,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's advice, which is for people who write exporters."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
