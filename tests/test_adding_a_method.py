"""The page on adding a method is true: its code runs in order, and what it adds keeps the contract."""

import re
from pathlib import Path

import pytest
import test_contract as contract
import torch

import csada

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"


@pytest.fixture(scope="module")
def page():
    """What the page's code defines; METHODS is given back as it was."""
    before = dict(csada.METHODS)
    namespace = {"__name__": __name__}  # dataclasses look their module up
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), namespace)
    yield namespace
    csada.METHODS.clear()
    csada.METHODS.update(before)


def test_annotations_need_no_import_at_run_time(page):
    """The page's code is no module, so that CostMatrix in its annotations leads nowhere; options are checked all the same."""
    with pytest.raises(csada.InputError, match="unknown option 'amout'"):
        csada.fit(page["start"], page["splits"], "cheap_smoothing", page["costs"], epochs=1, amout=0.2)
    with pytest.raises(csada.InputError, match="amount must be at least 0"):
        csada.fit(page["start"], page["splits"], "cheap_smoothing", page["costs"], epochs=1, amount=2)


def test_the_example_trains_and_is_compared(page):
    assert csada.METHODS["cheap_smoothing"] is page["CheapSmoothing"]
    assert page["fitted"].method == page["CheapSmoothing"](page["costs"], amount=0.2)
    rows = [line.row for line in page["comparison"].summary]
    assert rows == ["baseline", "baseline + rule", "csada", "csada + rule", "cheap_smoothing"]


PROMISES = [name for name in vars(contract) if name.startswith("test_") and "zero_costs" not in name]


@pytest.mark.parametrize("promise", PROMISES)
def test_the_example_keeps_the_contract(promise, page):
    getattr(contract, promise)("cheap_smoothing")


def test_expensive_mistakes_get_less_of_the_doubt(page):
    """The page's claim: where the loss is least, an expensive mistake is less likely than a cheap one."""
    costs = csada.CostMatrix([[0, 10, 1], [1, 0, 1], [1, 1, 0]])
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    method, y = page["CheapSmoothing"](costs), torch.tensor([0])
    optimiser = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = method(torch.nn.Identity(), logits, y)
        loss.backward()
        return loss

    optimiser.step(closure)
    truth, expensive, cheap = logits.detach().softmax(1)[0].tolist()
    assert truth == pytest.approx(0.9, abs=1e-4)
    assert expensive / cheap == pytest.approx(torch.tensor(-(10 - 1) / 2.5).exp().item(), rel=1e-2)
