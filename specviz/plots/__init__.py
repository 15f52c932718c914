"""Matplotlib figures of the lessons: each takes data and an Axes, and returns the Axes.

One visual language everywhere (figures and widgets): target p solid blue, draft q hatched orange; accepted ✓,
rejected ✗, resampled ↻ and bonus ★ differ in colour, glyph and pattern.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
