"""The page in a real browser over a real engine: text streams, experts light up, and what is said when things fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .browser import Page, needs_browser
from .conftest import Server, serving

pytestmark = needs_browser


def watch_answers(page: Page) -> None:
    """Count in window.stages how often the answer grows, in the page itself: looking from outside is too slow."""
    page.run("""
        window.stages = 0;
        let last = "";
        new MutationObserver(() => {
            const now = [...document.querySelectorAll(".message.assistant .body")].at(-1)?.textContent ?? "";
            if (now.length > last.length && now.startsWith(last)) window.stages += 1;
            last = now;
        }).observe(document.getElementById("log"), {childList: true, subtree: true, characterData: true});
    """)


def pixels(page: Page) -> str:
    return str(page.run("return document.getElementById('map').toDataURL()"))


def colours(page: Page) -> dict[str, str]:
    script = "const style = getComputedStyle(document.body); return {ink: style.color, paper: style.backgroundColor}"
    found: dict[str, str] = page.run(script)
    return found


def luminance(colour: str) -> float:
    """As the contrast rules for the web define it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_streams_and_the_experts_light_up(page: Page) -> None:
    page.set("tokens", "900")
    page.set("temperature", "1")
    dark = pixels(page)
    watch_answers(page)
    for _ in range(8):  # the model may have little to say: ask again
        page.click("clear")
        page.send("Tell me of the beginning of all things, and leave nothing out.")
        page.wait(lambda: page.answer() != "" and page.text("send") == "Send", 60)
        if (stages := page.run("return window.stages")) > 3:
            break
    assert stages > 3, "the text did not come piece by piece"
    page.wait(lambda: int(page.element("map").get_attribute("data-used") or 0) > 14)
    page.wait(lambda: pixels(page) != dark)
    page.screenshot("page-light")
    assert page.text("problem") == ""
    assert " tokens in " in page.all(".message.assistant .note")[-1].text
    assert page.severe() == []


def test_a_new_chat_ends_what_runs(page: Page, server: Server) -> None:
    with server.standing_still():
        page.send("Count.")
        page.wait(lambda: page.text("send") == "Stop")
        page.click("clear")
        page.wait(lambda: page.text("send") == "Send")
        assert page.all(".message") == []
    server.wait(server.idle, 5)


def test_stop_ends_an_answer_of_the_engine(page: Page, server: Server) -> None:
    page.run("""
        const fetched = window.fetch;
        window.fetch = (path, options) => {
            if (path !== "v1/chat/completions") return fetched(path, options);
            return fetched(path, {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})});
        };
    """)
    page.set("tokens", "1900")
    page.send("Count.")
    page.wait(lambda: page.answer() != "")
    page.click("send")
    page.wait(lambda: page.text("send") == "Send")
    assert page.all(".message.assistant .note")[0].text == "stopped"
    server.wait(server.idle, 5)
    page.click("again")
    page.wait(lambda: page.text("send") == "Stop")
    page.wait(lambda: page.text("send") == "Send", 60)
    assert "1900 tokens" in page.all(".message.assistant .note")[0].text
    assert "cut at the token limit" in page.all(".message.assistant .note")[0].text


def test_what_was_refused_goes_back_to_where_it_was_typed(page: Page) -> None:
    long = "word " * 3000
    page.set("prompt", long)  # typing would take a minute
    page.click("send")
    page.wait(lambda: "context holds" in page.text("problem"), 40)
    assert page.property("prompt", "value").strip() == long.strip()
    assert page.all(".message") == []
    page.send("Short.")
    page.wait(lambda: page.text("send") == "Send" and page.all(".message.assistant .note")[-1].text)
    assert page.text("problem") == ""


def test_it_is_not_connected_while_the_engine_is_dead(browser: Any, removable: Path) -> None:
    model = removable.resolve()
    with serving("-m", str(removable)) as server:
        page = Page(browser).open(server.url).connected()
        removable.unlink()  # so that none starts again
        os.kill(server.engine_pid(), signal.SIGKILL)
        page.wait(lambda: "down" in page.text("state"))
        page.send("Are you there?")
        page.wait(lambda: page.text("problem"))
        assert page.property("prompt", "value") == "Are you there?"
        assert "down" in page.text("state")
        page.screenshot("page-down")
        removable.symlink_to(model)
        page.wait(lambda: page.text("state") == "connected", 60)
    page.wait(lambda: page.text("state") == "the server cannot be reached")
    page.click("send")
    page.wait(lambda: "cannot be reached" in page.text("problem"))
    assert page.property("prompt", "value") == "Are you there?"


def test_an_engine_that_stands_still_is_not_called_connected(browser: Any) -> None:
    with serving("--hang", "20") as server:
        page = Page(browser).open(server.url).connected()
        with server.standing_still():
            page.wait(lambda: page.text("state") == "the engine does not answer", 20)
        page.connected()


def test_the_dialog_for_the_key_can_be_left(browser: Any) -> None:
    with serving(environment={"COLIBRI_API_KEY": "secret"}) as server:
        page = Page(browser).open(server.url)
        page.wait(lambda: page.element("key-dialog").is_displayed())
        page.screenshot("page-key")
        page.click("leave-key")
        page.wait(lambda: page.text("state") == "an API key is needed")
        assert not page.element("key-dialog").is_displayed()

        page.send("Typed with care.")  # asks again; left with the keyboard, what was typed is still there
        page.wait(lambda: page.element("key-dialog").is_displayed())
        page.element("key").send_keys("\ue00c")  # Escape
        page.wait(lambda: "API key" in page.text("problem"))
        assert page.property("prompt", "value") == "Typed with care."

        page.click("enter-key")
        page.fill("key", "schlüssel")  # which no header can carry
        page.click("use-key")
        assert page.element("key-dialog").is_displayed()
        page.fill("key", "wrong")
        page.click("use-key")
        page.wait(lambda: page.element("key-dialog").is_displayed() and "refused" in page.text("key-text"))
        page.fill("key", " secret ")
        page.click("use-key")
        page.connected()
        page.click("send")
        page.wait(lambda: page.all(".message.assistant .note") and page.text("send") == "Send")
        assert page.property("prompt", "value") == ""
        assert not page.element("enter-key").is_displayed()


def test_below_a_path_of_a_proxy(browser: Any) -> None:
    page = Page(browser)

    def answered() -> bool:
        return page.text("send") == "Send" and page.all(".message.assistant .note") != []

    with serving("--root-path", "/colibri") as server:
        for path in ("/colibri/", "/colibri"):
            page.open(f"{server.url}{path}").connected()
            page.send("What does gravity mean?")
            page.wait(answered)
            assert page.text("problem") == ""
        names = page.run("return [...Object.keys(localStorage), ...Object.keys(sessionStorage)]")
        assert names and all(name.startswith("colibri:/colibri/:") for name in names)
        assert page.severe() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 860), (390, 844)])
def test_it_is_readable_in_both_schemes_and_on_a_phone(page: Page, scheme: str, size: tuple[int, int]) -> None:
    page.size(*size, scheme)
    try:
        found = colours(page)
        lighter, darker = sorted((luminance(found["ink"]), luminance(found["paper"])), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) > 7
        assert (luminance(found["paper"]) > 0.5) == (scheme == "light")
        for view in ("chat", "engine"):
            if size[0] < 600:
                page.all(f"nav button[value={view}]")[0].click()
            overflow = "const {scrollWidth, clientWidth, scrollHeight, clientHeight} = document.documentElement;"
            assert page.run(f"{overflow} return [scrollWidth - clientWidth, scrollHeight - clientHeight]") == [0, 0]
            for element in {"chat": ("prompt", "send", "clear"), "engine": ("rate", "map")}[view]:
                assert page.element(element).is_displayed()
            page.screenshot(f"page-{scheme}-{size[0]}-{view}")
    finally:
        page.own_size()


@pytest.mark.parametrize("size", [(1280, 860), (1280, 1400), (2560, 1440), (390, 844)])
def test_the_map_fills_its_room(page: Page, size: tuple[int, int]) -> None:
    page.size(*size)
    try:
        if size[0] < 600:
            page.all("nav button[value=engine]")[0].click()
        room = "const {clientWidth, clientHeight} = document.getElementById(arguments[0]);"
        shown = f"{room} return [clientWidth, clientHeight]"
        most = f"{room} return [clientWidth, Math.round(Math.min(clientHeight, 7 * Math.max(88, clientWidth / 8)))]"
        page.wait(lambda: page.run(shown, "map") == page.run(most, "map-frame"))
        left = page.run("return innerHeight - document.getElementById('map-hint').getBoundingClientRect().bottom")
        assert 0 <= left < 40
    finally:
        page.own_size()


@pytest.mark.parametrize(("layers", "experts"), [(1, 8), (94, 128), (48, 512), (2, 3000)])
def test_every_expert_of_a_large_model_has_its_place(page: Page, layers: int, experts: int) -> None:
    found = page.browser.execute_async_script(
        """
        const [layers, experts, done] = arguments;
        import(new URL("page/map.js", document.baseURI)).then(({ExpertMap}) => {
            const hint = document.createElement("p");
            const map = new ExpertMap(document.getElementById("map"), hint);
            map.resize(layers, experts);
            const counts = Array.from({length: layers}, () => Array(experts).fill(0));
            const before = map.canvas.toDataURL();
            counts[layers - 1][experts - 1] = 5;
            map.add(counts);
            requestAnimationFrame(() => requestAnimationFrame(() => {
                const {clientWidth, clientHeight} = map.canvas;
                map.point({offsetX: clientWidth - 0.01, offsetY: clientHeight - 0.01});
                const frame = map.canvas.parentElement;
                done([map.canvas.toDataURL() !== before, hint.textContent, clientWidth - frame.clientWidth]);
            }));
        });
        """,
        layers,
        experts,
    )  # fmt: skip
    assert found == [True, f"Layer {layers - 1}, expert {experts - 1}: 5 tokens since the page was opened.", 0]
