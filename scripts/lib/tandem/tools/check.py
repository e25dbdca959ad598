"""`make tools-check`: for every program in ./bin, the version wanted and the one found."""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from tandem.paths import BIN
from tandem.process import tool_env
from tandem.tools.catalogue import Program, all_programs


@dataclass(frozen=True, slots=True)
class Finding:
    """One program: versions without their leading v; `found` is "" when it is missing."""

    program: str
    wanted: str
    found: str
    ok: bool

    def as_dict(self) -> dict[str, str | bool]:
        """Return it as plain data for `--output json`."""
        return asdict(self)


def version_in(text: str, wanted: str) -> str:
    """Return the wanted version if the text holds it, else the first version in the text."""
    found = re.findall(r"\d+\.\d+\.\d+[\w.+-]*", text)
    for version in found:
        if version == wanted or version.startswith(f"{wanted}+"):
            return wanted
    return found[0] if found else ""


def look(program: Program) -> Finding:
    """Ask one program for its version; one that cannot say is taken from its stamp."""
    wanted = program.version.removeprefix("v")
    path = BIN / program.name
    if not path.is_file():
        return Finding(program.name, wanted, "", ok=False)
    if not program.version_args:
        # JobSet, KubeRay and pause print no version: make tools' stamp vouches for them.
        return Finding(program.name, wanted, wanted or "present", ok=True)
    done = subprocess.run(
        [str(path), *program.version_args],
        check=False, capture_output=True, text=True, timeout=30, env=tool_env(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = version_in(done.stdout + done.stderr, wanted)
    return Finding(program.name, wanted, found or "unknown", ok=found == wanted)


def check() -> list[Finding]:
    """Look at every program."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(look, all_programs()))
