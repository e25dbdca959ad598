"""What `scontrol show job` prints, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Words of one line end where the next begin, but for these: their value is the line's rest.
_WHOLE = (
    "Command", "WorkDir", "Comment", "StdErr", "StdIn", "StdOut", "AdminComment", "SystemComment",
)  # fmt: skip
_WORD = re.compile(r"(?P<key>[A-Za-z][\w/:*]*)=(?P<value>.*?)(?=\s+[A-Za-z][\w/:*]*=|\s*$)")

#: States from which a job goes nowhere.
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "TIMEOUT",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or one component of a heterogeneous one."""

    fields: Mapping[str, str]

    @property
    def id(self) -> int:
        """Its own number."""
        return int(self.fields["JobId"])

    @property
    def leader(self) -> int:
        """The number of the first component: of the job, as its owner knows it."""
        return int(self.fields.get("HetJobId", self.id))

    @property
    def offset(self) -> int:
        """Which component it is; 0 for a job of one."""
        return int(self.fields.get("HetJobOffset", 0))

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED…, without the flags behind it."""
        return self.fields["JobState"]

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        return self.fields["Reason"]

    @property
    def nodes(self) -> list[str]:
        """The nodes that it has or had last."""
        return expand(self.fields.get("NodeList", ""))

    @property
    def batch_host(self) -> str:
        """The node of the batch script; empty before it has one."""
        return self.fields.get("BatchHost", "")

    @property
    def exit_code(self) -> int:
        """What the batch script has ended with."""
        return int(self.fields["ExitCode"].partition(":")[0])

    @property
    def exit_signal(self) -> int:
        """The signal that the batch script has ended by."""
        return int(self.fields["ExitCode"].partition(":")[2])

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return int(self.fields["Restarts"])

    @property
    def ended(self) -> bool:
        """Whether it goes nowhere from here."""
        return self.state in ENDED


def parse_jobs(text: str) -> list[Job]:
    """Return the jobs, or components, of `scontrol show job`, by their number."""
    blocks = re.split(r"\n\s*\n(?=JobId=)", text.strip())
    jobs = [Job(parse_fields(block)) for block in blocks if block.startswith("JobId=")]
    return sorted(jobs, key=lambda job: job.id)


def parse_fields(block: str) -> dict[str, str]:
    """Return the `Key=value` pairs of one object that scontrol shows."""
    fields: dict[str, str] = {}
    for line in map(str.strip, block.splitlines()):
        key, _, rest = line.partition("=")
        if key in _WHOLE:
            fields[key] = rest
        else:
            fields.update((word["key"], word["value"]) for word in _WORD.finditer(line))
    return fields


def expand(nodes: str) -> list[str]:
    """Return the nodes of a list such as `n[1-2,5],n7`; nothing for `(null)`."""
    if nodes in {"", "(null)"}:
        return []
    found = []
    for prefix, ranges in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", nodes):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if not first:
                found.append(prefix)
                continue
            found += [
                f"{prefix}{number:0{len(first)}d}"
                for number in range(int(first), int(last or first) + 1)
            ]
    return found
