"""Integers to bytes and back, and the threads that share the work on long vectors.

- ``integers``: vectors of small integers, coded with fixed width, the range coder or rANS.
- ``bitplanes``: codes of fixed width. ``rice``: sorted positions.
- ``range_coder``, ``rans``, ``rans_digits``, ``simd`` and ``*_kernels`` are numba code. Functions import them
  when they are called, so that importing qafel does not import numba.
- ``threads``: runs a kernel on several ranges of a vector at once.
"""
