"""The check of constraints.txt in `make lint`."""

from importlib.metadata import version

from audit import pins, unpinned, vulnerable


def test_a_package_that_is_not_pinned_or_of_another_version_is_named(tmp_path):
    lock = tmp_path / "constraints.txt"
    lock.write_text(f"# all\nNumPy=={version('numpy')}\npillow==0.1\n")
    found = unpinned(lock)
    assert pins(lock) == {"numpy": version("numpy"), "pillow": "0.1"}
    assert f"pillow {version('pillow')} (0.1)" in found and f"scipy {version('scipy')} (not pinned)" in found
    assert not [line for line in found if line.startswith(("numpy ", "csada ", "pip "))]


def test_a_known_vulnerability_is_told_with_the_version_that_mends_it():
    """Two packages as pip-audit writes them."""
    flaw = {"id": "PYSEC-2023-227", "fix_versions": ["10.2.0"], "aliases": ["CVE-2023-50447"], "description": "..."}
    found = [
        {"name": "pillow", "version": "9.0.0", "vulns": [flaw, flaw | {"id": "X-1", "fix_versions": []}]},
        {"name": "six", "version": "1.17.0", "vulns": []},
    ]
    told = ["pillow 9.0.0: PYSEC-2023-227, mended in 10.2.0", "pillow 9.0.0: X-1, mended in no version yet"]
    assert vulnerable(found) == told and vulnerable(found[1:]) == []
