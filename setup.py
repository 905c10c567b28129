"""Build entry point; the metadata is in pyproject.toml.

It is the place where the optional C++ and CUDA extension of ``csrc/`` (tree building, verification, replay walk, INT4
unpacking) is described, which takes code. Without that folder the package is pure Python.
"""

from setuptools import setup

setup()
