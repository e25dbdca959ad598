"""What a build is given and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tandem.errors import ExitCode, UserError
from tandem.images.build import arguments_of, build_secrets, check_disk
from tandem.images.engine import Engine
from tandem.images.specs import Image, all_images


class Usage(NamedTuple):
    """As shutil.disk_usage returns it."""

    total: int
    used: int
    free: int


def test_a_build_is_refused_when_the_disk_is_too_full(monkeypatch: pytest.MonkeyPatch) -> None:
    # A full disk cannot be had in a test; the figure is what is pretended, nothing else.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - 10**9, 10**9))
    images = [image for image in all_images() if image.name == "ray-vllm-cpu"]
    assert images
    with pytest.raises(UserError, match=r"0\.9 GiB are free at .* may need 11\.0") as caught:
        check_disk(Engine("buildah"), images)
    assert caught.value.code == ExitCode.PRECONDITION
    check_disk(Engine("buildah"), [])


def test_secrets_exist_for_the_time_of_the_build_only(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.crt"
    authorities.write_text("certificate")
    environment = {
        "UV_DEFAULT_INDEX": "https://user:it's@index.example/simple",
        "SSL_CERT_FILE": str(authorities),
        "HOME": "/home/somebody",
    }
    with build_secrets(environment) as secrets:
        assert secrets["ca-bundle"] == authorities
        settings = secrets["build-env"]
        assert settings.stat().st_mode & 0o077 == 0
        text = settings.read_text()
        assert "SSL_CERT_FILE=/run/secrets/ca-bundle\n" in text
        assert "somebody" not in text
    assert not settings.exists()


def test_a_machine_without_settings_gives_no_secrets() -> None:
    with build_secrets({}) as secrets:
        assert secrets == {}


def test_the_base_has_one_name_wherever_it_comes_from() -> None:
    # So that the content hash of all that stands on it depends on no engine and no registry.
    base = Image("base", "dev", base="debian")
    assert arguments_of(base, {}) == {"BASE": "localhost/tandem/debian:trixie"}
    above = Image("above", "dev", base="base")
    assert arguments_of(above, {"base": "123"}) == {"BASE": "localhost/tandem/base:123"}
    assert arguments_of(Image("pause", "dev"), {}) == {}
