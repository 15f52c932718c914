"""What speculation gains: the paper's formulas (theory), and a pair measured and judged (profile -> Profile)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
