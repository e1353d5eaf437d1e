"""constraints.txt: does it pin all that is installed here, and has any of it a known vulnerability? Part of `make lint`.

pip-audit asks its service about one package first. Where nothing can be asked, a line says so and the rest counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "constraints.txt"
OWN = {"csada", "pip", "setuptools", "wheel"}  # this package, and what makes an environment
OF_TORCH = ("nvidia-", "cuda-", "triton")  # what torch brings for one kind of GPU: it names the versions itself


def known(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def pins(lock: Path) -> dict[str, str]:
    lines = [line.split("==") for line in lock.read_text().split("\n") if "==" in line]
    return {known(name): version for name, version in lines}


def unpinned(lock: Path) -> list[str]:
    """What is installed and not in the lock as it is. A build of torch for one device counts as its version."""
    found = {known(each.name): each.version.partition("+")[0] for each in distributions()}
    pinned = pins(lock)
    return sorted(
        f"{name} {version} ({pinned.get(name, 'not pinned')})"
        for name, version in found.items()
        if pinned.get(name) != version and name not in OWN and not name.startswith(OF_TORCH)
    )


def answer(lock: Path, seconds: float) -> list[dict[str, Any]]:
    """What the service knows of each package; nothing where it cannot be asked."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        words = [sys.executable, "-m", "pip_audit", "-r", lock, *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return []
    found = json.loads(done.stdout)["dependencies"] if done.stdout.startswith("{") else []
    return [each for each in found if "vulns" in each]  # the others were skipped


def vulnerable(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['name']} {each['version']}: {v['id']}, mended in {', '.join(v['fix_versions']) or 'no version yet'}"
        for each in found
        for v in each["vulns"]
    ]


def main() -> int:
    if missing := unpinned(LOCK):
        print("installed, but not as in constraints.txt; pin these versions, or install those:", *missing, sep="\n  ")
        return 1
    if find_spec("pip_audit") is None:
        print("pip-audit is not installed: pip install 'csada[dev]'")
        return 1
    name, version = next(iter(pins(LOCK).items()))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as one:
        one.write(f"{name}=={version}\n")
        one.flush()
        reached = answer(Path(one.name), 10)
    found = answer(LOCK, 300) if reached else []
    if not found:
        print("audit: no vulnerability service can be asked from here; constraints.txt is not audited")
        return 0
    wrong = vulnerable(found)
    print(
        f"audit: {len(found)} of {len(pins(LOCK))} packages known to the service, {len(wrong)} vulnerabilities",
        *wrong,
        sep="\n  ",
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
