"""Quantizers: a flat float32 vector to payload bytes and back. The contract is in ``base``."""

from qafel.quantizers.affine import Affine
from qafel.quantizers.base import Quantizer, quantizer, register, registered
from qafel.quantizers.compose import Contract, Induced
from qafel.quantizers.deadzone import Deadzone
from qafel.quantizers.dither import Dither
from qafel.quantizers.eden import Eden
from qafel.quantizers.identity import Identity
from qafel.quantizers.measure import Measured, measure
from qafel.quantizers.plain import Natural, Sign, Ternary
from qafel.quantizers.qsgd import QSGD
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sparse import RandK, TopK

__all__ = [
    "QSGD",
    "Affine",
    "Contract",
    "Deadzone",
    "Dither",
    "Eden",
    "Identity",
    "Induced",
    "Measured",
    "Natural",
    "Quantizer",
    "RandK",
    "Rotated",
    "Sign",
    "Ternary",
    "TopK",
    "measure",
    "quantizer",
    "register",
    "registered",
]
