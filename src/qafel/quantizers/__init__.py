"""Quantizers: a flat float32 vector to payload bytes and back. The contract is in ``base``."""

from qafel.quantizers.affine import Affine
from qafel.quantizers.base import Quantizer, quantizer, register, registered
from qafel.quantizers.compose import Contract, Induced
from qafel.quantizers.identity import Identity
from qafel.quantizers.measure import Measured, measure
from qafel.quantizers.qsgd import QSGD
from qafel.quantizers.sparse import RandK, TopK

__all__ = [
    "QSGD",
    "Affine",
    "Contract",
    "Identity",
    "Induced",
    "Measured",
    "Quantizer",
    "RandK",
    "TopK",
    "measure",
    "quantizer",
    "register",
    "registered",
]
