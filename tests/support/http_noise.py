"""Bytes that are almost HTTP, the same for the same seed: what a fuzzer sends."""

# ruff: noqa: E501 - tables of bytes

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = b"GET /v1/last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"

_BODIES = [
    b"", b"x", b'{"prompt":"x"}', b'{"messages":[{"role":"user","content":"y"}]}', SMUGGLED,
    b"0\r\n\r\n" + SMUGGLED, b"5\r\nabcde\r\n0\r\n\r\n" + SMUGGLED, bytes(range(256)),
]  # fmt: skip
_LENGTHS = [
    b"0", b"1", b"4", b"40", b"-1", b"+4", b"0x4", b"4 4", b"4, 4", b"4,40", b"", b"04", b"4\x0b",
    b"\xb24", b"1e1", b"4.0", b"18446744073709551617", b"4;4", b"99999999999999999999999",
]  # fmt: skip
_CODINGS = [
    b"chunked", b"Chunked", b"CHUNKED", b"xchunked", b"chunked, identity", b"identity, chunked",
    b"chunked, chunked", b"\x0bchunked", b"gzip, chunked", b"chunked;q=1", b'"chunked"', b"identity",
    b"", b"chunked\x00", b"chunk\r\n ed", b",chunked", b"chunked,", b"ch\xc3\xbanked",
]  # fmt: skip
_NAMES = [
    b"content-length", b"Content-Length", b"transfer-encoding", b"TRANSFER-ENCODING",
    b"content-length ", b"transfer-encoding ", b" transfer-encoding", b"\tcontent-length",
    b"transfer_encoding", b"content_length", b"transfer-encoding\x00", b"content-length\r", b"x\r\n",
    b"transfer\x0bencoding", b"", b"host", b"connection", b"upgrade", b"expect", b"te", b"trailer",
]  # fmt: skip
_SIZES = [
    b"zz", b"-1", b"+4", b"0x4", b"4 ", b" 4", b"4;ext=1", b'4;ext="a\nb"', b"04", b"4\t", b"4\r",
    b"fffffffffffffffff", b"ffffffffffffffff", b"7fffffffffffffff", b"", b"4;\x00", b"00", b"4,4",
]  # fmt: skip
_FIRSTS = [
    b"GET  / HTTP/1.1", b"GET /a b HTTP/1.1", b"GET / HTTP/1.0", b"GET / HTTP/1.2", b"GET / HTTP/2.0",
    b"GET /", b"get / HTTP/1.1", b"G\x00T / HTTP/1.1", b"GET / HTTP/1.1 ", b"GET\t/\tHTTP/1.1",
    b" GET / HTTP/1.1", b"GET / http/1.1", b"GET / HTTP/1.1\r\nGET / HTTP/1.1", b"GET * HTTP/1.1",
    b"GET /v1/\x80 HTTP/1.1", b"GET /v1/a#b HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /\x7f HTTP/1.1",
    b"PRI * HTTP/2.0", b"GET \\v1 HTTP/1.1", b"CONNECT a:80 HTTP/1.1", b"", b"\x16\x03\x01",
]  # fmt: skip
_BYTES = b"\x00\r\n\t :;,\x0b\x7f\x80\xff0aZ"


@dataclass
class Draft:
    """A request before it is bytes."""

    lines: list[bytes]
    body: bytes
    chunked: bool = False
    sizes: list[bytes | None] = field(default_factory=list)
    trailers: bytes = b""

    def data(self) -> bytes:
        """Return the bytes."""
        head = b"".join(line + b"\r\n" for line in self.lines) + b"\r\n"
        if not self.chunked:
            return head + self.body
        parts = [self.body[at : at + 4] for at in range(0, len(self.body), 4)]
        sizes = [*self.sizes, *[None] * len(parts)]
        chunks = [
            (b"%x" % len(part) if size is None else size) + b"\r\n" + part + b"\r\n"
            for size, part in zip(sizes, parts, strict=False)
        ]
        return head + b"".join(chunks) + b"0\r\n" + self.trailers + b"\r\n"


def _legal(noise: random.Random, number: int) -> Draft:
    """Return a request that is as it should be."""
    body = noise.choice(_BODIES)
    host = b"host: a"
    extra = noise.choice(
        [[], [b"x-session-id: s"], [b"x: " + b"l" * noise.randrange(9000)], [b"a:b"]]
    )
    kind = noise.randrange(3)
    if kind == 0:
        return Draft([b"GET /v1/g%d HTTP/1.1" % number, host, *extra], b"")
    if kind == 1:
        length = b"content-length: %d" % len(body)
        return Draft([b"POST /v1/p%d?q=1 HTTP/1.1" % number, host, length, *extra], body)
    coding = b"transfer-encoding: chunked"
    return Draft([b"POST /v1/c%d HTTP/1.1" % number, host, coding, *extra], body, chunked=True)


def _another_header(noise: random.Random, draft: Draft) -> None:
    name = noise.choice(_NAMES)
    value = noise.choice(_LENGTHS if b"length" in name else _CODINGS)
    draft.lines.insert(
        noise.randint(1, len(draft.lines)), name + noise.choice([b":", b": "]) + value
    )


def _header_again(noise: random.Random, draft: Draft) -> None:
    line = noise.choice(draft.lines[1:])
    draft.lines.insert(noise.randint(1, len(draft.lines)), line)


def _fold(noise: random.Random, draft: Draft) -> None:
    at = noise.randrange(1, len(draft.lines))
    draft.lines[at] = noise.choice([b" ", b"\t", b"x: y\r\n "]) + draft.lines[at]


def _first_line(noise: random.Random, draft: Draft) -> None:
    draft.lines[0] = noise.choice(_FIRSTS)


def _chunk_sizes(noise: random.Random, draft: Draft) -> None:
    draft.sizes = [noise.choice([None, *_SIZES]) for _ in range(noise.randint(1, 3))]


def _trailers(noise: random.Random, draft: Draft) -> None:
    draft.trailers = noise.choice(
        [b"x: y\r\n", b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n", b"x\r\n", b": y\r\n",
         b" x: y\r\n", b"x: " + b"t" * 70_000 + b"\r\n", b"x: y\n", b"host: b\r\n"]
    )  # fmt: skip


def _giant(noise: random.Random, draft: Draft) -> None:
    draft.lines += noise.choice(
        [[b"x: " + b"l" * 70_000], [b"x" * 70_000 + b": y"], [b"x%d: y" % n for n in range(300)]]
    )


def _two_lengths(noise: random.Random, draft: Draft) -> None:
    at = noise.randint(1, len(draft.lines))
    length = b"content-length: %d" % noise.choice([0, 4, len(draft.body)])
    draft.lines[at:at] = noise.choice([[length], [length, b"transfer-encoding: chunked"]])


def _length(noise: random.Random, draft: Draft) -> None:
    draft.lines = [
        b"content-length: " + noise.choice(_LENGTHS) if line.startswith(b"content-length") else line
        for line in draft.lines
    ]


def _coding(noise: random.Random, draft: Draft) -> None:
    draft.lines = [
        b"transfer-encoding:" + noise.choice([b"", b" ", b"\t"]) + noise.choice(_CODINGS)
        if line.startswith(b"transfer-encoding")
        else line
        for line in draft.lines
    ]


_CHANGES: list[Callable[[random.Random, Draft], None]] = [
    _another_header, _two_lengths, _header_again, _fold, _first_line, _chunk_sizes, _trailers,
    _giant, _length, _coding,
]  # fmt: skip


def _bytes_changed(noise: random.Random, data: bytes) -> bytes:
    """Return bytes with some lost, put in, doubled or replaced, most of them near the beginning."""
    changed = bytearray(data)
    for _ in range(noise.randint(1, 3)):
        at = noise.randrange(max(1, min(len(changed), noise.choice([60, 200, 4000]))))
        match noise.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([noise.choice(_BYTES)])
            case 1:
                changed[at:at] = bytes([noise.choice(_BYTES)])
            case 2:
                del changed[at : at + noise.randint(1, 3)]
            case 3:
                changed[at:at] = changed[at : at + noise.randint(1, 40)]
            case _:
                # One line ends with LF alone, or with CR alone.
                end = changed.find(b"\r\n", at)
                if end >= 0:
                    changed[end : end + 2] = noise.choice([b"\n", b"\r", b"\n\r", b"\r\r\n"])
    return bytes(changed)


def stream(noise: random.Random, tag: int) -> bytes:
    """Return what one client sends: some requests, most often with something wrong in one.

    Requests that begin as legal ones have targets of their own, if no two streams have the same
    tag.
    """
    parts: list[bytes] = []
    wrong = noise.randrange(4)
    count = noise.randint(1, 3)
    for number in range(count):
        draft = _legal(noise, 10 * tag + number)
        if wrong > 0 and number == count - 1:
            for _ in range(noise.randint(1, 2)):
                noise.choice(_CHANGES)(noise, draft)
        data = draft.data()
        if wrong == 3 and number == count - 1:
            data = _bytes_changed(noise, data)
            if noise.randrange(4) == 0:
                return b"".join(parts) + data[: noise.randrange(len(data) + 1)]
        parts.append(data)
    return b"".join(parts) + LAST
