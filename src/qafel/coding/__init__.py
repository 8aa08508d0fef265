"""Integers to bytes and back, and the threads that share the work on long vectors.

- ``range_coder``: the entropy coder, with two models: ``integers`` adapts to any small integers; ``gaps`` is
  static, for rounded normal numbers.
- ``bitplanes``: codes of fixed width. ``rice``: sorted positions.
- ``range_coder``, ``simd`` and ``*_kernels`` are numba code, with the number types of ``numbers``; ``lazy``
  imports them when they are first used, so that importing qafel does not import numba.
- ``threads``: runs a kernel on several ranges of a vector at once.
"""
