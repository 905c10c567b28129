"""The version, which traces record."""

__version__ = "0.1.0"
