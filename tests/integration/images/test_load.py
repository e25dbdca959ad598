"""Loading images into a real containerd: what is loaded, when, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images import bundle
from tandem.images.bundle import Record
from tandem.images.load import NAMESPACE, load_into_node
from tandem.paths import BIN


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A containerd of this module's own; images are only unpacked, never run."""
    folder = tmp_path_factory.mktemp("containerd")
    config = folder / "config.toml"
    config.write_text(
        f'version = 3\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        # The kubelet's half needs CNI and is of no interest here.
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]\n'
        f'[grpc]\naddress = "{folder}/c.sock"\n'
        f'[ttrpc]\naddress = "{folder}/t.sock"\n',
        encoding="utf-8",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / "containerd", "--config", config], stdout=log, stderr=subprocess.STDOUT
        )
    path = folder / "c.sock"
    deadline = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, "containerd does not serve"
        time.sleep(0.05)
    yield path
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=20)


def _archive(image: str, content: bytes) -> bytes:
    """Return a docker archive of an image with one file."""

    def tar(files: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return out.getvalue()

    layer = tar({"content": content})
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()  # fmt: skip
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [image], "Layers": [f"{digest}.tar"]}]
    return tar(
        {
            f"{digest}.tar": layer,
            config_name: config,
            "manifest.json": json.dumps(manifest).encode(),
        }
    )


def _add(folder: Path, name: str, content: bytes) -> Record:
    """Put an image into a bundle folder."""
    image = f"localhost/test/{name}:dev"
    archive = _archive(image, content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tar").write_bytes(archive)
    record = Record(
        name, image, hashlib.sha256(content).hexdigest()[:12], len(archive),
        hashlib.sha256(archive).hexdigest(),
    )  # fmt: skip
    bundle.write(record, folder)
    return record


def _names(socket: Path) -> set[str]:
    listed = subprocess.run(
        [BIN / "ctr", "--address", socket, "--namespace", NAMESPACE, "images", "list", "--quiet"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(listed.stdout.split())


def test_an_image_is_loaded_once_and_again_when_its_content_changes(
    socket: Path, tmp_path: Path
) -> None:
    old = _add(tmp_path, "twice", b"one")
    assert [r.fresh for r in load_into_node(socket, folder=tmp_path)] == [True]
    assert {old.image, old.by_hash} <= _names(socket)
    assert [r.fresh for r in load_into_node(socket, folder=tmp_path)] == [False]

    new = _add(tmp_path, "twice", b"two")
    assert [r.fresh for r in load_into_node(socket, folder=tmp_path)] == [True]
    assert {new.image, new.by_hash} <= _names(socket)
    # The mark of the old content would keep its layers on the disk for ever.
    assert old.by_hash not in _names(socket)


def test_one_corrupt_file_stops_the_load_before_anything_is_loaded(
    socket: Path, tmp_path: Path
) -> None:
    good = _add(tmp_path, "good", b"good")
    bad = _add(tmp_path, "worse", b"bad")
    file = bad.file(tmp_path)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="is corrupt") as caught:
        load_into_node(socket, folder=tmp_path)
    assert caught.value.code == ExitCode.PRECONDITION
    assert good.image not in _names(socket)


def test_an_unknown_name_is_refused_with_the_names_there_are(socket: Path, tmp_path: Path) -> None:
    good = _add(tmp_path, "known", b"known")
    with pytest.raises(UserError, match="it holds: known") as caught:
        load_into_node(socket, ["known", "unknwon"], folder=tmp_path)
    assert caught.value.code == ExitCode.PRECONDITION
    assert good.image not in _names(socket)
