"""Models of many kinds are grown, exported, and read without Tamiyo; language models generate with their columns."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tamiyo
from actors.growth.columns import grown_model
from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth import architectures
from tests.support.growth.architectures import ARCHITECTURES, transformers
from tests.support.growth.columns import JOINED, grow
from tests.support.growth.growing import Run, Script, advance, fossilize, germinate

EPOCHS = 10
SEEDS = {"graph network": ["first", ""]}
"""Modules after which seeds grow as well: within the model, and at its end."""
FOREIGN = """
import json, sys
for name in ("actors", "learner", "deploy", "tamiyo", "tests"):
    sys.modules[name] = None
import torch
from architectures import ARCHITECTURES
from grown_model import build_grown
from safetensors.torch import load_model
for name in sys.argv[1:]:
    model = build_grown(json.load(open(f"{name}/grown.json")), ARCHITECTURES[name][0]).eval()
    load_model(model, f"{name}/grown.safetensors")
    given, expected = torch.load(f"{name}.pt", weights_only=True)
    with torch.no_grad():
        found = model(*given)
    assert torch.equal(getattr(found, "logits", found), expected), name
"""


def output(network: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        found = network.eval()(*given)
    return getattr(found, "logits", found)


def save_grown(name: str, folder: Path) -> None:
    """Grow a column beside a model, and seeds in it; save them, and what they return for an input."""
    make, draw, loss_of = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, given = make(1.0), draw()
    optimizer, slots, script = torch.optim.AdamW(model.parameters(), 0.01), SEEDS.get(name, []), JOINED
    if slots:
        script = [germinate(0, 1, 2), germinate(1, 2, 0), grow(2, target=0), *map(advance, (0, 1, 2, 0, 1, 2))]

    def loss() -> torch.Tensor:
        return loss_of(model(*given), *given)

    grower = tamiyo.GrowthController(
        model, slots, optimizer, columns=tamiyo.Column(make), policy=Script(script), horizon_epochs=EPOCHS
    )
    model.train()
    for _ in range(EPOCHS):
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            grower.shadow(loss)
            optimizer.step()
        grower.step(loss())
    assert list(grower.stages.values()) == [*[Stage.HOLDING] * (len(slots) + 1), Stage.DORMANT], name
    expected = output(model, given)
    assert torch.equal(output(grower.export(), given), expected), name
    tamiyo.save_grown(grower, folder / name)
    torch.save((given, expected), folder / f"{name}.pt")


def test_models_grow_a_column_and_are_read_elsewhere(tmp_path: Path) -> None:
    """Those of timm and transformers where these are installed."""
    names = [n for n in ARCHITECTURES if ":" not in n or importlib.util.find_spec(n.split(":")[0])]
    for name in names:
        save_grown(name, tmp_path)
    for module in (architectures, grown_model):
        shutil.copy(module.__file__, tmp_path)
    command = [sys.executable, "-c", FOREIGN, *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


VOCABULARY, PROMPT = 20, torch.tensor([[3, 4, 5, 6, 7]])


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
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    columns = Column(lambda scale: transformers(kind, scale), output=output)
    script = [grow(target=target), *JOINED[1:], fossilize()]
    return TextRun(transformers(kind, 1), Script(script), [], columns=columns).epochs(6)


def greedy(model: Any, steps: int = 6) -> Tensor:
    tokens = PROMPT
    for _ in range(steps):
        with torch.no_grad():
            tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


@pytest.mark.filterwarnings("ignore")
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


@pytest.mark.filterwarnings("ignore")
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
