"""ALFWorld: the environment, its data, its engine."""

from .downloader import download
from .environment import ALFWorldEnvironment
from .games import FAMILIES, SPLIT_SIZES


__all__ = ["FAMILIES", "SPLIT_SIZES", "ALFWorldEnvironment", "download"]
