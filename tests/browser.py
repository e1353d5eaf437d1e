"""A real browser for the tests of pages: the system's Chromium, driven by Playwright."""

import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])  # containers run as root
        yield browser
        browser.close()
