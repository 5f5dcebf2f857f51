"""The page in a real browser: type, send, see text stream and the experts light up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver"
)
SCREENSHOTS = Path(os.environ.get("COLIBRI_SCREENSHOTS", "build/screenshots"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,860")
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def page(server: Server, browser: Any) -> Any:
    browser.get(server.url)
    wait(browser, lambda: "layers" in text(browser, "model"))
    return browser


def wait(browser: Any, condition: Any, seconds: float = 20) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, seconds, poll_frequency=0.03).until(lambda _: condition())


def text(browser: Any, element: str) -> str:
    return str(browser.find_element("id", element).text)


def fill(browser: Any, element: str, value: str) -> None:
    field = browser.find_element("id", element)
    field.clear()
    field.send_keys(value)


def answer(browser: Any) -> str:
    found = browser.find_elements("css selector", ".message.assistant")
    return str(found[-1].text) if found else ""


def watch_answers(browser: Any) -> None:
    """Count in window.stages how often the answer grows, in the page itself: looking from outside is too slow."""
    browser.execute_script("""
        window.stages = 0;
        let last = "";
        new MutationObserver(() => {
            const now = [...document.querySelectorAll(".message.assistant")].at(-1)?.textContent ?? "";
            if (now.length > last.length && now.startsWith(last)) window.stages += 1;
            last = now;
        }).observe(document.getElementById("messages"), {childList: true, subtree: true, characterData: true});
    """)


def pixels(browser: Any) -> str:
    return str(browser.execute_script("return document.getElementById('map').toDataURL()"))


def colours(browser: Any) -> dict[str, str]:
    script = "const style = getComputedStyle(document.body); return {ink: style.color, paper: style.backgroundColor}"
    found: dict[str, str] = browser.execute_script(script)
    return found


def luminance(colour: str) -> float:
    """As the contrast rules for the web define it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def screenshot(browser: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))


def test_text_streams_and_the_experts_light_up(page: Any) -> None:
    fill(page, "tokens", "900")
    fill(page, "temperature", "1")
    page.execute_script("document.getElementById('temperature').value = 1")
    dark = pixels(page)
    watch_answers(page)
    for _ in range(8):  # the model may have little to say: ask again
        page.find_element("id", "clear").click()
        fill(page, "prompt", "Tell me of the beginning of all things, and leave nothing out.")
        page.find_element("id", "send").click()
        wait(page, lambda: answer(page) != "" and text(page, "send") == "Send", 60)
        if (stages := page.execute_script("return window.stages")) > 3:
            break
    assert stages > 3, "the text did not come piece by piece"
    wait(page, lambda: int(page.find_element("id", "map").get_attribute("data-used") or 0) > 14)
    wait(page, lambda: pixels(page) != dark)
    screenshot(page, "page-light")
    assert page.find_elements("css selector", ".message.error") == []
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_stop_and_new_chat(page: Any, server: Server) -> None:
    page.execute_script("document.getElementById('tokens').value = 1900")
    fill(page, "prompt", "Count.")
    page.find_element("id", "send").click()
    wait(page, lambda: text(page, "send") == "Stop" or answer(page) != "")
    page.find_element("id", "clear").click()
    wait(page, lambda: text(page, "send") == "Send")
    assert page.find_elements("css selector", ".message") == []
    server.wait(server.idle, 5)


def test_an_error_is_shown_where_the_answer_would_be(page: Any) -> None:
    page.execute_script("document.getElementById('prompt').value = 'word '.repeat(3000)")  # typing would take a minute
    page.find_element("id", "send").click()
    wait(page, lambda: "context holds" in answer(page), 40)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 860), (390, 844)])
def test_it_is_readable_in_both_schemes_and_on_a_phone(page: Any, scheme: str, size: tuple[int, int]) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600},
    )
    found = colours(page)
    lighter, darker = sorted((luminance(found["ink"]), luminance(found["paper"])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) > 7
    assert (luminance(found["paper"]) > 0.5) == (scheme == "light")
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(overflow) <= 0
    for element in ("prompt", "send", "rate", "map"):
        assert page.find_element("id", element).is_displayed()
    screenshot(page, f"page-{scheme}-{size[0]}")
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
