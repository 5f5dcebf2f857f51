"""The page's chat in a real browser, with answers that the test gives: whose they are, what is sent and kept."""

from __future__ import annotations

from typing import Any

import pytest

from .browser import Page, let_tests_answer, needs_browser
from .conftest import Server

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(browser: Any) -> Any:
    return let_tests_answer(browser)


# ---- whose an answer is ------------------------------------------------------------------------------------------


def test_a_new_chat_does_not_carry_the_old_answer(page: Page) -> None:
    page.send("First question")
    page.say("Part of the first")
    page.wait(lambda: page.answer().startswith("Part"))
    page.click("clear")
    assert page.messages() == []
    page.ask("Second question", "Second answer")
    assert page.asked()[1] == [{"role": "user", "content": "Second question"}]
    assert page.messages() == ["Second question", "Second answer"]

    page.click("open-chats")
    titles = [each.text.split("\n")[0] for each in page.all("#chat-list .open")]
    assert titles == ["Second question", "First question"]
    page.all("#chat-list .open")[1].click()
    assert page.messages() == ["First question", "Part of the first"]
    assert page.all(".note")[-1].text == "stopped"
    page.ask("Go on", "More")
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


def test_what_is_tried_again_is_not_lost_when_nothing_comes(page: Page) -> None:
    page.ask("Question", "Answer")
    for leave in ("send", "clear"):  # stopped, or another chat
        page.click("again")
        page.wait(lambda: page.text("send") == "Stop")
        page.click(leave)
        page.wait(lambda: page.text("send") == "Send")
        if leave == "send":
            assert page.messages() == ["Question", "Answer"]
            assert page.property("prompt", "value") == ""
    page.click("open-chats")
    page.all("#chat-list .open")[0].click()
    assert page.messages() == ["Question", "Answer"]


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
    page.ask("Question", "**Answer**")
    page.send("Another")
    page.say("Half an answer")
    page.wait(lambda: page.answer().startswith("Half"))
    page.element("prompt").send_keys("a draft")
    page.browser.refresh()
    page.connected()
    assert page.messages() == ["Question", "Answer", "Another", "Half an answer"]
    assert page.property("prompt", "value") == "a draft"
    page.click("send")
    page.wait(lambda: page.text("send") == "Stop")
    page.element("prompt").send_keys("more")
    page.browser.refresh()  # before anything has come
    page.connected()
    assert page.messages() == ["Question", "Answer", "Another", "Half an answer"]
    assert page.property("prompt", "value") == "a draft\n\nmore"
    assert page.property("system", "value") == "Be brief."
    assert page.property("temperature", "value") == "0.3"


def test_chats_can_be_deleted_even_while_an_answer_comes(page: Page) -> None:
    page.ask("One", "1")
    page.click("clear")
    page.ask("Two", "2")
    page.click("clear")
    page.send("Three")
    page.say("3")
    page.wait(lambda: page.answer().startswith("3"))
    page.run("dispatchEvent(new Event('pagehide'))")  # as when the tab is left
    page.click("open-chats")
    assert len(page.all("#chat-list li")) == 3
    page.all("#chat-list li .small")[0].click()
    page.browser.switch_to.alert.dismiss()
    assert len(page.all("#chat-list li")) == 3
    page.all("#chat-list li .small")[0].click()
    page.browser.switch_to.alert.accept()
    page.wait(lambda: len(page.all("#chat-list li")) == 2)
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
    page.ask("Question", "Answer")
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    let_tests_answer(page.browser)
    try:
        page.browser.get(server.url)
        page.connected()
        page.click("open-chats")
        page.all("#chat-list .open")[0].click()
        page.ask("Here", "Yes")
    finally:
        page.browser.close()
        page.browser.switch_to.window(first)
    page.ask("And there", "Too")
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
    page.ask("Question", "Answer")
    assert page.run("return [window.sent[0].temperature, window.sent[0].max_tokens]") == [0.7, 512]
    assert page.run("return window.hit ?? null") is None


def test_a_full_storage_is_said_and_loses_nothing(page: Page) -> None:
    page.run("""
        for (let size = 1 << 22; size >= 1; size = Math.floor(size / 2))
            for (let at = 0; at < 3; at++)
                try { localStorage.setItem(`full-${size}-${at}`, "x".repeat(size)); } catch {}
    """)
    page.ask("Question", "Answer")
    assert page.messages() == ["Question", "Answer"]
    assert "not kept" in page.text("problem")
    page.set("temperature", "0.4")  # is not kept, and does no harm
    page.run("localStorage.clear()")
    page.ask("Again", "Yes")
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
        page.ask("Question", "Answer")
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
    page.ask("Question", "Antwort")
    assert page.asked()[0] == [
        {"role": "system", "content": "Answer in German."}, {"role": "user", "content": "Question"},
    ]  # fmt: skip
    page.click("clear")
    page.set("system", "")
    page.ask("Other", "Answer")
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


# ---- what is typed -------------------------------------------------------------------------------------------------


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
