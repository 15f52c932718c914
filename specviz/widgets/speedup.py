"""SpeedupExplorer: γ, α, c and the cost of verification as sliders, and the speedup that follows."""

from __future__ import annotations

from dataclasses import asdict

import traitlets

from specviz.speedup.paper import T5_PARAMETERS, TABLE_1, TABLE_2
from specviz.speedup.result import Profile
from specviz.widgets.base import Widget

MAX_GAMMA = 16  # of the picture; the formulas hold for any


class SpeedupExplorer(Widget):
    """The speedup (Theorem 3.8) over γ for an α, a c and a verification cost, beside one round drawn to scale.

    profile: a specviz.speedup.Profile, or its JSON. The curve shows its measured speedups too, and the sliders start
    from its numbers. Other JSON leaves a message in the widget's place.

    Traits, synced both ways, which may be given as keywords too:
    gamma         drafts a round, 1 to 16
    alpha         acceptance rate, 0 to 1
    c             time of a draft step in target steps, 0 to 1
    verify_slope  growth of V(n) = 1 + verify_slope·(n - 1), from 0 (the paper's V = 1) to 1 (n tokens cost n steps)
    c_hat         operations of a draft step over those of a target step, 0 to 1; only the operations factor uses it
    overhead      whether the profile's prediction counts the time outside the models

    Raises ValueError for a profile of another type, and traitlets.TraitError for a value out of range.
    """

    part = "speedup"

    gamma = traitlets.Int(4, min=1, max=MAX_GAMMA).tag(sync=True)
    alpha = traitlets.Float(0.72, min=0, max=1).tag(sync=True)
    c = traitlets.Float(0.08, min=0, max=1).tag(sync=True)
    verify_slope = traitlets.Float(0.05, min=0, max=1).tag(sync=True)
    c_hat = traitlets.Float(0.0, min=0, max=1).tag(sync=True)
    overhead = traitlets.Bool(False).tag(sync=True)

    def __init__(self, profile=None, **traits):
        if not (profile is None or isinstance(profile, (Profile, str))):
            raise ValueError(f"profile is a {type(profile).__name__}: must be a Profile, such as Profile.bundled().")
        super().__init__(**traits)
        self.fill(_data, profile)
        for name, value in (self.data.get("profile") or {}).get("start", {}).items():
            if name not in traits:
                setattr(self, name, value)


def _data(profile) -> dict:
    if isinstance(profile, str):
        profile = Profile.from_json(profile)
    of_pair = None if profile is None else _profile_data(profile)
    presets = [] if of_pair is None else [{"source": "profile", **of_pair["start"]}]
    return {"max_gamma": MAX_GAMMA, "profile": of_pair, "presets": presets + _paper_presets()}


def _profile_data(profile) -> dict:
    gammas = range(1, MAX_GAMMA + 1)
    speedups = sorted(profile.speedups.items())
    measured = [{"gamma": gamma, **asdict(speed)} for gamma, speed in speedups if gamma <= MAX_GAMMA]
    best = max(measured, key=lambda point: point["median"], default={"gamma": 4})
    start = {
        "gamma": best["gamma"],
        "alpha": profile.alpha,
        "c": min(1.0, profile.c),
        "verify_slope": min(1.0, profile.verify_slope),
        "c_hat": min(1.0, profile.operations_ratio or 0.0),
    }
    return {
        "target": profile.target,
        "drafter": profile.drafter,
        "machine": profile.machine,
        "start": start,
        "measured": measured,
        "predicted": profile.predicted(gammas).tolist(),
        "with_overhead": profile.predicted(gammas, overhead=True).tolist(),
    }


def _paper_presets() -> list[dict]:
    """The settings of the paper's tables; the menu's words are the texts preset_… and group_… of their source."""
    common = {"c": 0.0, "verify_slope": 0.0, "c_hat": 0.0}
    presets = [{"source": "table_1", "alpha": alpha, "gamma": gamma, **common} for alpha, gamma in TABLE_1]
    names = ("task", "draft", "temperature", "gamma", "alpha", "c", "measured")
    for row in TABLE_2:
        preset = {"source": "table_2", **common, **dict(zip(names, row))}
        presets.append(preset | {"c_hat": T5_PARAMETERS[preset["draft"]] / T5_PARAMETERS["T5-XXL"]})
    return presets
