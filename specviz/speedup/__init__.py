"""What speculation gains: the paper's formulas (theory), and a pair measured and judged (profile -> Profile)."""

from specviz.speedup.profiler import profile
from specviz.speedup.profiles import Profile, Speed

__all__ = ["Profile", "Speed", "profile"]
