"""Chat templates: what they render, what they refuse, and what they may not do."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import pytest
from tokenizer_samples import load_metadata

from colibri.errors import ArgumentError, ColibriError, FormatError
from colibri.text import render_chat

USER = {"role": "user", "content": "hi <b> & é 日本"}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich <x>"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "it's <so> é", "parameters": {}}}]

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role in ["user", "system", "tool"] %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

MIXTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

# Tool calls only where the content is null, and arguments added as text.
DEEPSEEK = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<U>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' and message['content'] is none %}"
    "{% for tool in message['tool_calls'] %}<C>{{ tool['function']['name'] + '|' + tool['function']['arguments'] }}"
    "{% endfor %}{% else %}<A>{{ message['content'] }}{% endif %}{% endfor %}"
)


def test_plain_conversation() -> None:
    assert render_chat(QWEN, [USER]) == ("<|im_start|>user\nhi <b> & é 日本<|im_end|>\n<|im_start|>assistant\n")
    assert render_chat(QWEN, [USER], add_generation_prompt=False).endswith("<|im_end|>\n")
    assert render_chat(QWEN, [USER], variables={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    turns = [USER, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert render_chat(MIXTRAL, turns, bos_token="<s>", eos_token="</s>") == (
        "<s>[INST] hi <b> & é 日本 [/INST]a</s>[INST] b [/INST]"
    )


def test_json_is_written_as_transformers_writes_it() -> None:
    text = render_chat(QWEN, [USER], TOOLS)
    assert json.dumps(TOOLS[0], ensure_ascii=False) in text
    assert render_chat("{{ {'b': [1, 'é<']} | tojson(indent=1) }}", []) == '{\n "b": [\n  1,\n  "é<"\n ]\n}'
    assert render_chat("{{ {'b': 1, 'a': none} | tojson(sort_keys=true) }}", []) == '{"a": null, "b": 1}'


@pytest.mark.parametrize("arguments", [{"city": "Rom"}, '{"city": "Rom"}', None, "", "not json", "[1]"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
@pytest.mark.parametrize("template", [QWEN, DEEPSEEK])
def test_tool_calls_without_content(template: str, content: dict[str, Any], arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    text = render_chat(template, [USER, {"role": "assistant", **content, "tool_calls": [call]}])
    assert "get_weather" in text
    expected = "{}" if arguments in (None, "") else '{"city": "Rom"}' if "Rom" in str(arguments) else arguments
    assert expected in text


def test_the_conversation_given_is_not_changed() -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]}
    before = json.dumps(message)
    render_chat(QWEN, [USER, message])
    assert json.dumps(message) == before


def test_template_refuses_with_its_own_words() -> None:
    with pytest.raises(ArgumentError, match="roles must alternate"):
        render_chat(MIXTRAL, [USER, USER])
    with pytest.raises(ArgumentError, match=r"Conversation roles|Only user"):
        render_chat(MIXTRAL, [USER, {"role": "system", "content": "late"}])


def test_system_that_is_not_first_renders() -> None:
    assert "late" in render_chat(QWEN, [USER, {"role": "system", "content": "late"}])


def test_features_that_templates_use() -> None:
    assert render_chat("{{ strftime_now('%Y') }}", []) == datetime.now().strftime("%Y")
    assert render_chat("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", []) == "01"
    assert render_chat("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", [USER | {"content": "x"}]) == (
        "axb"
    )
    assert render_chat("{% set x = 'a' ~ 1 ~ none %}{{ x }}{% set y %}z{% endset %}{{ y }}", []) == "a1Nonez"
    assert render_chat("{{ '{}: {} 100000%'.format('a', 2) }}{{ '%s-%d' % ('x', 3) }}", []) == "a: 2 100000%x-3"
    assert render_chat(
        "{% for k, v in messages[0] | items %}{{ k }}={{ v }};{% endfor %}", [USER | {"content": "x"}]
    ) == ("role=user;content=x;")
    assert render_chat("{{ dict(a=1) | tojson }}{{ ['a', 'b'] | join(', ') }}", []) == '{"a": 1}a, b'
    assert render_chat("   {% if true %}\n  x\n   {% endif %}\ny", []) == "  x\ny"


def test_parts_are_joined_where_the_template_wants_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in render_chat(QWEN, [{"role": "user", "content": parts}])
    walks = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    assert render_chat(walks, [{"role": "user", "content": parts}]) == "[one][two]"


MALFORMED: list[Any] = [
    "text",
    [1],
    [{}],
    [{"role": 1, "content": "x"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
    [{"role": "user", "content": [7]}],
    [{"role": "user", "content": object()}],
    [{"role": "assistant", "tool_calls": 5}],
    [{"role": "assistant", "tool_calls": [5]}],
    [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": None}]}],
]


@pytest.mark.parametrize("messages", MALFORMED)
def test_malformed_messages_are_named(messages: Any) -> None:
    with pytest.raises(ArgumentError, match="messages"):
        render_chat(QWEN, messages)


GREEDY = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}",
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "multiply": "{{ 'a' * 10**12 }}",
    "power": "{{ 10 ** 1000000000 }}",
    "ljust": "{{ 'a'.ljust(10**10) }}",
    "center": "{{ 'a' | center(10**10) }}",
    "format": "{{ '{:>9999999999}'.format('a') }}",
    "computed width": "{{ '{:{w}}'.format('a', w=9999999999) }}",
    "percent": "{{ '%9999999999d' % 3 }}",
    "star": "{{ '%*d' % (9999999999, 3) }}",
    "replace": "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
    "replace filter": "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
    "join": "{% set x = 'a' * 1000000 %}{{ x.join(range(99999) | map('string') | list) }}",
    "join filter": "{% set x = 'a' * 1000000 %}{{ range(99999) | join(x) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "indent": "{{ 'a\nb' | indent(10**10) }}",
    "tojson": "{{ [1] | tojson(indent=10**10) }}",
    "round": "{{ 3.2 | round(10**9, 'ceil') }}",
}
DOUBLING = {
    "add": "ns.x + ns.x",
    "concatenate": "ns.x ~ ns.x",
    "str.format": "'{0}{0}'.format(ns.x)",
    "format": "'%s%s' | format(ns.x, ns.x)",
    "percent": "'%s%s' % (ns.x, ns.x)",
    "join": "[ns.x, ns.x] | join",
    "str.join": "''.join([ns.x, ns.x])",
    "tojson": "[ns.x, ns.x] | tojson",
    "nested lists": "[ns.x, ns.x]",
    "nested objects": "{'a': ns.x, 'b': ns.x}",
    "string": "[ns.x, ns.x] | string",
    "replace": "ns.x | replace('a', 'aaa')",
    "escapes": "ns.x | tojson",
}


def limited(template: str) -> None:
    start = time.thread_time()
    with pytest.raises(FormatError, match="chat template"):
        render_chat(template, [USER])
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY.keys())
def test_greedy_templates_end_soon(template: str) -> None:
    limited(template)


@pytest.mark.parametrize("expression", DOUBLING.values(), ids=DOUBLING.keys())
def test_doubling_ends_soon(expression: str) -> None:
    head = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    limited(f"{head}{{% set ns.x = {expression} %}}{{% endfor %}}{{{{ ns.x }}}}")


def test_doubling_blocks_end_soon() -> None:
    limited(
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    ],
)
def test_attributes_are_out_of_reach(template: str) -> None:
    with pytest.raises(FormatError):
        render_chat(template, [USER])


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception.__globals__ }}", "{{ '' | attr('__class__') }}", "{{ '{0.__class__}'.format(messages) }}"],
)
def test_hidden_attributes_give_nothing(template: str) -> None:
    assert render_chat(template, []) == ""


@pytest.mark.parametrize(
    "template",
    ["{% for %}", "{{", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 2000 + "{% endif %}" * 2000],
)
def test_what_is_not_a_template_is_a_format_error(template: str) -> None:
    with pytest.raises(FormatError):
        render_chat(template, [USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ nothing.at.all }}",
        "{{ 'a' + nothing }}",
        "{{ 1 // 0 }}",
        "{% include 'x' %}",
        "{{ lipsum() }}",
        "{{ 1 + 'a' }}",
    ],
)
def test_failures_of_the_template_are_typed(template: str) -> None:
    with pytest.raises(ColibriError):
        render_chat(template, [USER])


def test_a_long_conversation_renders() -> None:
    turns = [{"role": role, "content": "x" * 500} for _ in range(1000) for role in ("user", "assistant")]
    assert len(render_chat(QWEN, turns)) > 1_000_000
    grows = (
        "{% set ns = namespace(m=[]) %}{% for m in messages %}{% set ns.m = ns.m + [m] %}"
        "{{ m.content }}{% endfor %} {{ ns.m|length }}"
    )
    assert render_chat(grows, turns[:500]).endswith(" 500")


def test_tokenizer_renders_with_its_own_template(qwen_metadata: dict[str, Any]) -> None:
    template = "{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}"
    tokenizer = load_metadata(
        qwen_metadata
        | {
            "tokenizer.chat_template": template,
            "tokenizer.chat_template.tool_use": "{{ tools[0].function.name }}:{{ messages[0].content }}",
        }
    )
    assert tokenizer.render_chat([USER | {"content": "x"}]) == "<|endoftext|>|<|im_end|>|x"
    assert tokenizer.render_chat([USER | {"content": "x"}], TOOLS) == "get_weather:x"
    assert tokenizer.chat_template == template


def test_without_template_chatml_or_role_lines(qwen_metadata: dict[str, Any], llama_metadata: dict[str, Any]) -> None:
    turns = [USER | {"content": "x"}]
    tokenizer = load_metadata(qwen_metadata)
    assert tokenizer.render_chat(turns) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert any("no chat template" in note for note in tokenizer.notes)
    llama_metadata["tokenizer.ggml.tokens"][3:5] = ["<|a|>", "<|b|>"]
    assert load_metadata(llama_metadata).render_chat(turns) == "<s>user: x\nassistant:"


def test_a_template_of_the_wrong_kind_names_its_key(qwen_metadata: dict[str, Any]) -> None:
    tokenizer = load_metadata(qwen_metadata | {"tokenizer.chat_template": 5})
    with pytest.raises(FormatError, match=r"tokenizer\.chat_template"):
        tokenizer.render_chat([USER])


# ---- what was sent is in the prompt ----------------------------------------------------------------------------------

# Rules of real templates, in short: one that drops what it does not know, one with ids of nine, one for Harmony.
OLMOE = (
    "{% for m in messages %}{% if m.role == 'system' %}<S>{{ m.content }}{% elif m.role == 'user' %}<U>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<A>{{ m.content }}{% endif %}{% endfor %}"
)
NINE = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools %}{{ tools | tojson }}{% endif %}<U>{{ m.content }}"
    "{% elif m.tool_calls is defined and m.tool_calls is not none %}<C>{% for c in m.tool_calls %}"
    "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}"
    "{{ c.id }}{{ c.function | tojson }}{% endfor %}"
    "{% elif m.role == 'assistant' %}<A>{{ m.content }}"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}"
    '<R>{"content": {{ m.content | tojson }}, "id": "{{ m.tool_call_id }}"}{% endif %}{% endfor %}'
)
ONE_CALL = (
    "{% set ns = namespace(name=none) %}{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('content or thinking') }}{% endif %}"
    "<T>{{ m.content or m.thinking }}<C>{{ m.tool_calls[0].function.name }}"
    "{% set ns.name = m.tool_calls[0].function.name %}{% else %}<A>{{ m.content }}{% endif %}"
    "{% elif m.role == 'tool' %}<R>{{ ns.name }}={{ m.content }}{% else %}<U>{{ m.content }}{% endif %}{% endfor %}"
)


def call_of(name: str, identity: str | None, **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def turn(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(identity: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": content}


@pytest.mark.parametrize("template", [QWEN, OLMOE, MIXTRAL, NINE, ONE_CALL])
def test_calls_and_results_reach_every_template(template: str) -> None:
    for identity in ("call_1", "abcDEF123", "chatcmpl-tool-0123456789abcdef", None):
        history = [
            USER,
            turn(call_of("get_weather", identity, city="Rom")),
            result(identity, "sunny\nand 7"),
        ]
        for offered in (TOOLS, None):
            text = render_chat(template, history, offered)
            assert "get_weather" in text
            assert "sunny\nand 7" in text or "sunny\\nand 7" in text
            assert ("it's <so>" in text) == (offered is not None)


def test_ids_of_calls_and_results_stay_together() -> None:
    turns = [USER, turn(call_of("a", "call_1"), call_of("b", None)), result("call_1", "1"), result(None, "2")]
    text = render_chat(NINE, turns)
    names = [part[:9] for part in text.split("<C>")[1].split("<R>")[0].split("}") if len(part) > 9]
    assert f'"1", "id": "{text.split("<C>")[1][:9]}"' in text
    assert len(set(names)) == 2
    kept = render_chat(NINE, [USER, turn(call_of("a", "abcDEF123")), result("abcDEF123", "1")])
    assert kept.count("abcDEF123") == 2


def test_calls_made_at_once_where_the_template_knows_one_a_message() -> None:
    turns = [USER, turn(call_of("a", "1"), call_of("b", "2"), content="Hm."), result("1", "one"), result("2", "two")]
    assert render_chat(ONE_CALL, turns).endswith("<T>Hm.<C>a<R>a=one<T><C>b<R>b=two")


def test_a_thought_has_the_name_that_the_template_knows() -> None:
    said = turn(call_of("a", "1"), reasoning_content="Hm.")
    assert "<T>Hm.<C>a" in render_chat(ONE_CALL, [USER, said, result("1", "x")])
    assert "<T>Yes.<C>a" in render_chat(ONE_CALL, [USER, {**said, "content": "Yes."}, result("1", "x")])


@pytest.mark.parametrize("template", [NINE, QWEN, OLMOE])
def test_no_calls_leave_the_text_alone(template: str) -> None:
    text = render_chat(template, [USER, turn(content="You are Ada."), USER])
    assert "You are Ada." in text and "<C>" not in text


def test_a_system_message_where_the_template_refuses_one() -> None:
    turns = [{"role": "system", "content": "Be brief."}, USER]
    assert render_chat(MIXTRAL, turns) == f"[INST] Be brief.\n\n{USER['content']} [/INST]"
    offered = render_chat(MIXTRAL, turns, TOOLS)
    assert offered.startswith("[INST] You may call") and "Be brief." in offered and offered.count("[INST]") == 1


def test_two_results_and_a_question_are_one_turn_of_the_user() -> None:
    calls = turn(call_of("a", "1"), call_of("b", "2"))
    text = render_chat(
        MIXTRAL, [USER, calls, result("1", "one"), result("2", "two"), {"role": "user", "content": "so"}]
    )
    assert "[INST] Result of a:\none\n\nResult of b:\ntwo\n\nso [/INST]" in text


def test_what_a_template_leaves_out_is_an_error() -> None:
    deaf = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | trim | upper }}{% endif %}{% endfor %}"
    assert render_chat("{% for m in messages %}{{ m.content | trim }}{% endfor %}", [{**USER, "content": " a "}]) == "a"
    with pytest.raises(ArgumentError, match=r"messages\[1\]: found a message of role 'assistant', which"):
        render_chat(deaf, [USER, {"role": "assistant", "content": "yes"}])
