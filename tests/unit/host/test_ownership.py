"""Whose cluster it is, judged from the record and from marked processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_host import ownership
from tandem_host.ownership import Claim
from tandem_host.processes import COMPONENT, MARK, SUPERVISOR, Identity, Process
from tandem_host.record import Record
from tandem_host.settings import Settings

HERE = Settings(state=Path("/here/.cluster/host"), bin=Path("/here/bin"), checkout=Path("/here"))
OURS = Record(checkout="/here", state="/here/.cluster/host")
THEIRS = Record(checkout="/there", state="/there/.cluster/host")


def process(state: str, component: str = "etcd") -> Process:
    return Process(Identity(4711, 1), (component,), {MARK: state, COMPONENT: component})


@pytest.mark.parametrize(
    ("found", "running", "claim"),
    [
        (None, [], Claim.FREE),
        (OURS, [], Claim.OURS),
        (None, [process(OURS.state)], Claim.OURS),
        (OURS, [process(OURS.state)], Claim.OURS),
        (THEIRS, [], Claim.ABANDONED),
        (THEIRS, [process(THEIRS.state)], Claim.TAKEN),
        (None, [process(THEIRS.state)], Claim.TAKEN),
        (OURS, [process(OURS.state), process(THEIRS.state)], Claim.TAKEN),
        (THEIRS, [process(OURS.state)], Claim.ABANDONED),
    ],
)
def test_claims(found: Record | None, running: list[Process], claim: Claim) -> None:
    assert ownership.judge(HERE, found, running) is claim


def test_the_other_checkout_is_named_with_its_supervisor() -> None:
    running = [process(THEIRS.state), process(THEIRS.state, SUPERVISOR)]
    assert ownership.owner(HERE, THEIRS, running) == ownership.Owner("/there", THEIRS.state, 4711)


def test_without_a_record_the_checkout_is_guessed_from_the_state_folder() -> None:
    assert ownership.owner(HERE, None, [process(THEIRS.state)]).checkout == "/there"
