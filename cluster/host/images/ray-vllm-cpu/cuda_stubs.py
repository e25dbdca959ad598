# ruff: noqa: INP001 - a program of one image, copied into its build; no package.
"""Let the CUDA build of torch load on a machine that will never have a GPU.

The package index serves torch for Linux as a CUDA build only. Its libraries name
cuBLAS, cuDNN, NCCL and ten more as needed, so that `import torch` fails without 2.4 GB of
wheels of which a CPU run calls not one function. This program writes, beside torch's own
libraries, a shared library of a few KiB for each one that is missing: every function that
torch would look up there exists and returns 999 ("unknown error" in CUDA's terms), so a
call by mistake fails cleanly instead of crashing.

`libcudart` is not replaced: the real one (3 MB) answers "no device", which is what torch and
vLLM ask when they start. This suits a CPU development image and nothing else.

Usage: python cuda_stubs.py SITE_PACKAGES
"""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

#: `mov eax, 999; ret`: the one function behind every name.
BODY = b"\xb8\xe7\x03\x00\x00\xc3"
#: Dynamic tags and section types of the ELF format (gABI and GNU's symbol versions).
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_STRSZ, DT_SYMENT, DT_SONAME = 10, 11, 14
DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
SHT_DYNAMIC, SHT_DYNSYM, SHT_VERNEED, SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
GLOBAL_FUNC = 0x12
PAGE = 0x1000
#: NVIDIA's libraries; `libcuda.so.1` is the driver, which torch only opens when it is there.
LIBRARIES = ("libcu", "libnccl", "libnvrtc", "libnvshmem")
DRIVER = "libcuda.so.1"
#: Begin of the names that are asked for without saying of which library.
UNVERSIONED = ("cuFile", "cusparseLt", "nccl")


class Elf:
    """The few tables of a 64-bit ELF library that are read here."""

    def __init__(self, path: Path) -> None:
        """Read the file and its section headers."""
        self.data = path.read_bytes()
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        size, count = struct.unpack_from("<HH", self.data, 58)
        # A header: name, type, flags, address, offset, size, link, info, alignment, entry size.
        self.sections = [
            struct.unpack_from("<IIQQQQIIQQ", self.data, offset + i * size) for i in range(count)
        ]

    def table(self, kind: int) -> tuple[bytes, bytes]:
        """Return the first section of a type and the strings it refers to; b"" without one."""
        for section in self.sections:
            if section[1] == kind:
                strings = self.sections[section[6]]
                return (
                    self.data[section[4] : section[4] + section[5]],
                    self.data[strings[4] : strings[4] + strings[5]],
                )
        return b"", b""

    def needed(self) -> Iterator[str]:
        """Yield the libraries that this one loads."""
        table, strings = self.table(SHT_DYNAMIC)
        for tag, value in struct.iter_unpack("<qQ", table):
            if tag == DT_NEEDED:
                yield text(strings, value)

    def versions(self) -> dict[int, tuple[str, str]]:
        """Return library and version name by version index."""
        table, strings = self.table(SHT_VERNEED)
        found: dict[int, tuple[str, str]] = {}
        at, following = 0, 1 if table else 0
        while following:
            _, _, library, first, following = struct.unpack_from("<HHIII", table, at)
            entry, step = at + first, 1
            while step:
                _, _, index, name, step = struct.unpack_from("<IHHII", table, entry)
                found[index] = (text(strings, library), text(strings, name))
                entry += step
            at += following
        return found

    def undefined(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, library and version of each undefined symbol; the last two may be ""."""
        table, strings = self.table(SHT_DYNSYM)
        indices, _ = self.table(SHT_VERSYM)
        versions = self.versions()
        for position, (name, _, _, section, _, _) in enumerate(
            struct.iter_unpack("<IBBHQQ", table)
        ):
            if section == 0 and name:
                index = struct.unpack_from("<H", indices, 2 * position)[0] if indices else 0
                yield (text(strings, name), *versions.get(index, ("", "")))


def text(table: bytes, offset: int) -> str:
    """Return the string at an offset of a string table."""
    return table[offset : table.index(b"\0", offset)].decode()


def elf_hash(name: str) -> int:
    """Return the hash of the System V ABI, by which version names are compared."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def build_stub(soname: str, symbols: Mapping[str, str]) -> bytes:
    """Return a shared library of that name in which every symbol is the same function.

    Args:
        soname: The name that other libraries ask for.
        symbols: Version of each symbol, by name; "" for none.
    """
    strings = bytearray(b"\0")

    def put(name: str) -> int:
        strings.extend(name.encode() + b"\0")
        return len(strings) - 1 - len(name)

    # Version 1 is the library itself; the named ones follow.
    versions = [soname, *sorted({version for version in symbols.values() if version})]
    version_names = [put(version) for version in versions]
    names = [put(symbol) for symbol in symbols]
    count = len(names) + 1

    parts: dict[str, bytes] = {
        "symtab": bytes(24 * count),  # filled below: it holds the address of the code
        "strtab": bytes(strings),
        # One bucket and one chain through all symbols: a few hundred names, looked up once.
        "hash": struct.pack(f"<3I{count}I", 1, count, count - 1, 0, *range(count - 1)),
        "versym": struct.pack(
            f"<{count}H", 0, *(versions.index(v) + 1 if v else 1 for v in symbols.values())
        ),
        "verdef": b"".join(
            struct.pack(
                "<HHHHIIIII",
                1,
                int(i == 0),
                i + 1,
                1,
                elf_hash(version),
                20,
                28 if i + 1 < len(versions) else 0,
                version_names[i],
                0,
            )
            for i, version in enumerate(versions)
        ),
        "code": BODY,
    }
    place: dict[str, int] = {}
    end = 64 + 3 * 56
    for part, content in parts.items():
        place[part] = end
        end = (end + len(content) + 15) & ~15
    tags = [
        (DT_SONAME, version_names[0]), (DT_HASH, place["hash"]), (DT_STRTAB, place["strtab"]),
        (DT_STRSZ, len(strings)), (DT_SYMTAB, place["symtab"]), (DT_SYMENT, 24),
        (DT_VERSYM, place["versym"]), (DT_VERDEF, place["verdef"]),
        (DT_VERDEFNUM, len(versions)), (DT_NULL, 0),
    ]  # fmt: skip
    parts["symtab"] = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, GLOBAL_FUNC, 0, 1, place["code"], len(BODY)) for name in names
    )
    parts["dynamic"] = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    place["dynamic"] = end
    size = len(parts["dynamic"])
    end += size

    out = bytearray(end)
    struct.pack_into(
        "<4sBBBB8xHHIQQQIHHHHHH", out, 0,
        b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0,
    )  # fmt: skip
    # One segment: executable, and writable because the loader stores addresses in .dynamic.
    struct.pack_into("<IIQQQQQQ", out, 64, PT_LOAD, 7, 0, 0, 0, end, end, PAGE)
    at = place["dynamic"]
    struct.pack_into("<IIQQQQQQ", out, 120, PT_DYNAMIC, 6, at, at, at, size, size, 8)
    # Without this header the loader would ask for an executable stack.
    struct.pack_into("<IIQQQQQQ", out, 176, PT_GNU_STACK, 6, 0, 0, 0, 0, 0, 16)
    for part, content in parts.items():
        out[place[part] : place[part] + len(content)] = content
    return bytes(out)


def write_stubs(site_packages: Path) -> list[str]:
    """Write a stub for each of NVIDIA's libraries that torch needs and nobody installed."""
    folder = site_packages / "torch" / "lib"
    present = {path.name for path in folder.iterdir()}
    present |= {path.name for path in (site_packages / "nvidia").rglob("*.so*")} | {DRIVER}
    missing: set[str] = set()
    symbols: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(folder.glob("*.so*")):
        elf = Elf(path)
        missing |= {n for n in elf.needed() if n.startswith(LIBRARIES) and n not in present}
        for name, library, version in elf.undefined():
            if library or name.startswith(UNVERSIONED):
                symbols[library][name] = version
    if not missing:
        raise SystemExit(f"{folder}: no NVIDIA library is missing, or this is not torch for CUDA")
    for library in sorted(missing):
        content = build_stub(library, symbols[""] | symbols[library])
        (folder / library).write_bytes(content)
    return sorted(missing)


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004
        raise SystemExit(__doc__)
    sys.stdout.write("stubs: " + " ".join(write_stubs(Path(sys.argv[1]))) + "\n")
