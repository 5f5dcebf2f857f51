"""A narrow text is told from a narrow router, and dead experts are named only where the baseline is long enough."""

from __future__ import annotations

import numpy as np

from colibri.experts.stats import Trace
from colibri.observe.balance import findings, verdict
from colibri.observe.replay import zipf_trace

EXPERTS, K = 16, 2


def among(experts: int, tokens: int = 400, layers: int = 2) -> Trace:
    """Choices of the first so many experts, evenly."""
    return zipf_trace(layers, experts, K, tokens, skew=0)


def test_a_text_like_its_baseline() -> None:
    found = findings(among(EXPERTS, 100), among(EXPERTS), EXPERTS)
    assert found == []
    assert verdict(found, among(EXPERTS, 100), EXPERTS)[0] == "the text uses the experts as the baseline does"


def test_a_narrow_text_is_the_text() -> None:
    text = among(EXPERTS, 100)
    text[:, 1] = among(4, 100)[:, 1]
    found = findings(text, among(EXPERTS), EXPERTS)
    assert [(each.layer, each.cause) for each in found] == [(1, "text")]
    assert verdict(found, text, EXPERTS)[0] == "the text is narrow in 1 of 2 layers"


def test_a_collapsed_router_is_the_router_whatever_the_text() -> None:
    for text in (among(2, 50), among(EXPERTS, 50)):
        found = findings(text, among(2), EXPERTS)
        collapsed = [each for each in found if "collapsed" in each.what]
        assert [(each.layer, each.cause) for each in collapsed] == [(0, "router"), (1, "router")]
        assert not [each for each in found if each.cause == "text"]


def test_dead_experts_are_named_where_there_was_time_to_choose_them() -> None:
    text = among(12, 50, 1)
    (dead,) = findings(text, among(12, 400, 1), EXPERTS)
    assert dead == (0, "router", "dead: 12, 13, 14, 15 in 400 tokens of the baseline")
    assert findings(text, among(12, 100, 1), EXPERTS) == []  # 12 choices each at an even load


def test_what_a_cache_has_to_hold() -> None:
    text = np.zeros((100, 1, 1), np.int16)
    text[90:, 0, 0] = np.arange(1, 11)
    line = verdict([], text, EXPERTS)[-1]
    assert line.startswith("it chooses 11 of 16 experts; the busiest 1 get 90%")
