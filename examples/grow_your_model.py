"""A digits classifier that grows while it trains. Run: tamiyo grow examples/grow_your_model.py

The eight lines marked `# +` were added to an ordinary training script; without them the script trains as before. The
policy is a rule, another one by its name, or a served one: TAMIYO_POLICY=gap python examples/grow_your_model.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import tamiyo  # +

EPOCHS, WIDTH = 15, 8
torch.manual_seed(0)
data = load_digits()
x = torch.tensor(data.data, dtype=torch.float32) / 16
y = torch.tensor(data.target)
order = torch.randperm(len(x))
train, val = order[:1200], order[1200:]


def classifier(width: int) -> nn.Module:
    first, second = nn.Linear(64, width), nn.Linear(width, width)
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    return nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), nn.Linear(width, 10))


model = classifier(WIDTH)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


@torch.no_grad()
def measure() -> tuple[float, float]:
    logits = model.eval()(x[val])
    return F.cross_entropy(logits, y[val]).item(), (logits.argmax(1) == y[val]).float().mean().item()


columns = tamiyo.Column(lambda scale: classifier(int(WIDTH * scale)))  # +
task = {"horizon_epochs": EPOCHS, "num_classes": 10, "evaluate": lambda: measure()[1]}  # +
grower = tamiyo.GrowthController(model, [], optimizer, columns=columns, **task)  # +

for epoch in range(EPOCHS):
    model.train()
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        grower.shadow(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))  # +
        optimizer.step()
    scheduler.step()
    val_loss, accuracy = measure()
    decision = grower.step(val_loss, accuracy)  # +
    print(f"epoch {epoch + 1:2}  loss {val_loss:.3f}  accuracy {accuracy:.1%}")
    print(f"          {decision.op} {decision.slot}  {decision.reason}")  # +

model = grower.export()  # +
print(f"{sum(p.numel() for p in model.parameters())} parameters")
