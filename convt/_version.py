"""The version of convt, defined only here; pyproject.toml reads it from this module."""

__version__ = "0.3.0.dev0"
