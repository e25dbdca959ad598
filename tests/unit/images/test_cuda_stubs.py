"""The stand-ins for NVIDIA's libraries load as the real loader wants them."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tandem.paths import ROOT

SOURCE = ROOT / "cluster/host/images/ray-vllm-cpu/cuda_stubs.py"


@pytest.fixture(scope="module")
def stubs() -> ModuleType:
    """The program of the image, which is in no package."""
    spec = importlib.util.spec_from_file_location("cuda_stubs", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_function_of_a_stub_exists_and_fails_cleanly(
    stubs: ModuleType, tmp_path: Path
) -> None:
    symbols = {"cublasCreate_v2": "libcublas.so.13", "cuFileOpen": "", "other": "libcublas.so.13"}
    path = tmp_path / "libcublas.so.13"
    path.write_bytes(stubs.build_stub(path.name, symbols))
    library = ctypes.CDLL(str(path))
    for name in symbols:
        assert library[name]() == 999
    with pytest.raises(AttributeError):
        _ = library["notThere"]


def test_needs_and_versions_of_a_real_library_are_read(stubs: ModuleType) -> None:
    # The C library of this machine: the reader is right about a library that we did not write.
    with Path("/proc/self/maps").open() as maps:
        libm = next((line.split()[-1] for line in maps if "/libm.so" in line), "")
    if not libm:
        pytest.skip("this Python is linked without libm")
    elf = stubs.Elf(Path(libm))
    assert "libc.so.6" in set(elf.needed())
    assert any(library == "libc.so.6" for _, library, _ in elf.undefined())


def test_a_torch_that_needs_nothing_is_an_error(stubs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    with pytest.raises(SystemExit, match="no NVIDIA library is missing"):
        stubs.write_stubs(tmp_path)
