"""Tables of READMEs are those of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import tables
from tandem.paths import ROOT
from tandem_common.settings import Settings, SettingsConfigDict, setting


class ToolSettings(Settings):
    model_config = SettingsConfigDict(env_prefix="TOOL_")
    name: str = setting("A name.", default="x")


TEXT = "# t\n<!-- environment of ToolSettings -->\n{}<!-- end -->\nrest\n"


def test_a_table_is_put_between_its_marks_and_nothing_else_changes() -> None:
    filled = tables.filled(TEXT.format("old\n"), {"ToolSettings": ToolSettings})
    assert "old" not in filled
    assert "| `TOOL_NAME` | `x` | a text | A name |\n<!-- end -->\nrest\n" in filled
    assert tables.filled(filled, {"ToolSettings": ToolSettings}) == filled


def test_a_table_of_an_unknown_class_is_an_error() -> None:
    with pytest.raises(KeyError):
        tables.filled(TEXT.format(""), {})


def test_every_sidecar_with_settings_has_its_tables_and_they_are_as_the_settings() -> None:
    assert tables.differences() == []
    told = {path.parent.name for path, *_ in tables.readmes()}
    assert told >= {"endpoint-registry", "gym-server"}
    for path, text, _ in tables.readmes():
        for name, kind in tables.settings_of(path).items():
            # What begins with "_" is a base of others: nobody loads it.
            own = kind.__module__.startswith(path.parent.name.replace("-", "_"))
            if own and not name.startswith("_"):
                assert f"<!-- environment of {name} -->" in text, f"{path}: no table of {name}"


def test_a_drifted_table_is_found(tmp_path: Path) -> None:
    kept = (ROOT / "sidecars" / "endpoint-registry" / "README.md").read_text()
    package = tmp_path / "endpoint-registry"
    (package / "src" / "endpoint_registry").mkdir(parents=True)
    (package / "src" / "endpoint_registry" / "settings.py").touch()
    (package / "README.md").write_text(kept.replace("`20`", "`21`"))
    [(_, is_now, should_be)] = tables.readmes(tmp_path)
    assert is_now != should_be == kept
