"""Waits for a file that the training command writes when its vLLM servers listen."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gym_server.signals import thread
from gym_server.urls import UrlError, parse

_CLOSE_WRITE, _MOVED_TO = 0x8, 0x80
_EVENT = struct.Struct("iIII")
#: Seconds between two looks where the kernel cannot tell (a file system over the network).
PERIOD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Written:
    """The file is there; what it holds, or what is wrong with it."""

    urls: tuple[str, ...] = ()
    problem: str = ""


def read_urls(text: str) -> Written:
    """Return the addresses of a JSON list."""
    try:
        listed = json.loads(text)
    except ValueError as error:
        return Written(problem=f"it is no JSON: {error}")
    if not isinstance(listed, list) or not listed:
        return Written(problem=f"it holds no list of addresses but {text.strip()[:100]!r}")
    urls = []
    for each in listed:
        if each is None:
            continue  # NeMo RL's list has one entry a worker; those without a server have none
        try:
            parse(str(each))
        except UrlError as error:
            return Written(problem=str(error))
        urls.append(str(each))
    return Written(tuple(urls), "" if urls else "every address in it is null")


class Watch:
    """Tells once when a file has been written."""

    def __init__(self, file: Path, tell: Callable[[Any], None]) -> None:
        """Take the file, whose folder is there, and whom to tell."""
        self._file = file
        self._tell = tell
        self._wake, self._woken = os.pipe()
        self._thread: threading.Thread | None = None

    def start(self) -> Watch:
        """Begin to watch, in a thread."""
        # Before the first look: what is written from now on is told.
        fd = _inotify(self._file.parent)
        self._thread = thread("urls-file", partial(self._run, fd), self._tell)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, without news from now on."""
        os.write(self._woken, b"x")
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake)
        os.close(self._woken)

    def _run(self, fd: int) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if fd >= 0:
            poller.register(fd, select.POLLIN)
        try:
            while True:
                try:
                    text = self._file.read_text(encoding="utf-8", errors="replace")
                except OSError:
                    text = ""
                # Empty is a writer that opened it and has not written yet.
                if text.strip():
                    self._tell(read_urls(text))
                    return
                ready = poller.poll(None if fd >= 0 else PERIOD_SECONDS * 1000)
                if any(at == self._wake for at, _ in ready):
                    return
                if ready:
                    os.read(fd, 65536)
        finally:
            if fd >= 0:
                os.close(fd)


def _inotify(folder: Path) -> int:
    """Return a descriptor that is readable when a file in a folder was written, or -1."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_CLOEXEC))
    if fd < 0:
        return -1
    if libc.inotify_add_watch(fd, os.fsencode(folder), _CLOSE_WRITE | _MOVED_TO) < 0:
        code = ctypes.get_errno()
        os.close(fd)
        if code == errno.ENOENT:
            raise FileNotFoundError(code, os.strerror(code), str(folder))
        return -1
    return fd
