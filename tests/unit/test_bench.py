"""The table of figures that `make bench` prints."""

from __future__ import annotations

from tandem.figures import Figure, machine, table


def test_each_figure_stands_beside_its_limit_and_nothing_is_hidden() -> None:
    text = table(
        "2 cores, 24 GiB, Linux 6.18, 2026-12-01",
        [
            Figure("cluster-up, warm", 5.06, 15),
            Figure("cluster-down", 3.0),
            Figure("control plane, with the platform", 1300, 1240, "MiB"),
        ],
    )
    assert [line.split() for line in text.splitlines()] == [
        ["2", "cores,", "24", "GiB,", "Linux", "6.18,", "2026-12-01"],
        ["measured", "limit"],
        ["cluster-up,", "warm", "5.1", "s", "15", "s"],
        ["cluster-down", "3.0", "s"],
        ["control", "plane,", "with", "the", "platform", "1300", "MiB", "1240", "MiB", "over"],
    ]


def test_the_machine_is_told_in_one_line() -> None:
    assert "cores" in machine()
    assert "Linux" in machine()
    assert "\n" not in machine()
