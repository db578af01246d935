"""WebShop without Java: the catalogue, the search engine, the pages, the goals and the reward of the original."""

from __future__ import annotations

from .environment import WebShopEnvironment


__all__ = ["WebShopEnvironment"]
