from .overlap import OverlapExplorer
from .player import RoundPlayer
from .speedup import SpeedupExplorer

__all__ = ["OverlapExplorer", "RoundPlayer", "SpeedupExplorer"]
