"""A ResNet with batch normalization on letters and digits in sixteen fonts that may grow columns while it trains.

Run: python examples/practical/resnet_glyphs.py --width 16

The lines marked `# +` were added to an ordinary training script; without them the script trains as before, and so it
does with `--policy never`.
"""

from argparse import ArgumentParser
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import tamiyo  # +

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"  # those whose capitals look alike are left out
FONTS = (
    "DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSans-BoldOblique DejaVuSansMono DejaVuSansMono-Bold"
    " DejaVuSansMono-Oblique DejaVuSansMono-BoldOblique DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic"
    " DejaVuSerif-BoldItalic STIXGeneral STIXGeneralBol STIXGeneralItalic STIXGeneralBolIta"
)
SIZE, NOISE, WARP = 16, 0.1, 0.05


def draw_characters() -> Tensor:
    """Return every character in every font that matplotlib ships [fonts * 47, 48, 48], font by font."""
    drawn, folder = [], Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in FONTS.split():
        font = ImageFont.truetype(folder / f"{name}.ttf", 34)
        for character in CHARACTERS:
            image = Image.new("L", (48, 48))
            ImageDraw.Draw(image).text((24, 24), character, fill=255, font=font, anchor="mm")
            drawn.append(np.asarray(image, dtype=np.float32) / 255)
    return torch.from_numpy(np.stack(drawn))


def draw_images(rows: int) -> tuple[Tensor, Tensor]:
    """Return images [rows, 1, 16, 16] of characters turned, scaled, moved and warped, and their classes."""
    characters = draw_characters()
    drawn, clutter = (torch.randint(len(characters), (rows,)) for _ in "ab")

    def place(chosen: Tensor, shift: Tensor) -> Tensor:
        angle, scale = 0.2 * torch.randn(rows), torch.empty(rows).uniform_(0.6, 1.0)
        cos, sin = scale * angle.cos(), scale * angle.sin()
        turn = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], 1).view(rows, 2, 3)
        grid = F.affine_grid(turn, [rows, 1, SIZE, SIZE], align_corners=False)
        warp = F.interpolate(WARP * torch.randn(rows, 2, 4, 4), (SIZE, SIZE), mode="bicubic")
        return F.grid_sample(characters[chosen, None], grid + warp.permute(0, 2, 3, 1), align_corners=False)

    aside = torch.randn(rows, 2)
    aside = 1.3 * aside / aside.norm(dim=1, keepdim=True)
    images = torch.maximum(place(drawn, 0.1 * torch.randn(rows, 2)), place(clutter, aside))
    return images + NOISE * torch.randn_like(images), drawn % len(CHARACTERS)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stages, before = nn.Sequential(), 1
        for channels in (width, 2 * width, 4 * width):
            halve = nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False)
            self.stages.extend([halve, nn.BatchNorm2d(channels), nn.ReLU(), ResidualBlock(channels)])
            before = channels
        self.head = nn.Linear(before, len(CHARACTERS))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(x).mean((2, 3)))
        return logits


parser = ArgumentParser(description="Train a ResNet on letters and digits.")
parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--rows", type=int, default=4000, help="images to train on")
parser.add_argument("--policy", help="a rule, a checkpoint or a server (default: a trial of two columns)")  # +
parser.add_argument("--price", type=float, default=1.0, help="points that a doubling must be worth")  # +
parser.add_argument("--compute-price", type=float, default=0.0, help="the same of training compute")  # +
options = parser.parse_args()

torch.manual_seed(options.seed)
x, y = draw_images(options.rows + 3000)
train, val, test = torch.arange(len(x)).split([options.rows, 1000, 2000])

model = ResNet(options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
columns = tamiyo.Column(lambda scale: ResNet(int(options.width * scale)))  # +
task = {"horizon_epochs": options.epochs, "num_classes": len(CHARACTERS), "train_rows": len(train)}  # +
task |= {"evaluate": lambda: evaluate(val)[1], "val_rows": len(val)}  # +
task |= {"points_per_doubling": options.price, "points_per_compute_doubling": options.compute_price}  # +
grower = tamiyo.GrowthController(model, optimizer=optimizer, columns=columns, policy=options.policy, **task)  # +


@torch.no_grad()
def evaluate(rows: Tensor) -> tuple[float, float]:
    """Return loss and accuracy."""
    model.eval()
    logits = torch.cat([model(x[part]) for part in rows.split(500)])
    return F.cross_entropy(logits, y[rows]).item(), (logits.argmax(1) == y[rows]).float().mean().item()


grower.step(*evaluate(val))  # +
history = []
for epoch in range(options.epochs):
    model.train()
    losses = []
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        grower.shadow(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))  # +
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    val_loss, accuracy = evaluate(val)
    history.append(accuracy)
    print(f"epoch {epoch + 1:2}  loss {val_loss:.3f}  accuracy {accuracy:.1%}")
    decision = grower.step(val_loss, accuracy, sum(losses) / len(losses))  # +
    print(f"          {decision.op} {decision.slot} {decision.reason}")  # +

test_metric = evaluate(test)[1]
model = grower.export()  # +
print(f"test accuracy {test_metric:.1%} with {sum(p.numel() for p in model.parameters())} parameters")
