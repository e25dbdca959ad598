from __future__ import annotations

import pytest

from tandem.errors import UserError
from tandem.render import split_releases

TEXT = """\
---
# Source: one/templates/a.yaml
kind: A
---
# Source: two/templates/b.yaml
kind: B
---
# Source: one/templates/c.yaml
# only a comment
---
# Source: one/templates/d.yaml
kind: D
"""


def test_objects_go_to_the_chart_that_their_comment_names() -> None:
    found = split_releases(TEXT, ["one", "two"])
    assert found == {"one": [{"kind": "A"}, {"kind": "D"}], "two": [{"kind": "B"}]}


def test_an_object_of_no_known_chart_is_an_error() -> None:
    with pytest.raises(UserError, match="two/templates"):
        split_releases(TEXT, ["one"])
