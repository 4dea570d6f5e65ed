"""Image tasks: the digits; CIFAR-10 without its data, and with a stand-in for torchvision."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.config import ConfigError, EnvConfig
from actors.env.tasks import DataFiles, Sizes, Task, make_task
from actors.env.tasks.families import images


def cifar(data_dir: Path | None, download: bool = False) -> Task:
    files = DataFiles(None if data_dir is None else str(data_dir), download)
    return make_task("cifar10", np.random.default_rng(0), files)


class CIFAR10:
    """Stand-in for torchvision's class, which raises RuntimeError if its files are missing."""

    downloads = 0

    def __init__(self, root: str, train: bool, download: bool) -> None:
        CIFAR10.downloads += download
        if not (Path(root) / "cifar-10-batches-py" / "test_batch").is_file():
            raise RuntimeError("Dataset not found or corrupted.")
        rows = 50 if train else 10
        self.data = np.random.default_rng(rows).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        self.targets = [row % 10 for row in range(rows)]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("torchvision.datasets")
    module.CIFAR10 = CIFAR10
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    monkeypatch.setattr(CIFAR10, "downloads", 0)
    monkeypatch.setattr(images, "CIFAR_SIZES", Sizes(30, 10, 10))


def test_digits_image_has_the_pixels_of_digits() -> None:
    flat, pictures = (make_task(name, np.random.default_rng(0)) for name in ("digits", "digits_image"))
    assert pictures.shape == (1, 8, 8)
    np.testing.assert_array_equal(flat.test.y, pictures.test.y)
    # Each pixel standardized, or all together: either way a pixel's rows correlate perfectly.
    pixel = np.corrcoef(flat.val.x[:, 20], pictures.val.x[:, 0, 2, 4])[0, 1]
    assert pixel == pytest.approx(1.0, abs=1e-6)


def test_missing_cifar10_raises_and_is_not_downloaded(torchvision: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs env.data_dir: the folder that holds cifar-10-batches-py"):
        cifar(None)
    with pytest.raises(ConfigError, match=r"has no folder cifar-10-batches-py; .* or set env\.download"):
        cifar(tmp_path, EnvConfig().download)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be loaded from .*: Dataset not found or corrupted"):
        cifar(tmp_path)
    assert CIFAR10.downloads == 0
    with pytest.raises(ConfigError, match="cannot be loaded"):
        cifar(tmp_path, download=True)
    assert CIFAR10.downloads == 1


def test_cifar10_is_loaded_from_disk(torchvision: None, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "test_batch").touch()
    raw, made = CIFAR10(str(tmp_path), train=False, download=False).data, cifar(tmp_path)
    assert (made.kind, made.shape, made.sizes) == ("image", (3, 32, 32), Sizes(30, 10, 10))
    np.testing.assert_allclose(made.train.x.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(made.train.x.std((0, 2, 3)), 1, atol=1e-4)
    for channel in range(3):
        together = np.corrcoef(raw[..., channel].ravel(), made.test.x[:, channel].ravel())[0, 1]
        assert together == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(made.test.y, np.arange(10))
    rows = [{r.tobytes() for r in np.ascontiguousarray(s.x)} for s in (made.train, made.val)]
    assert (len(rows[0]), len(rows[1]), len(rows[0] & rows[1])) == (30, 10, 0)
