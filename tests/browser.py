# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium without a window, for tests that open pages."""

import contextlib
import importlib.util
import json
import shutil

import pytest

_FLAGS = (
    "headless",
    "no-sandbox",  # Root and most containers have none.
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
)


@contextlib.contextmanager
def open_browser(folder):
    """Yield a browser; skip the test if there is none.

    Args:
      folder: for what the browser writes.
    """
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium is not installed: sudo apt-get install chromium chromium-driver")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip('selenium is not installed: pip install ".[test]"')
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*_FLAGS, f"user-data-dir={folder}"):
        options.add_argument(f"--{flag}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "localhost,127.0.0.1")
        patch.setenv("no_proxy", "localhost,127.0.0.1")
        with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
            browser.get("about:blank")
            requests_of(browser)  # Drops those of the page that a new window shows.
            yield browser


def requests_of(browser):
    """Return the URLs that the browser has asked for since the last call."""
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [entry for entry in entries if entry["method"] == "Network.requestWillBeSent"]
    return {entry["params"]["request"]["url"] for entry in sent}
