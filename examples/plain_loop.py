"""csada in a training loop of your own: a method is a loss, and a decision rule is a function of logits.

python examples/plain_loop.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import csada


def main(epochs=10, fine_tuning=10, scale=1.0):
    torch.manual_seed(0)
    digits = csada.data.load("digits", scale=scale)  # your own data set goes here
    train, validation, test = (
        TensorDataset(*part.batch(torch.arange(len(part)))[:2])
        for part in (digits.train, digits.validation, digits.test)
    )
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
    )
    too_high, too_low = np.triu(np.ones((10, 10)), 1), np.tril(np.ones((10, 10)), -1)
    costs = csada.CostMatrix(10 * too_high + too_low, digits.classes)  # rows are the truth, columns the prediction

    def train_with(method, epochs, lr):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        for _ in range(epochs):
            model.train()  # a method attacks in eval mode, and gives every module its own mode back
            for x, y in DataLoader(train, batch_size=64, shuffle=True):
                optimizer.zero_grad()
                loss = method(model, x, y)  # instead of F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()

    rows = {}

    def judge(name):
        rule = csada.MinimumExpectedCost.within_budget(*csada.predict_logits(model, validation), costs)
        rows[name], rows[f"{name} + rule"] = (csada.evaluate(model, test, costs, d) for d in ("argmax", rule))

    train_with(csada.METHODS["cross_entropy"](costs), epochs, lr=0.02)
    judge("before")
    train_with(csada.METHODS["csada"](costs, step_size=0.02), fine_tuning, lr=0.002)
    judge("after")
    for name, e in rows.items():
        print(f"{name:13} accuracy {100 * e.accuracy:.2f} %, cost per 100 {100 * e.mean_cost:.2f}")
    return rows


if __name__ == "__main__":
    main()
