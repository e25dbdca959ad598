"""Runs NeMo Gym: the child of `gym-server`, and the only part that imports NeMo Gym.

It is started by its file, with the Python that NeMo Gym is installed for, which need not be the
one of `gym-server`: so it imports nothing of this package, and nothing at all before its signal
handlers are in place.

    python -P gym_child.py CONFIG.json           start the head and every server; run until told
    python -P gym_child.py --check CONFIG.json   let NeMo Gym's own parser judge the config

Exit codes: 0 ended on request (or the config is right); 1 a server or the head has died, or the
start failed; 3 NeMo Gym refuses the config. The last lines of stderr say why.
"""

import json
import os
import select
import signal
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

# ruff: noqa: PLC0415 - NeMo Gym takes seconds to import: the handlers come first

OK, FAILURE, REFUSED = 0, 1, 3
#: Seconds between two looks at NeMo Gym's head, which is a thread: nothing tells of its end.
HEAD_SECONDS = 5.0
_HTTP_SECONDS = 10.0


class Ending(BaseException):
    """Somebody asked for the end; passes through everything that catches Exception."""


def catch_signals() -> None:
    """Let the first request to end interrupt whatever runs; later ones find us ending."""

    def handler(_number: int, _frame: Any) -> NoReturn:
        ignore_signals()
        raise Ending

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def ignore_signals() -> None:
    """Let nothing interrupt an orderly end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def how_it_ended(pidfd: int) -> str:
    """Return how a child of ours ended, and leave it for its owner to reap."""
    done = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if done is None:
        return "ended"
    if done.si_code == os.CLD_EXITED:
        return f"ended with code {done.si_status}"
    return f"was ended by signal {done.si_status} ({signal.strsignal(done.si_status)})"


def watch(servers: dict[int, str], poll_head: Any) -> str:
    """Wait until a server has ended and return which, and how.

    Args:
        servers: Names by process id, all of them children of this process.
        poll_head: Called every few seconds; raises when the head has died.
    """
    poller = select.poll()
    fds: dict[int, str] = {}
    try:
        for pid, name in servers.items():
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                return f"server {name} has ended"
            fds[fd] = name
            poller.register(fd, select.POLLIN)
        while True:
            for fd, _ in poller.poll(HEAD_SECONDS * 1000):
                return f"server {fds[fd]} {how_it_ended(fd)}"
            poll_head()
    finally:
        for fd in fds:
            os.close(fd)


def instances(port: int) -> dict[int, str]:
    """Return the names of the servers by process id, as the head tells them."""
    url = f"http://127.0.0.1:{port}/server_instances"
    with urllib.request.urlopen(url, timeout=_HTTP_SECONDS) as answer:
        listed = json.load(answer)
    return {int(one["pid"]): str(one.get("process_name") or one["name"]) for one in listed}


def parser_config(config: dict[str, Any], *, offline: bool) -> Any:
    """Return what NeMo Gym's parser is given: this config and nothing from anywhere else."""
    from nemo_gym.global_config import GlobalConfigDictParserConfig
    from omegaconf import DictConfig

    return GlobalConfigDictParserConfig(
        dotenv_path=None,
        skip_load_from_dotenv=True,
        skip_load_from_cli=True,
        initial_global_config_dict=DictConfig(config),
        offline=offline,
    )


def check(config: dict[str, Any]) -> int:
    """Let NeMo Gym judge a config without starting anything."""
    from nemo_gym.config_types import ConfigError
    from nemo_gym.global_config import GlobalConfigDictParser
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from pydantic import ValidationError

    try:
        parser = GlobalConfigDictParser()
        whole = parser.parse(parser_config(config, offline=True))
        parser.raise_on_no_server_instances(whole)
        OmegaConf.to_container(whole, resolve=True)
    except OmegaConfBaseException as error:
        at = getattr(error, "full_key", None)
        print(f"{at}: {error}" if at else str(error), file=sys.stderr)
        return REFUSED
    except (ConfigError, ValidationError, AssertionError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED
    return OK


def keep_signals_from_ray() -> None:
    """Have our handlers back as soon as Ray has started.

    It puts one of its own there, which aborts the process and leaves every server behind.
    """
    import ray

    start = ray.init

    def init(*args: Any, **options: Any) -> Any:
        context = start(*args, **options)
        catch_signals()
        return context

    ray.init = init


def run(config: dict[str, Any]) -> int:
    """Start everything, and end when told to or when a server has died."""
    from nemo_gym.cli.env import RunHelper

    keep_signals_from_ray()
    helper = RunHelper()
    # Shuts down what it has started when it fails or is interrupted.
    helper.start(global_config_dict_parser_config=parser_config(config, offline=False))
    try:
        reason = watch(instances(config["head_server"]["port"]), helper.poll)
    except Ending:
        ignore_signals()
        helper.shutdown()
        return OK
    except RuntimeError as error:
        reason = str(error)
    # The last words of this process, and at once: an orderly end of the other servers takes many
    # seconds and nobody needs it any more. Whoever started us ends what is left of the group.
    print(f"NeMo Gym: {reason}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(FAILURE)


def main(argv: list[str]) -> int:
    """Do what the command line says."""
    catch_signals()
    checking = argv[:1] == ["--check"]
    config = json.loads(Path(argv[-1]).read_text(encoding="utf-8"))
    try:
        return check(config) if checking else run(config)
    except Ending:
        return OK
    except Exception as error:  # noqa: BLE001 - whatever it is, its last line must say it
        traceback.print_exc()
        print(f"NeMo Gym did not start: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILURE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
