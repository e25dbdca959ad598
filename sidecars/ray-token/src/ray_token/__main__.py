"""Command line: `ray-token`, an init container: a Ray head's in a JobSet, a pool's keeper's.

The Secret comes with the run's manifests, empty: so its name is known before it has a value,
the right to write it is bound to that name, and nothing secret is in any file. What is in it
already stays, since other pods of the run may have read it.
"""

from __future__ import annotations

import argparse
import secrets
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from tandem_common import logs
from tandem_common.clock import Deadline
from tandem_common.errors import ExitCode, Problem, UserError, run_main
from tandem_common.kube import Client, Conflict, KubeError, Resource, load_config
from tandem_common.settings import DnsLabel, Settings, SettingsConfigDict, Words, setting

SECRETS: Final = Resource("", "v1", "secrets", "Secret")
#: 256 bits.
TOKEN_BYTES: Final = 32
_SECONDS: Final = 120.0

_EPILOG: Final = """\
examples:
  RAY_TOKEN_NAMESPACE=tandem RAY_TOKEN_SECRET=ray-token RAY_TOKEN_KEYS=rl,gym ray-token

exit codes: 0 the Secret has its tokens, 2 usage, 3 a precondition is not met (no cluster, no
right to get and patch the Secret, no such Secret)
"""


class TokenSettings(Settings):
    """Where the tokens go."""

    model_config = SettingsConfigDict(env_prefix="RAY_TOKEN_")

    namespace: DnsLabel = setting("Namespace of the run.")
    secret: DnsLabel = setting("Name of the run's Secret.")
    keys: Words = setting("Keys of the Secret, one for each Ray of the run.")


def fill(client: Client, namespace: str, secret: str, keys: Sequence[str]) -> bool:
    """Put a token under each key unless the Secret has data; return whether it had none.

    Raises:
        KubeError: It could not be read or written.
    """
    deadline = Deadline(_SECONDS)
    data = {key: b64encode(secrets.token_hex(TOKEN_BYTES).encode()).decode() for key in keys}
    while True:
        found = client.get(SECRETS, secret, namespace=namespace, deadline=deadline)
        if found.get("data"):
            return False
        version = found["metadata"]["resourceVersion"]
        try:
            client.merge_patch(
                SECRETS, secret, {"metadata": {"resourceVersion": version}, "data": data},
                field_manager="ray-token", namespace=namespace, deadline=deadline,
            )  # fmt: skip
        except Conflict:
            continue
        return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    argparse.ArgumentParser(
        prog="ray-token", description=__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)  # fmt: skip
    settings = TokenSettings.load()
    logs.configure("ray-token", level="info")
    with Client(load_config(), user_agent="tandem-ray-token") as client:
        try:
            made = fill(client, settings.namespace, settings.secret, settings.keys)
        except KubeError as error:
            raise UserError(
                Problem(str(error), "apply the variant whole: its Secret comes with it"),
                ExitCode.PRECONDITION,
            ) from None
    logs.get_logger().info("token", secret=settings.secret, made=made)
    return ExitCode.OK


def entry() -> None:
    """Run as a program."""
    run_main(main)


if __name__ == "__main__":
    entry()
