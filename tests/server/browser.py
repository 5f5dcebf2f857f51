"""A real browser, and what tests do with the page in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver"
)
SCREENSHOTS = Path(os.environ.get("COLIBRI_SCREENSHOTS", "build/screenshots"))

# Answers to chat requests come from the test: window.say(text), window.end(reason), window.fail(). Requests are kept.
MODEL = """
    window.sent = [];
    const fetched = window.fetch;
    window.fetch = (path, options) => {
        if (path !== "v1/chat/completions") return fetched(path, options);
        window.sent.push(JSON.parse(options.body));
        const encoder = new TextEncoder();
        const body = new ReadableStream({start(stream) {
            const event = (choice) => stream.enqueue(encoder.encode(
                `data: ${JSON.stringify({choices: [{delta: {}, finish_reason: null, ...choice}]})}\\n\\n`));
            window.say = (content) => event({delta: {content}});
            window.think = (text) => event({delta: {reasoning_content: text}});
            window.end = (reason = "stop") => { event({finish_reason: reason}); stream.close(); };
            window.fail = () => stream.error(new TypeError("network error"));
            options.signal.addEventListener("abort", () => stream.error(new DOMException("left", "AbortError")));
        }});
        return Promise.resolve(new Response(body, {status: 200}));
    };
"""


def make_browser() -> Any:
    """Chromium without a window, at the size of a desktop."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,860")
    return webdriver.Chrome(options=options, service=Service(str(DRIVER)))


def let_tests_answer(browser: Any) -> Any:
    """From now on the test gives the answers to what this window asks."""
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": MODEL})
    return browser


class Page:
    """The page in a browser. Elements are named by their id."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def open(self, url: str) -> Page:
        """Load it in a browser that was never here."""
        self.browser.get(f"{url.rstrip('/')}/health")  # of the same origin
        self.run("localStorage.clear(); sessionStorage.clear()")
        self.severe()
        self.browser.get(url)
        return self

    def connected(self) -> Page:
        """Wait until it shows the model."""
        self.wait(lambda: self.text("state") == "connected" and "layers" in self.property("facts", "textContent"))
        return self

    def wait(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        """Until the condition holds."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, seconds, poll_frequency=0.03).until(lambda _: condition())

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.browser.execute_script(script, *arguments)

    def element(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def text(self, name: str) -> str:
        return str(self.element(name).text)

    def property(self, name: str, what: str) -> str:
        return str(self.element(name).get_property(what))

    def click(self, name: str) -> None:
        self.element(name).click()

    def fill(self, name: str, value: str) -> None:
        """Type it into a field."""
        field = self.element(name)
        field.clear()
        field.send_keys(value)

    def set(self, name: str, value: str) -> None:
        """Put it into a field at once, as if it was typed."""
        script = "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        self.run(f"{script} field.dispatchEvent(new Event('change', {{bubbles: true}}))", name, value)

    def send(self, text: str) -> None:
        self.fill("prompt", text)
        self.click("send")

    def answer(self) -> str:
        """The latest answer's text, without what stands below it."""
        found = self.all(".message.assistant .body")
        return str(found[-1].text) if found else ""

    def messages(self) -> list[str]:
        return [each.text for each in self.all(".message .body")]

    def size(self, width: int, height: int, scheme: str = "light") -> None:
        """Look at it on another screen."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def own_size(self) -> None:
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def severe(self) -> list[Any]:
        """Errors in the console since the last call."""
        return [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    # ---- answers that the test gives (MODEL) ------------------------------------------------------------------------

    def asked(self) -> list[Any]:
        """The messages of each request so far."""
        return [each["messages"] for each in self.run("return window.sent")]

    def say(self, text: str) -> None:
        """Let the model say a part of its answer."""
        self.run("window.say(arguments[0])", text)

    def end(self, text: str = "") -> None:
        """Let the model end its answer."""
        self.run("if (arguments[0]) window.say(arguments[0]); window.end()", text)
        self.wait(lambda: self.text("send") == "Send")

    def ask(self, text: str, answer: str) -> None:
        """A whole turn."""
        self.send(text)
        self.end(answer)
