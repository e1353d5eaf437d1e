"""Everything that exists for the paper alone. Each experiment is a TOML file in `specs`."""

from pathlib import Path

SPECS = Path(__file__).parent / "specs"
EXPERIMENTS = tuple(sorted(path.stem for path in SPECS.glob("*.toml") if path.stem != "defaults"))
