"""The paper's accounting: sizes by formula, as its tables have them, to hold our real frames against.

The paper packs no bits. Its n-bit size quantizes tensors of two or more dimensions at n bits a weight plus 12
bytes a tensor, and sends the other parameters as float32; its top-10 % size counts 4 bytes for each of numel
− ⌊0.9·numel⌋ values a tensor, and one bit a coordinate.
"""

from decimal import ROUND_FLOOR, Decimal

from qafel.errors import ConfigError
from qafel.quantizers import Affine, Identity, TopK, quantizer
from qafel.tasks.cnn import LAYOUT
from qafel.vectors import Layout


def paper_bytes(spec: str, layout: Layout = LAYOUT) -> int:
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
