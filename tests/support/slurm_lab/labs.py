"""Labs for tests: in folders of their own, and checked to have left nothing."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.slurm_lab.lab import Lab, best_proctrack
from support.slurm_lab.settings import Settings


@dataclass(frozen=True, slots=True)
class Labs:
    """Makes labs that go down with a stack."""

    stack: ExitStack

    def __call__(self, **settings: Any) -> Lab:
        """Return a lab with these settings that is up."""
        # Nodes have a /tmp of their own.
        folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
        self.stack.callback(shutil.rmtree, folder)
        lab = Lab(folder, Settings(**{"proctrack": best_proctrack(), **settings}))
        self.stack.callback(end, lab)
        return lab.up()


def end(lab: Lab) -> None:
    """Take a lab down; nothing of it is left."""
    lab.down()
    assert lab.leftovers() == []
