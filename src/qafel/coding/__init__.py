"""Coding: integers to bits and back, and the threads that share the work on long vectors.

``planes`` packs fixed-width codes, ``indices`` codes sorted positions; both keep their numba kernels in a
module of its own so that importing qafel needs neither numba nor a compiled kernel. ``work`` splits long
vectors.
"""
