from . import theory
from .measure import profile
from .result import MeasuredSpeedup, Profile

__all__ = ["MeasuredSpeedup", "Profile", "profile", "theory"]
