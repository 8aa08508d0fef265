"""Short names of the number types in kernels. Casts keep numba from widening 32-bit arithmetic to 64 bits."""

import numpy as np

F32, F64 = np.float32, np.float64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
UINT = np.uintp
"""The type of an index: with it, loops are free of checks for negative indices."""
