"""Our programs as people start them: by name, with arguments, as processes of their own."""

from __future__ import annotations

import subprocess
import sys

from tandem.process import tool_env


def runs_program(*words: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `python -m tandem.runs` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tandem.runs", *words],
        check=False, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=timeout,
        env=tool_env({"NO_COLOR": "1", "COLUMNS": "200"}),
    )  # fmt: skip
