"""What the page makes of answers, in a real browser: elements, never code; in view; to be copied."""

from __future__ import annotations

from typing import Any

import pytest

from .browser import Page, let_tests_answer, needs_browser

pytestmark = needs_browser


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
def browser(browser: Any) -> Any:
    return let_tests_answer(browser)


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
    page.ask("Even", "Fine")
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
    page.ask("And", "Yes")
    assert page.asked()[1][1] == {"role": "assistant", "content": "Answer"}


@pytest.mark.parametrize("secure", [True, False])
def test_copy(page: Page, secure: bool) -> None:
    page.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.ask("Show", "Text **bold**\n\n```sh\nls -l\n```\n")
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
