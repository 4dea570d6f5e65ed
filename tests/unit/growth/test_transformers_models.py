"""Language models of the transformers library, with their outputs, caches and files; skipped where it is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tamiyo
from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.architectures import transformers
from tests.support.growth.columns import JOINED, grow
from tests.support.growth.growing import Run, Script, fossilize

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
VOCABULARY = 20


class TextRun(Run):
    """Predicts a repeated text; the model computes its loss itself where columns are mixed at its head."""

    def loss(self, rows: slice) -> Tensor:
        tokens = (torch.arange(12) + torch.arange(rows.start, rows.stop)[:, None]) % VOCABULARY
        if self.grower.config.columns.output:
            return self.model(tokens, labels=tokens).loss
        return F.cross_entropy(self.model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def validate(self) -> tuple[float, float]:
        self.model.eval()
        return self.loss(slice(0, 32)).item(), 0.5


def grown(kind: str, output: str, target: int) -> TextRun:
    torch.manual_seed(0)
    columns = Column(lambda scale: transformers(kind, scale), output=output)
    script = [grow(target=target), *JOINED[1:], fossilize()]
    return TextRun(transformers(kind, 1), Script(script), [], columns=columns).epochs(6)


PROMPT = torch.tensor([[3, 4, 5, 6, 7]])


def greedy(model: Any, steps: int = 6) -> Tensor:
    tokens = PROMPT
    for _ in range(steps):
        with torch.no_grad():
            tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


@pytest.mark.parametrize(("kind", "output"), [("GPT-2", ""), ("Llama", "lm_head")])
def test_a_model_that_became_its_column_is_one_of_the_library(kind: str, output: str, tmp_path: Path) -> None:
    own = grown(kind, output, target=2)
    assert own.grower.stages["column 1"] is Stage.FOSSILIZED
    exported = own.grower.export().eval()
    expected = greedy(own.model.eval())
    for model in (own.model, exported):
        assert type(model) is type(transformers(kind, 1))
        written = model.generate(PROMPT, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
        assert torch.equal(written, expected), "with a cache"
        model.save_pretrained(tmp_path / "model")
        read = type(model).from_pretrained(tmp_path / "model").eval()
        assert torch.equal(read(PROMPT).logits, own.model(PROMPT).logits)
    tamiyo.save_grown(own.grower, tmp_path / "grown")
    loaded = tamiyo.load_grown(tmp_path / "grown", lambda scale: transformers(kind, scale)).eval()
    assert torch.equal(loaded(PROMPT).logits, own.model(PROMPT).logits)


@pytest.mark.parametrize(("kind", "output"), [("GPT-2", ""), ("Llama", "lm_head")])
def test_a_mix_generates_without_a_cache_and_refuses_one(kind: str, output: str, tmp_path: Path) -> None:
    own = grown(kind, output, target=0)
    model = own.model.eval()
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    written = model.generate(PROMPT, use_cache=False, **options)
    assert torch.equal(written, greedy(model))
    with pytest.raises(ValueError, match=r"holds the state of one network.*use_cache=False"):
        model.generate(PROMPT, **options)
    exported = own.grower.export().eval()
    assert torch.equal(exported(PROMPT).logits, model(PROMPT).logits)
    assert type(exported(PROMPT)) is type(model(PROMPT))
    assert exported.config is exported.host.config
    for name in ("generate", "save_pretrained"):
        with pytest.raises(AttributeError, match=f"{name} is the host's own and would leave its columns out"):
            getattr(exported, name)
    tamiyo.save_grown(exported, tmp_path)
    loaded = tamiyo.load_grown(tmp_path, lambda scale: transformers(kind, scale)).eval()
    assert torch.equal(loaded(PROMPT).logits, model(PROMPT).logits)
