"""A digits classifier that grows while it trains. Run: tamiyo grow examples/grow_your_model.py

The eight lines marked `# +` were added to an ordinary training script; without them the script trains as before. The
policy is the one in the package, or a served one: TAMIYO_POLICY=host:port python examples/grow_your_model.py
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
train, test = order[:1200], order[1200:]

model = nn.Sequential(
    nn.Linear(64, WIDTH),
    nn.LayerNorm(WIDTH),
    nn.ReLU(),
    nn.Linear(WIDTH, WIDTH),
    nn.LayerNorm(WIDTH),
    nn.ReLU(),
    nn.Linear(WIDTH, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
slots = ["1", "4"]  # +
grower = tamiyo.GrowthController(model, slots, optimizer, horizon_epochs=EPOCHS, num_classes=10)  # +

for epoch in range(EPOCHS):
    model.train()
    for rows in train[torch.randperm(len(train))].split(64):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        grower.shadow(lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]))  # +
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        logits = model(x[test])
    loss, accuracy = F.cross_entropy(logits, y[test]).item(), (logits.argmax(1) == y[test]).float().mean().item()
    decision = grower.step(loss, accuracy)  # +
    print(f"epoch {epoch + 1:2}  loss {loss:.3f}  accuracy {accuracy:.1%}")
    print(f"          {decision.op} {decision.slot}  {decision.reason}")  # +

model = grower.export()  # +
print(f"{sum(p.numel() for p in model.parameters())} parameters")
grower.close()  # +
