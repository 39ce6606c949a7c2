"""The version, which modules below the package's own may import."""

__version__ = "0.1.0"
