"""The page's chat in a real browser, with answers that the test gives: whose they are, what is kept, what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .browser import CHROMIUM, DRIVER, MODEL, Page, make_browser
from .conftest import Server

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs Debian's packages chromium and chromium-driver"
)

MARKDOWN = """\
# Title

**Bold**, *slanted*, `code`, ~~gone~~ and [a link](https://example.org/a?b=1&c=2).
Next line of https://example.org/auto, &lt;b&gt; &amp;c.

3. three
4. four
   - inner

> quoted

```python
def double(x):
    return 2 * x
```

| name | value |
|:-----|------:|
| a    |     1 |

[later]: https://example.org/later
See [it][later].
"""

ATTACKS = """\
<script>window.hit = 1</script>

<img src=x onerror="window.hit = 1"><svg onload="window.hit = 1"></svg>
<iframe srcdoc="<script>parent.hit = 1</script>"></iframe>

[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](java&#115;cript:window.hit=1) [d](java&Tab;script:hit=1)
[e](data:text/html;base64,PHNjcmlwdD4=) [f](vbscript:x) [g](/v1/models) [h](//example.org) [i](file:///etc/passwd)
<javascript:window.hit=1> [j](blob:x) [k](<javascript:window.hit=1>) [l](https://a.b"onmouseover="window.hit=1)
![x](https://example.org/track.png"onerror="window.hit=1) ![y](javascript:window.hit=1)
![z](data:image/svg+xml;base64,x)

```"><script>window.hit=1</script>
</code></pre><script>window.hit = 1</script>
```

| <script>window.hit=1</script> | [x](javascript:window.hit=1) |
|---|---|
| <b onclick="window.hit=1">b</b> | <style>body { display: none }</style> |

[m]: javascript:window.hit=1
[m] <a href="javascript:window.hit=1">n</a> <form action="//example.org"><input name=__proto__></form>
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = make_browser()
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": MODEL})
    yield driver
    driver.quit()


@pytest.fixture
def page(server: Server, browser: Any) -> Page:
    return Page(browser).open(server.url).connected()


def ask(page: Page, text: str, answer: str) -> None:
    """A whole turn."""
    page.send(text)
    page.say(answer)
    page.end()


# ---- whose an answer is ------------------------------------------------------------------------------------------


def test_a_new_chat_does_not_carry_the_old_answer(page: Page) -> None:
    page.send("First question")
    page.say("Part of the first")
    page.wait(lambda: page.answer().startswith("Part"))
    page.click("clear")
    assert page.messages() == []
    ask(page, "Second question", "Second answer")
    assert page.asked()[1] == [{"role": "user", "content": "Second question"}]
    assert page.messages() == ["Second question", "Second answer"]

    page.click("open-chats")
    titles = [each.text.split("\n")[0] for each in page.all("#chat-list .open")]
    assert titles == ["Second question", "First question"]
    page.all("#chat-list .open")[1].click()
    assert page.messages() == ["First question", "Part of the first"]
    assert page.all(".note")[-1].text == "stopped"
    ask(page, "Go on", "More")
    assert [each["content"] for each in page.asked()[2]] == ["First question", "Part of the first", "Go on"]


def test_what_is_asked_in_a_new_chat_at_once_is_its_own(page: Page) -> None:
    page.send("First")
    page.run("""
        document.getElementById("clear").click();
        document.getElementById("prompt").value = "Second";
        document.getElementById("form").requestSubmit();
    """)
    page.end("Answer")
    assert page.messages() == ["Second", "Answer"]
    assert page.asked()[1] == [{"role": "user", "content": "Second"}]
    page.click("open-chats")
    page.all("#chat-list .open")[1].click()  # to which nothing came: it can be sent again
    assert (page.messages(), page.property("prompt", "value")) == ([], "First")


def test_stop_keeps_what_came(page: Page) -> None:
    page.send("Count")
    page.say("1 2 3")
    page.wait(lambda: page.answer().startswith("1 2 3"))
    page.click("send")
    page.wait(lambda: page.text("send") == "Send")
    assert page.messages() == ["Count", "1 2 3"]
    page.send("Nothing comes")
    page.wait(lambda: page.text("send") == "Stop")
    page.element("prompt").send_keys("typed meanwhile")
    page.click("send")
    page.wait(lambda: page.text("send") == "Send")
    assert page.messages() == ["Count", "1 2 3"]
    assert page.property("prompt", "value") == "Nothing comes\n\ntyped meanwhile"
    assert page.text("problem") == ""


def test_an_answer_that_breaks_off_is_kept_and_can_be_tried_again(page: Page) -> None:
    page.send("Tell me")
    page.say("Once upon")
    page.wait(lambda: page.answer().startswith("Once"))
    page.run("window.fail()")
    page.wait(lambda: page.text("send") == "Send")
    assert page.messages() == ["Tell me", "Once upon"]
    assert "connection to the server was lost" in page.all(".note.bad")[0].text
    page.click("again")
    page.end("Once more")
    assert page.messages() == ["Tell me", "Once more"]
    assert page.asked()[1] == page.asked()[0]


def test_a_connection_that_ends_early_is_not_taken_for_an_end(page: Page) -> None:
    page.send("Tell me")
    page.say("Half")
    page.run("window.end(null)")
    page.wait(lambda: page.all(".note.bad"))
    assert "ended before the answer did" in page.all(".note.bad")[0].text


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_chats_and_what_is_typed_survive_a_reload(page: Page) -> None:
    page.click("settings")
    page.set("system", "Be brief.")
    page.set("temperature", "0.3")
    ask(page, "Question", "**Answer**")
    page.send("Another")
    page.say("Half an answer")
    page.wait(lambda: page.answer().startswith("Half"))
    page.element("prompt").send_keys("a draft")
    page.browser.refresh()
    page.connected()
    assert page.messages() == ["Question", "Answer", "Another", "Half an answer"]
    assert page.property("prompt", "value") == "a draft"
    assert page.property("system", "value") == "Be brief."
    assert page.property("temperature", "value") == "0.3"


def test_chats_can_be_deleted_even_while_an_answer_comes(page: Page) -> None:
    ask(page, "One", "1")
    page.click("clear")
    ask(page, "Two", "2")
    page.click("clear")
    page.send("Three")
    page.say("3")
    page.wait(lambda: page.answer().startswith("3"))
    page.run("dispatchEvent(new Event('pagehide'))")  # as when the tab is left
    page.click("open-chats")
    assert len(page.all("#chat-list li")) == 3
    page.all("#chat-list li .small")[0].click()
    assert len(page.all("#chat-list li")) == 2
    page.click("close-chats")
    page.wait(lambda: page.text("send") == "Send")
    assert page.messages() == []
    kept = "return Object.keys(localStorage).filter((name) => /:chat:/.test(name)).map((name) => localStorage[name])"
    assert "Three" not in str(page.run(kept))
    page.click("open-chats")
    page.click("delete-chats")
    page.browser.switch_to.alert.accept()
    page.wait(lambda: not page.element("chats").is_displayed())
    assert page.run(kept) == []


def test_two_tabs_with_one_chat_lose_nothing(page: Page, server: Server) -> None:
    ask(page, "Question", "Answer")
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": MODEL})
    try:
        page.browser.get(server.url)
        page.connected()
        page.click("open-chats")
        page.all("#chat-list .open")[0].click()
        ask(page, "Here", "Yes")
    finally:
        page.browser.close()
        page.browser.switch_to.window(first)
    ask(page, "And there", "Too")
    page.click("open-chats")
    assert len(page.all("#chat-list li")) == 2
    page.all("#chat-list .open")[1].click()
    assert page.messages() == ["Question", "Answer", "Here", "Yes"]
    page.click("open-chats")
    page.all("#chat-list .open")[0].click()
    assert page.messages() == ["Question", "Answer", "And there", "Too"]


def test_whatever_the_storage_holds_the_page_works(page: Page) -> None:
    page.run("""
        const name = `colibri:${new URL(".", document.baseURI).pathname}:`;
        const shapes = ["{", "null", "7", "[]", "{}", '{"messages": 3}', '{"id": 1, "messages": [null]}'];
        shapes.forEach((text, index) => localStorage.setItem(`${name}chat:bad${index}`, text));
        localStorage.setItem(`${name}chat:odd`, JSON.stringify({changed: "x", messages: [
            {role: "assistant", content: "<img src=x onerror='window.hit=1'>", note: {}, thought: 5},
            {role: "system", content: "no"}, {role: "user", content: 3}]}));
        localStorage.setItem(`${name}temperature`, "hot");
        localStorage.setItem(`${name}tokens`, "-5");
    """)
    page.browser.refresh()
    page.connected()
    page.click("open-chats")
    page.all("#chat-list .open")[0].click()
    assert page.messages() == ["<img src=x onerror='window.hit=1'>"]
    page.click("again")
    page.click("open-chats")
    assert len(page.all("#chat-list li")) == 1
    page.click("close-chats")
    ask(page, "Question", "Answer")
    assert page.run("return [window.sent[0].temperature, window.sent[0].max_tokens]") == [0.7, 512]
    assert page.run("return window.hit ?? null") is None


def test_a_full_storage_is_said_and_loses_nothing(page: Page) -> None:
    page.run("""
        for (let size = 1 << 22; size >= 1; size = Math.floor(size / 2))
            for (let at = 0; at < 3; at++)
                try { localStorage.setItem(`full-${size}-${at}`, "x".repeat(size)); } catch {}
    """)
    ask(page, "Question", "Answer")
    assert page.messages() == ["Question", "Answer"]
    assert "not kept" in page.text("problem")
    page.set("temperature", "0.4")  # is not kept, and does no harm
    page.run("localStorage.clear()")
    ask(page, "Again", "Yes")
    assert page.text("problem") == ""


def test_without_any_storage_it_is_a_chat_all_the_same(page: Page, server: Server) -> None:
    refuse = """
        for (const name of ["localStorage", "sessionStorage"])
            Object.defineProperty(window, name, {get() { throw new DOMException("blocked", "SecurityError"); }});
    """
    added = page.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": refuse})
    try:
        page.browser.get(server.url)
        page.connected()
        ask(page, "Question", "Answer")
        page.click("clear")
        page.click("open-chats")
        page.all("#chat-list .open")[0].click()
        assert page.messages() == ["Question", "Answer"]
        assert page.severe() == []
    finally:
        page.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_the_system_prompt_is_sent_and_belongs_to_its_chat(page: Page) -> None:
    page.click("settings")
    page.set("system", "Answer in German.")
    ask(page, "Question", "Antwort")
    assert page.asked()[0] == [
        {"role": "system", "content": "Answer in German."}, {"role": "user", "content": "Question"},
    ]  # fmt: skip
    page.click("clear")
    page.set("system", "")
    ask(page, "Other", "Answer")
    assert page.asked()[1] == [{"role": "user", "content": "Other"}]
    page.click("open-chats")
    page.all("#chat-list .open")[1].click()
    assert page.property("system", "value") == "Answer in German."


def test_an_empty_page_has_examples(page: Page) -> None:
    examples = page.all("#welcome button")
    assert len(examples) >= 3
    question = examples[0].text
    examples[0].click()
    page.end("Answer")
    assert page.messages() == [question, "Answer"]
    assert not page.element("welcome").is_displayed()
    page.click("clear")
    assert page.element("welcome").is_displayed()


# ---- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1280, 860), (390, 844)])
def test_the_end_of_a_long_answer_is_in_view(page: Page, size: tuple[int, int]) -> None:
    page.size(*size)
    try:
        page.send("Long")
        for line in range(60):
            page.say(f"Line {line} of an answer that is longer than the screen.\n\n")
        page.end()
        below = """
            const note = [...document.querySelectorAll(arguments[0])].at(-1).getBoundingClientRect();
            return note.bottom - document.getElementById("messages").getBoundingClientRect().bottom;
        """
        page.wait(lambda: page.run(below, ".message.assistant .foot") <= 0)
        page.screenshot(f"page-long-{size[0]}")
        page.run("document.getElementById('messages').scrollTop = 50")  # who reads above is not pulled away
        page.send("More")
        page.wait(lambda: page.run(below, ".message.assistant") <= 40)
        page.run("document.getElementById('messages').scrollTop = 50")
        page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.end("a\n\n" * 40)
        assert page.run("return document.getElementById('messages').scrollTop") == 50
    finally:
        page.own_size()


def test_markdown_becomes_elements(page: Page) -> None:
    page.send("Show me")
    for start in range(0, len(MARKDOWN), 7):  # as it comes: cut anywhere
        page.say(MARKDOWN[start : start + 7])
    page.end()
    count = "return document.querySelectorAll(`.message.assistant .body ${arguments[0]}`).length"
    for selector in ("h1", "strong", "em", "p > code", "s", "ol[start='3'] > li ul", "blockquote", "pre code", "td"):
        assert page.run(count, selector) >= 1, selector
    links = [each.get_attribute("href") for each in page.all(".message .body a")]
    assert links == ["https://example.org/a?b=1&c=2", "https://example.org/auto", "https://example.org/later"]
    assert all(each.get_attribute("rel").startswith("noopener") for each in page.all(".message .body a"))
    assert "<b> &c." in page.answer()
    assert page.run("return getComputedStyle(document.querySelectorAll('.message td')[1]).textAlign") == "right"
    page.screenshot("page-markdown")


def test_blocks_that_are_whole_keep_their_elements(page: Page) -> None:
    page.send("Show me")
    page.say("First paragraph.\n\nSecond")
    page.wait(lambda: len(page.all(".message.assistant .body p")) == 2)
    page.run("window.first = document.querySelector('.message.assistant .body p')")
    page.end(" grows.\n\nThird.")
    paragraphs = [each.text for each in page.all(".message.assistant .body p")]
    assert paragraphs == ["First paragraph.", "Second grows.", "Third."]
    assert page.run("return window.first.isConnected")


def test_a_model_cannot_put_code_into_the_page(page: Page) -> None:
    page.set("system", ATTACKS)
    page.send(ATTACKS.replace("\n", " "))
    page.run("window.think(arguments[0])", ATTACKS)
    page.say(ATTACKS)
    page.end()
    allowed = page.run("""
        return [...document.querySelectorAll("#log *, #chat-head *")].map((each) => each.tagName.toLowerCase())
    """)
    assert not set(allowed) & {"script", "img", "svg", "iframe", "style", "form", "input", "object", "embed", "base"}
    links = {each.get_attribute("href") for each in page.all(".body a")}
    assert all(each.startswith("https://") for each in links), links
    attributes = page.run("""
        return [...document.querySelectorAll("#log *")].flatMap((each) => [...each.attributes].map(({name}) => name))
    """)
    assert not [name for name in attributes if name.startswith("on")]
    page.click("open-chats")
    page.browser.refresh()  # from the storage, too
    page.connected()
    for link in page.all(".body a, .body span"):
        page.run("arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))", link)
    assert page.run("return window.hit ?? null") is None
    assert page.severe() == []


def test_the_browser_itself_refuses_html_from_texts(page: Page) -> None:
    refused = page.run("""
        const tries = [
            () => (document.body.innerHTML = "<b>x</b>"), () => document.write("<b>x</b>"),
            () => document.body.insertAdjacentHTML("beforeend", "<b>x</b>"),
            () => new DOMParser().parseFromString("<b>x</b>", "text/html"),
        ];
        return tries.map((attempt) => { try { attempt(); return null; } catch (error) { return error.name; } });
    """)
    assert refused == ["TypeError"] * 4
    page.severe()


@pytest.mark.parametrize(
    "text",
    [
        "> " * 20000 + "end", "- " * 20000 + "end", "[" * 50000 + "end", "*a_ " * 20000 + "end", "`" * 50001 + "end",
        "| a " * 5000 + "\n" + "|-" * 5000 + "\nend", "\0 end",
    ],
)  # fmt: skip
def test_odd_markdown_neither_hangs_nor_breaks_the_page(page: Page, text: str) -> None:
    page.send("Odd")
    page.end(text)
    assert page.run("return document.querySelector('.message.assistant .body').textContent").count("end") == 1
    page.click("clear")
    ask(page, "Even", "Fine")
    assert page.messages() == ["Even", "Fine"]


def test_thoughts_are_shown_apart_and_not_sent_back(page: Page) -> None:
    page.send("Think")
    page.run("window.think('Let me see.')")
    page.wait(lambda: "Let me see." in page.all(".thought")[0].text)
    page.say("An")
    page.wait(lambda: page.answer().startswith("An") and "Let me see." not in page.all(".thought")[0].text)
    page.all(".thought summary")[0].click()  # stays as the reader has it
    page.end("swer")
    assert page.answer() == "Answer"
    assert "Let me see." in page.all(".thought")[0].text
    ask(page, "And", "Yes")
    assert page.asked()[1][1] == {"role": "assistant", "content": "Answer"}


@pytest.mark.parametrize("secure", [True, False])
def test_copy(page: Page, secure: bool) -> None:
    page.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    ask(page, "Show", "Text **bold**\n\n```sh\nls -l\n```\n")
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    if not secure:  # as for a page without TLS
        page.run("navigator.clipboard.writeText = () => Promise.reject(new Error('insecure'))")
    for button, expected in (
        (page.all(".code .copy")[0], "ls -l"),
        (page.all(".message.assistant > .foot .copy")[0], "Text **bold**\n\n```sh\nls -l\n```\n"),
        (page.all(".message.user .copy")[0], "Show"),
    ):
        button.click()
        page.wait(lambda button=button: button.text == "Copied")
        assert page.browser.execute_async_script(read) == expected


def test_enter_begins_a_line_where_there_is_only_touch(page: Page) -> None:
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.size(390, 844)
    try:
        page.element("prompt").send_keys("one", "\ue007", "two")
        assert page.property("prompt", "value") == "one\ntwo"
        page.click("send")
        page.end("Answer")
        assert page.messages() == ["one\ntwo", "Answer"]
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        page.own_size()


def test_keys_and_empty_messages(page: Page) -> None:
    page.fill("prompt", "   ")
    page.click("send")
    page.element("prompt").send_keys("\ue007")  # Enter
    assert page.messages() == []
    page.fill("prompt", "one")
    page.element("prompt").send_keys("\ue008\ue007\ue000", "two", "\ue007")  # with Shift, and without
    page.end("Answer")
    assert page.messages() == ["one\ntwo", "Answer"]
