"""The words that explain and the API server share."""

from __future__ import annotations

import re

import pytest

from tandem.explain import fit, lint
from tandem.explain.words import rules, words

#: Said by the API server only: what explain would have of these is no error to it.
OF_THE_API_SERVER = {"gpus-outside-queues"}


def test_each_rule_is_said_by_explain_as_well() -> None:
    said = {rule.name for rule in lint.RULES} | {"no-node-for-pod", "unknown-topology"}
    assert set(rules()) - OF_THE_API_SERVER <= said
    assert fit.fit is not None


@pytest.mark.parametrize("rule", rules())
def test_words_are_whole_and_fit_a_line_of_the_api_server(rule: str) -> None:
    found = words(rule)
    assert found.reason.endswith(".")
    assert not found.fix.endswith(".")
    for case, what in found.what.items():
        # The message of a policy is one line.
        assert "\n" not in what + found.fix
        filled = dict.fromkeys(re.findall(r"\{(\w+)\}", what), "x")
        assert "{" not in found.say(case, **filled)


def test_a_word_that_is_not_filled_in_is_an_error() -> None:
    with pytest.raises(KeyError, match="leaves"):
        words("queue-unknown").say("unknown", queue="x")
    with pytest.raises(KeyError):
        words("no-such-rule")
