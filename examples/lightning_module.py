"""A LightningModule that knows nothing of costs, made to avoid the expensive mistakes by a callback.

pip install 'csada[lightning]' && python examples/lightning_module.py
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import csada
from csada.lightning import CostSensitive

try:
    from lightning.pytorch import LightningModule, Trainer
except ImportError:
    from pytorch_lightning import LightningModule, Trainer


class Digits(LightningModule):
    """As anybody would write it."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main(epochs=10, fine_tuning=10, scale=1.0):
    torch.manual_seed(0)
    digits = csada.data.load("digits", scale=scale)
    train, validation, test = (
        DataLoader(TensorDataset(*part.batch(torch.arange(len(part)))[:2]), batch_size=64, shuffle=part is digits.train)
        for part in (digits.train, digits.validation, digits.test)
    )
    too_high, too_low = np.triu(np.ones((10, 10)), 1), np.tril(np.ones((10, 10)), -1)
    costs = csada.CostMatrix(10 * too_high + too_low, digits.classes)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }

    module = Digits(lr=0.02)
    Trainer(max_epochs=epochs, accelerator="cpu", **quiet).fit(module, train, validation)
    rows = {"before": csada.evaluate(module, test, costs)}

    module.lr = 0.002
    callback = CostSensitive(costs, "csada", step_size=0.02, freeze_norm=True)
    trainer = Trainer(max_epochs=fine_tuning, accelerator="cpu", callbacks=[callback], **quiet)
    trainer.fit(module, train, validation)
    rows["after"] = csada.evaluate(module, test, costs)
    print("validation:", {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
    for name, e in rows.items():
        print(f"{name:6} accuracy {100 * e.accuracy:.2f} %, cost per 100 {100 * e.mean_cost:.2f}")
    return rows


if __name__ == "__main__":
    main()
