"""What speculation gains: the paper's formulas (theory), and a pair measured and judged (profile -> Profile)."""

from specviz.speedup.measure import profile
from specviz.speedup.result import MeasuredSpeedup, Profile

__all__ = ["MeasuredSpeedup", "Profile", "profile"]
