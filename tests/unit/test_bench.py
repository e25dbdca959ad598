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


def test_a_long_name_does_not_move_the_columns() -> None:
    long = "a variant with a long name, apply to verdict, all pods ended"
    told = table("here", [Figure(long, 1.0, 2.0), Figure("short", 1.0, 2.0)]).splitlines()
    assert len({line.index("2 s") for line in told if "2 s" in line}) == 1
    assert f"{long}  " in told[2]
