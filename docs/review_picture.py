"""Makes docs/review.png: the page of `csada review` on drawn pills, in the system's Chromium (needs Playwright).

The model is a linear one of small images, so that it is quick to fit and makes mistakes worth looking at.
"""

import io
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import csada
from csada.costs import CostMatrix
from csada.decisions.elicit import choose_pairs
from csada.report.review import Review, page
from csada.workflow.review import thumbnails_of

OUT = Path(__file__).with_name("review.png")
SHOWN = slice(8, 16)  # of the classes


def main() -> None:
    data = csada.data.load("pills", size=96, scale=0.3)
    names = data.classes[SHOWN]
    parts = []
    for part in (data.train, data.validation):
        of = part.take(torch.nonzero((part.y >= SHOWN.start) & (part.y < SHOWN.stop))[:, 0])
        parts.append(replace(of, y=of.y - SHOWN.start))
    small = [torch.nn.functional.avg_pool2d(part.x.float(), 8).flatten(1).numpy() for part in parts]
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(small[0], parts[0].y.numpy())
    logits, labels = model.decision_function(small[1]), parts[1].y.numpy()
    costs = CostMatrix(CostMatrix.uniform(len(names)).values, names)
    p = csada.MinimumExpectedCost.calibrated(logits, labels, costs).probabilities(logits)
    files = [f"validation/{names[y]}/{i:03}.png" for i, y in enumerate(labels)]
    images, side = thumbnails_of(parts[1], 96)
    pairs = choose_pairs(p, labels, costs)
    shown = Review(
        "pills", "0" * 16, costs, pairs, p.astype(np.float32), labels, p.argmax(1), files, images=images, side=side
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder, "review.html")
        file.write_text(page(shown), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1180, "height": 800}, color_scheme="light")
        tab.goto(file.as_uri())
        for ratio in ("5", "3", "1", "2", "5"):
            tab.locator("#question .quick button").get_by_text(ratio, exact=True).click()
        tab.evaluate("document.documentElement.style.scrollBehavior = 'auto'; $('mistakes').scrollIntoView()")
        taken = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        browser.close()
    taken.quantize(128).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
