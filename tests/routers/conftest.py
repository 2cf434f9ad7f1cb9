"""Routers are tried against servers as the tests of `serve` start them."""

from tests.serve.conftest import serve

__all__ = ["serve"]
