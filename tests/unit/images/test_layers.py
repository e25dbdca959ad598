"""An image that stands on another installs nothing that is there already.

An upper image's lock names everything, also what the image below has installed. As long as both
name the same version, the installer leaves it alone and the layer is shared; another version
would be installed a second time, and Ray would not talk across.
"""

from __future__ import annotations

import re

import pytest

from tandem.images.specs import all_images
from tandem.paths import ROOT

REQUIREMENTS = ROOT / "requirements"
UPPER = [image.name for image in all_images() if image.base == "ray"]


def _pins(name: str) -> dict[str, str]:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    return dict(re.findall(r"(?m)^([\w.-]+)==([^\s;\\]+)", text))


def test_both_development_images_share_their_ray() -> None:
    assert UPPER == ["ray-vllm-cpu", "ray-gym-cpu"]


@pytest.mark.parametrize("upper", UPPER)
def test_an_upper_image_has_the_whole_of_ray_as_it_is_below(upper: str) -> None:
    below = _pins("ray")
    assert "ray" in below
    assert {name: _pins(upper).get(name) for name in below} == below


@pytest.mark.parametrize("other", ["ray", *UPPER])
def test_the_sidecars_packages_are_those_that_the_others_have(other: str) -> None:
    sidecars, pins = _pins("sidecars"), _pins(other)
    common = sidecars.keys() & pins.keys()
    assert common
    assert {n: pins[n] for n in common} == {n: sidecars[n] for n in common}
