"""A second opinion on HTTP/1.1: which requests some bytes are, read strictly and by itself.

Lenient where a server may be without danger, since all of us read it alike: a line may end with LF
alone, the words of the first one may have more blanks around them, and a value may go on in the
next line. Whatever leaves in doubt where a request ends is
illegal, and nothing behind it counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(rb"[^\x00-\x20\x7f]+")
_VERSION = re.compile(rb"HTTP/1\.[01]")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_DIGITS = re.compile(rb"\d{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r]*)?")


class IllegalError(Exception):
    """These bytes are no request, or the beginning of one only."""


@dataclass(frozen=True)
class Request:
    """A request that was sent whole."""

    method: bytes
    target: bytes
    body: bytes


def requests_in(data: bytes) -> list[Request]:
    """Return the legal requests that some bytes begin with."""
    found = []
    reader = _Reader(data)
    try:
        while True:
            found.append(_request(reader))
    except IllegalError:
        return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def line(self) -> bytes:
        """Return the next line without its end."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IllegalError
        line, self.at = self.data[self.at : end], end + 1
        return line.rstrip(b"\r")

    def take(self, count: int) -> bytes:
        """Return so many bytes."""
        if self.at + count > len(self.data):
            raise IllegalError
        part, self.at = self.data[self.at : self.at + count], self.at + count
        return part


def _request(reader: _Reader) -> Request:
    first = reader.line()
    while not first:
        first = reader.line()
    words = [word for word in re.split(rb"[ \t\r]+", first) if word]
    if len(words) != 3:
        raise IllegalError
    method, target, version = words
    for pattern, word in ((_TOKEN, method), (_TARGET, target), (_VERSION, version)):
        _must(pattern, word)
    return Request(method, target, _body(reader, _headers(reader)))


def _must(pattern: re.Pattern[bytes], word: bytes) -> re.Match[bytes]:
    match = pattern.fullmatch(word)
    if match is None:
        raise IllegalError
    return match


def _headers(reader: _Reader) -> list[tuple[bytes, bytes]]:
    """Return names, in lower case, and values up to the empty line."""
    found: list[tuple[bytes, bytes]] = []
    while line := reader.line():
        if line[:1] in (b" ", b"\t"):
            if not found:
                raise IllegalError
            name, value = found.pop()
            found.append((name, (value + b" " + line.strip(b" \t")).strip(b" ")))
            continue
        name, colon, value = line.partition(b":")
        _must(_TOKEN, name)
        # A CR within a value may be left out, and so may a byte that is no text; in the two
        # headers that tell the length, neither has any right to be.
        if not colon or b"\0" in value:
            raise IllegalError
        found.append((name.lower(), value.strip(b" \t")))
    return found


def _body(reader: _Reader, headers: list[tuple[bytes, bytes]]) -> bytes:
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if any(codings):
        # Codings are a list, and one that is empty adds nothing to it.
        codings = [coding for coding in codings if coding]
    if len(lengths) + len(codings) > 1:
        raise IllegalError
    if lengths:
        return reader.take(int(_must(_DIGITS, lengths[0])[0]))
    if not codings:
        return b""
    if codings[0].lower() != b"chunked":
        raise IllegalError
    body = b""
    while size := int(_must(_CHUNK, reader.line())[1], 16):
        body += reader.take(size)
        if reader.line():
            raise IllegalError
    _headers(reader)
    return body


def flaws_of(head: bytes) -> list[str]:
    """Return what is wrong with the head of a request that a proxy has written."""
    flaws = []
    if not head.endswith(b"\r\n\r\n"):
        flaws.append("no empty line at its end")
    first, *lines = head.split(b"\r\n")[:-2]
    if re.fullmatch(rb"[A-Z]+ [^\x00-\x20\x7f]+ HTTP/1\.1", first) is None:
        flaws.append(f"first line {first!r}")
    names = []
    for line in lines:
        name, colon, value = line.partition(b": ")
        names.append(name.lower())
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            flaws.append(f"header {line!r}")
    framing = [name for name in names if name in (b"content-length", b"transfer-encoding")]
    if len(framing) > 1:
        flaws.append(f"{framing} together")
    if names.count(b"host") != 1:
        flaws.append(f"{names.count(b'host')} hosts")
    return flaws
