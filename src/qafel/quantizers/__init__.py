"""Quantizers: a flat float32 vector to payload bytes and back. ``_base`` states the contract.

Modules without an underscore hold quantizers; ``X_kernels`` holds the numba code of ``X``.
"""

from qafel.quantizers._base import Quantizer, quantizer, register_quantizer, registered_quantizers
from qafel.quantizers._measure import Measured, measure
from qafel.quantizers._spec import Arguments
from qafel.quantizers.affine import Affine
from qafel.quantizers.deadzone import Deadzone
from qafel.quantizers.dither import Dither
from qafel.quantizers.eden import Eden
from qafel.quantizers.nested import Contract, Induced
from qafel.quantizers.plain import Identity, Natural, Sign, Ternary
from qafel.quantizers.qsgd import QSGD
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sparse import RandK, TopK

__all__ = [
    "QSGD",
    "Affine",
    "Arguments",
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
    "register_quantizer",
    "registered_quantizers",
]
