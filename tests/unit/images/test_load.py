"""Which names of a node are dropped when an image has new content."""

from __future__ import annotations

from tandem.images.bundle import Record
from tandem.images.load import outdated

NEW = Record("thing", "localhost/tandem/thing:dev", "bbb")


def test_marks_of_earlier_content_go_with_the_names_that_nobody_gave() -> None:
    present = {
        "localhost/tandem/thing:dev": "sha256:2",
        "localhost/tandem/thing:bbb": "sha256:2",
        "sha256:config-2": "sha256:2",
        "localhost/tandem/thing:aaa": "sha256:1",
        "sha256:config-1": "sha256:1",
        "sha256:config-0": "sha256:0",
        "localhost/tandem/thing-else:aaa": "sha256:3",
        "sha256:config-3": "sha256:3",
    }
    assert outdated(NEW, present) == [
        "localhost/tandem/thing:aaa", "sha256:config-0", "sha256:config-1",
    ]  # fmt: skip


def test_content_that_another_image_shares_stays() -> None:
    present = {
        "localhost/tandem/thing:dev": "sha256:2",
        "localhost/tandem/thing:bbb": "sha256:2",
        "localhost/tandem/thing:aaa": "sha256:1",
        "registry/other:v1": "sha256:1",
        "sha256:config-1": "sha256:1",
    }
    assert outdated(NEW, present) == ["localhost/tandem/thing:aaa"]


def test_a_node_that_is_current_loses_nothing() -> None:
    present = {"localhost/tandem/thing:dev": "sha256:2", "localhost/tandem/thing:bbb": "sha256:2"}
    assert outdated(NEW, present) == []
