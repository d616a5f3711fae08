"""A Chromium without a screen, driven by selenium, for tests of the page. Where none is installed, they are skipped."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend import PATIENCE
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

EVIL = "evil.example"  # the browser finds it on this machine
# While a server is away or loads its model, the browser says so for each try.
EXPECTED = (
    "status of 503",
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    "ERR_CONNECTION_RESET",
    "ERR_EMPTY_RESPONSE",
)


class Page:
    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, height: int = 1000) -> None:
        self.resize(width, height)
        self.driver.get(url)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        """`script` is the body of an async function."""
        wrapped = (
            "const done = arguments[arguments.length - 1]; const args = [...arguments].slice(0, -1);"
            f"(async (...given) => {{ {script} }})(...args).then(done, (error) => done('threw ' + error));"
        )
        return self.driver.execute_async_script(wrapped, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def click(self, selector: str) -> None:
        """The page may draw a list anew at any moment, so that what was found is another element when it is clicked."""
        self.run("document.querySelector(arguments[0]).click()", selector)

    def type(self, selector: str, text: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(text)

    def press_tab(self) -> None:
        self.driver.switch_to.active_element.send_keys(Keys.TAB)

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 30) -> float:
        """Waits, and gives how long it took."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < seconds * PATIENCE, f"{what}\n{self.text('body')[:3000]}"
            time.sleep(0.05)
        return time.monotonic() - began

    def until_text(self, selector: str, part: str, seconds: float = 30) -> float:
        return self.until(lambda: part in self.text(selector), f"{selector} says: {part}", seconds)

    def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]

    def errors(self) -> list[str]:
        """What the console says since it was last asked, but for a server that is away."""
        said = [str(entry["message"]) for entry in self._log("browser")]
        return [line for line in said if not any(expected in line for expected in EXPECTED)]

    def asked(self) -> set[str]:
        """Origins that were asked for anything since this was last called."""
        found = set()
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add("/".join(message["params"]["request"]["url"].split("/")[:3]))
        return {origin for origin in found if origin.startswith("http")}  # the rest is the browser's own


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip(
            "no Chromium with its driver here (Debian: apt install chromium chromium-driver): THE PAGE IS UNTESTED"
        )
    options = ChromeOptions()
    options.binary_location = binary
    for flag in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root, in a container
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={profile}",
        f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driven = Chrome(options=options, service=ChromeService(driver))
    try:
        driven.set_script_timeout(120 * PATIENCE)
        yield Page(driven)
    finally:
        driven.quit()
