"""Experiments: what is run, measured and compared with the core. The paper's own size formula lives here and
nowhere else.
"""
