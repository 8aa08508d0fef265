"""The committed bytes are the bytes: for every quantizer, every frame, and whole federations."""

import importlib.util
import json
from pathlib import Path

import pytest

from qafel import quantizer, registered_optimizers, registered_quantizers, wire
from specs import SPECS

_spec = importlib.util.spec_from_file_location("make", Path(__file__).with_name("make.py"))
assert _spec
assert _spec.loader
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)
VECTORS = json.loads(make.PATH.read_text())


@pytest.mark.parametrize("spec", SPECS)
def test_quantizer_bytes(spec: str) -> None:
    assert make.quantizer_vector(spec) == VECTORS["quantizers"][spec]


def test_every_registered_quantizer_has_committed_bytes() -> None:
    assert {quantizer(spec).name for spec in VECTORS["quantizers"]} == set(registered_quantizers())


def test_every_registered_optimizer_has_a_committed_federation() -> None:
    assert set(registered_optimizers()) < set(VECTORS["federations"])


def test_affine_bytes_with_a_layout() -> None:
    assert {s: make.quantizer_vector(s, make.LAYOUT) for s in make.WITH_LAYOUT} == VECTORS["with_layout"]


def test_frame_bytes_in_both_directions() -> None:
    for message, (name, text) in zip(make.MESSAGES, VECTORS["frames"], strict=True):
        assert type(message).__name__ == name
        assert wire.encode(message).hex() == text
        assert wire.decode(bytes.fromhex(text)) == message
    assert {name for name, _ in VECTORS["frames"]} == {cls.__name__ for cls in wire.Message.__args__}


@pytest.mark.parametrize("name", make.FEDERATIONS)
def test_a_whole_federation_ends_in_the_committed_digests(name: str) -> None:
    assert make.federation(make.FEDERATIONS[name]) == VECTORS["federations"][name]
