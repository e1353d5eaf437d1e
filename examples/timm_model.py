"""Any of the models of timm, trained on your classes, then fine-tuned against the expensive mistakes.

pip install timm && python examples/timm_model.py
"""

import numpy as np
import timm
import torch
from torch.nn import functional as F

import csada


def main(architecture="resnet10t", epochs=8, fine_tuning=4, samples=300, size=32):
    torch.manual_seed(0)
    digits = csada.data.load("digits")

    def images(part):
        """As the model takes them: three channels, `size` pixels a side."""
        x, y, _ = part.batch(torch.arange(len(part)))
        return F.interpolate(x, size, mode="bilinear").expand(-1, 3, -1, -1), y

    train, validation, test = (
        images(part) for part in (digits.train.take(torch.arange(samples)), digits.validation, digits.test)
    )
    too_high, too_low = np.triu(np.ones((10, 10)), 1), np.tril(np.ones((10, 10)), -1)
    costs = csada.CostMatrix(10 * too_high + too_low, digits.classes)

    model = timm.create_model(architecture, pretrained=False, num_classes=10)  # pretrained=True downloads weights
    baseline = csada.fit(model, train, "cross_entropy", costs, epochs=epochs, lr=0.02, batch_size=32).model
    better = csada.fit(
        baseline, train, "csada", costs, epochs=fine_tuning, lr=0.001, batch_size=64, tasks=32, step_size=0.02, steps=5
    ).model
    rule = csada.MinimumExpectedCost.within_budget(*csada.predict_logits(baseline, validation), costs)
    rows = {
        "before": csada.evaluate(baseline, test, costs),
        "before + rule": csada.evaluate(baseline, test, costs, rule),
        "after": csada.evaluate(better, test, costs),
    }
    for name, e in rows.items():
        print(f"{name:13} accuracy {100 * e.accuracy:.2f} %, cost per 100 {100 * e.mean_cost:.2f}")
    return rows


if __name__ == "__main__":
    main()
