"""Quantizers: a flat float32 vector to payload bytes and back. ``_base`` states the contract.

Modules without an underscore hold quantizers; ``X_kernels`` holds the numba code of ``X``.
"""

from qafel.quantizers._base import Quantizer, quantizer, register_quantizer, registered_quantizers
from qafel.quantizers._measure import Measured, measure
from qafel.quantizers._spec import Arguments
from qafel.quantizers.affine import Affine
from qafel.quantizers.contract import Contract
from qafel.quantizers.deadzone import Deadzone
from qafel.quantizers.dither import Dither
from qafel.quantizers.eden import Eden
from qafel.quantizers.identity import Identity
from qafel.quantizers.induced import Induced
from qafel.quantizers.natural import Natural
from qafel.quantizers.qsgd import QSGD
from qafel.quantizers.randk import RandK
from qafel.quantizers.rotated import Rotated
from qafel.quantizers.sign import Sign
from qafel.quantizers.ternary import Ternary
from qafel.quantizers.topk import TopK

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
