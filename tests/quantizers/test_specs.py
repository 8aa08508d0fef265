"""Specs parse, print and round-trip; invalid ones raise an error with the nearest valid one; other packages
can register quantizers.
"""

import decimal
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel import (
    ConfigError,
    FrameError,
    Quantizer,
    SpecError,
    quantizer,
    register_quantizer,
    registered_quantizers,
)
from qafel.quantizers import Arguments, _base
from qafel.vectors import Vector
from specs import SPECS, heavy_tailed


@pytest.mark.parametrize("spec", SPECS)
def test_canonical_specs_round_trip(spec: str) -> None:
    assert quantizer(spec).spec == spec == str(quantizer(spec))
    assert quantizer(quantizer(spec).spec) == quantizer(spec)


@given(
    st.one_of(
        st.builds("qsgd:{}".format, st.integers(2, 16)),
        st.builds("qsgd:levels={}".format, st.integers(1, 32767)),
        st.builds("qsgd:4,bucket={},norm=max".format, st.integers(1, 10**6)),
        st.builds("topk:{}".format, st.decimals("0.000001", "0.999999", places=6)),
        st.builds("randk:{},scaled".format, st.integers(1, 10**6)),
        st.builds("affine:{}".format, st.integers(1, 16)),
    )
)
def test_any_valid_spec_round_trips_after_one_printing(spec: str) -> None:
    q = quantizer(spec)
    assert quantizer(q.spec) == q
    assert quantizer(q.spec).spec == q.spec


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("qsgd:levels=7", "qsgd:4"),
        ("qsgd:levels=1", "qsgd:2"),
        (" qsgd:4 , bucket=256 ,norm=max", "qsgd:4,bucket=256,norm=max"),
        ("qsgd:norm=l2,levels=8", "qsgd:levels=8"),
        ("topk:0.10", "topk:0.1"),
        ("topk:1e2", "topk:100"),
    ],
)
def test_other_spellings_mean_the_same_quantizer(spec: str, canonical: str) -> None:
    assert quantizer(spec) == quantizer(canonical)
    assert quantizer(spec).spec == canonical


BAD: dict[str, str | None] = {
    "qsdg:4": "qsgd:4",
    "QSGD:4": "qsgd:4",
    "topk0.1": "topk:0.1",
    "qsgd": "qsgd:4",
    "qsgd:": "qsgd:4",
    "qsgd:norm=max": "qsgd:4,norm=max",
    "qsgd:99": "qsgd:16",
    "qsgd:1": "qsgd:2",
    "qsgd:x": "qsgd:4",
    "qsgd:4.6": "qsgd:5",
    "qsgd:4,buket=256": "qsgd:4,bucket=256",
    "qsgd:4,bucket=": "qsgd:4",
    "qsgd:4,256": "qsgd:4",
    "qsgd:4,norm=mx": "qsgd:4,norm=max",
    "qsgd:4,levels=7": "qsgd:4",
    "qsgd:4,bucket=0": "qsgd:4,bucket=1",
    "qsgd:4,bucket=2,bucket=3": "qsgd:4,bucket=2",
    "qsgd:99,buket=3,norm=mx": "qsgd:16,bucket=3,norm=max",
    "affine:0": "affine:1",
    "affine": "affine:4",
    "affine:4,bucket=3": "affine:4",
    "topk:1.5": "topk:2",
    "topk:-1": "topk:0.1",
    "topk:nan": "topk:0.1",
    "topk:1e999999": "topk:0.1",
    "topk:1e-999999": "topk:0.1",
    "randk:0.1,scalde": "randk:0.1,scaled",
    "randk:scaled": "randk:0.1,scaled",
    "identity:3": "identity",
    "contract": "contract:qsgd:4",
    "contract:topk:0.1": "topk:0.1",
    "contract:qsgd:77": "contract:qsgd:16",
    "induced:topk:0.1": "induced:topk:0.1+qsgd:4",
    "induced:topk:0.1+topk:0.2": "induced:topk:0.1+qsgd:4",
    "induced:tpk:0.1+qsgd:99": "induced:topk:0.1+qsgd:16",
    "induced:induced": "induced:topk:0.1+qsgd:4",
    "induced:induced+qsgd:4": "induced:topk:0.1+qsgd:4",
    "induced:induced:topk:0.1": "induced:topk:0.1+qsgd:4",
    "contract:" * 50: "qsgd:4",
    "induced:contract:induced:a+qsgd:4": None,
    "scaled:buket": None,
    "induced:bad+{x}": None,
    "induced:topk0.1+qsgd{}:4": None,
    "qsgd:4" + ",x" * 50: None,
    "qsgd:4" + ",x" * 400: "qsgd:4",
    "qsgd,bucket=256,norm=max:4": "qsgd:4,bucket=256,norm=max",
    "topk:0." + "9" * 29: "topk:0.1",
    "topk:3.14159265e-5": "topk:0.1",
    "induced:topk:1e-9+" * 6 + "qsgd:4": "induced:topk:0.000000001+qsgd:4",
    "none": "identity",
    "": "identity",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_spec_names_the_nearest_valid_one(spec: str) -> None:
    with pytest.raises(SpecError) as caught:
        quantizer(spec)
    assert BAD[spec] in (None, caught.value.nearest)
    assert quantizer(caught.value.nearest).spec == caught.value.nearest
    assert repr(caught.value.nearest) in str(caught.value)
    assert "\n" not in str(caught.value)


PIECES = [
    *registered_quantizers(),
    ":",
    ",",
    "=",
    "+",
    "4",
    "0.1",
    "99",
    "levels",
    "bucket",
    "norm",
    "max",
    "l2",
    "scaled",
    "x",
]


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
        st.text(st.sampled_from("qsgdtopkrandinucedfl:,=+.0123456789 levbmx"), max_size=30),
    )
)
def test_any_text_is_a_quantizer_or_a_spec_error_with_a_valid_proposal(text: str) -> None:
    with mock.patch.object(_base, "entry_points", return_value=()):  # searching packages takes 10 ms a text
        try:
            q = quantizer(text)
        except SpecError as error:
            q = quantizer(error.nearest)
    assert quantizer(q.spec) == q


@pytest.mark.parametrize("bad", [None, 4, b"qsgd:4", ["qsgd:4"]])
def test_a_spec_that_is_not_a_string_is_a_spec_error(bad: object) -> None:
    with pytest.raises(SpecError, match="a spec is a string"):
        quantizer(bad)  # type: ignore[arg-type]


def test_a_fraction_means_the_same_under_any_decimal_context() -> None:
    q = quantizer("topk:0.123")
    with decimal.localcontext(prec=2):
        assert quantizer("topk:0.123") == q
        assert q.kept(1000) == 123  # type: ignore[attr-defined]


def test_every_registered_quantizer_is_tested_and_has_a_valid_example() -> None:
    tested = {quantizer(spec).name for spec in SPECS}
    assert set(registered_quantizers()) == tested
    for name, cls in registered_quantizers().items():
        assert cls.name == name == quantizer(cls.example).name


@dataclass(frozen=True)
class Halved(Quantizer):
    """A third party's quantizer: float16, two bytes a coordinate."""

    name = "halved"
    example = "halved"

    @classmethod
    def from_arguments(cls, arguments: Arguments) -> Self:
        arguments.expect(None, ())
        return cls()

    @property
    def spec(self) -> str:
        return self.name

    @property
    def unbiased(self) -> bool:
        return False

    def omega(self, size: int) -> float:
        del size
        return math.nan

    def max_bytes(self, size: int) -> int:
        return 2 * size

    def encode(self, x: Vector, seed: int) -> bytes:
        del seed
        return x.astype(np.float16).tobytes()

    def decode(self, data: bytes, size: int) -> Vector:
        if len(data) != 2 * size:
            raise FrameError("wrong length")
        return np.frombuffer(data, np.float16).astype(np.float32)


def test_a_third_party_registers_a_quantizer_and_it_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_base, "_registry", dict(_base._registry))
    _base._parse.cache_clear()
    register_quantizer(Halved)
    q, x = quantizer("induced:halved+qsgd:4"), heavy_tailed(100)
    assert q.spec == "induced:halved+qsgd:4"
    total = np.ones(100, np.float32)
    q.decode_add(q.encode(x, 1), total, 0.5)
    assert np.allclose(total, 1 + 0.5 * x, atol=1e-4)
    with pytest.raises(FrameError, match="finite"):
        quantizer("halved").decode_add(np.full(100, np.inf, np.float16).tobytes(), total)
    with pytest.raises(ConfigError, match="registered already"):
        register_quantizer(type("Other", (Halved,), {}))
    _base._parse.cache_clear()


def test_an_installed_package_is_known_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_base, "_registry", dict(_base._registry))
    _base._parse.cache_clear()
    (tmp_path / "their_package.py").write_text(
        "from test_specs import Halved\n\nclass Theirs(Halved):\n    name = example = 'theirs'\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qafel.quantizers]\ntheirs = their_package:Theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert quantizer("theirs").spec == "theirs"
    assert "theirs" in registered_quantizers()
    _base._parse.cache_clear()
    sys.modules.pop("their_package", None)
