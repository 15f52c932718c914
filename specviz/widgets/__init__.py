"""Pictures to play with, in a notebook or in an exported page: see RoundPlayer.

Imported on demand: `import specviz` alone brings no widget library along.
"""

_HOMES = {
    "RoundPlayer": "specviz.widgets.player",
    "OverlapExplorer": "specviz.widgets.overlap",
    "SpeedupExplorer": "specviz.widgets.speedup",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'specviz.widgets' has no attribute {name!r}")
