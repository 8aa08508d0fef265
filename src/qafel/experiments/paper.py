"""The paper's accounting: sizes by formula, as its tables have them, to hold our real frames against.

The paper packs no bits. Its n-bit size quantizes tensors of two or more dimensions at n bits a weight plus 12
bytes a tensor, and sends the other parameters as float32; its top-10 % size counts 4 bytes for each of numel
− ⌊0.9·numel⌋ values a tensor, and one bit a coordinate.
"""

from decimal import ROUND_FLOOR, Decimal

from qafel.errors import ConfigError
from qafel.quantizers import Affine, Identity, TopK, quantizer
from qafel.vectors import Layout

_SHAPES: dict[str, tuple[int, ...]] = {}
for _layer, _channels in enumerate((3, 32, 32, 32)):
    _SHAPES[f"conv{_layer}.weight"] = (32, _channels, 3, 3)
    _SHAPES[f"conv{_layer}.bias"] = (32,)
_SHAPES |= {"norm.weight": (32,), "norm.bias": (32,), "linear.weight": (2, 288), "linear.bias": (2,)}

CNN = Layout.of(_SHAPES)
"""The paper's CNN: four convolutions, one shared group norm, one linear layer; 29,282 parameters."""


def paper_bytes(spec: str, layout: Layout = CNN) -> int:
    """The size of a message in the paper's tables: ``identity``, ``affine:n`` (its "n-bit qsgd") or
    ``topk:f``.
    """
    q = quantizer(spec)
    if isinstance(q, Identity):
        return 4 * layout.size
    if isinstance(q, Affine):
        weights = [tensor.size for tensor in layout.tensors if len(tensor.shape) > 1]
        return sum(weights) * q.bits // 8 + 12 * len(weights) + 4 * (layout.size - sum(weights))
    if isinstance(q, TopK) and q.keep < 1:
        dropped = Decimal(1) - q.keep
        kept = sum(t.size - int((dropped * t.size).to_integral_value(ROUND_FLOOR)) for t in layout.tensors)
        return 4 * kept + layout.size // 8
    raise ConfigError(f"the paper has no size for {spec}; it has identity, affine:n and topk:fraction")
