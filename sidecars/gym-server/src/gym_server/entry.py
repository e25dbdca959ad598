"""Entry points: signal handlers first, then everything that takes time to import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from gym_server.signals import Mailbox, catch

# ruff: noqa: PLC0415 - importing late is what this module is for


def _run(main: Callable[[Mailbox, list[str]], int], mailbox: Mailbox) -> NoReturn:
    from tandem_common.errors import run_main

    run_main(lambda: main(mailbox, sys.argv[1:]))


def gym_server() -> NoReturn:
    """Run the Gym server."""
    mailbox = Mailbox()
    catch(mailbox)
    from gym_server.server import main

    _run(main, mailbox)


def driver() -> NoReturn:
    """Run the driver."""
    mailbox = Mailbox()
    catch(mailbox)
    from gym_server.driver import main

    _run(main, mailbox)
