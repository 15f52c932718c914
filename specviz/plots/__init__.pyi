from .caches import draw_cache, draw_cache_legend, draw_mask
from .distributions import draw_agreement, draw_alpha_by_position, draw_laws, draw_overlap, draw_two_paths
from .drafting import draw_draft_step, draw_forward_rows, draw_unit_interval
from .hardware import (
    draw_batch_speedup,
    draw_forward_times,
    draw_latency,
    draw_layouts,
    draw_memory,
    draw_roofline,
    draw_token_budget,
)
from .rounds import draw_ragged_batch, draw_round
from .speedups import (
    draw_drafter_map,
    draw_profile,
    draw_round_time,
    draw_round_timeline,
    draw_speedup_curve,
    draw_step_costs,
    draw_verify_cost,
)
from .statistics import draw_chi_square_growth, draw_p_values, draw_residuals, draw_sampled, draw_two_rules
from .style import BLUE, BLUE_INK, GREY, INK, LOOKS, ORANGE, P_BAR, PURPLE, Q_BAR, RED, SOFT, TEAL, png

__all__ = [
    "BLUE", "BLUE_INK", "GREY", "INK", "LOOKS", "ORANGE", "PURPLE", "P_BAR", "Q_BAR", "RED", "SOFT", "TEAL",
    "draw_agreement", "draw_alpha_by_position", "draw_batch_speedup", "draw_cache", "draw_cache_legend",
    "draw_chi_square_growth", "draw_draft_step", "draw_drafter_map", "draw_forward_rows", "draw_forward_times",
    "draw_latency", "draw_laws", "draw_layouts", "draw_mask", "draw_memory", "draw_overlap", "draw_p_values",
    "draw_profile", "draw_ragged_batch", "draw_residuals", "draw_roofline", "draw_round", "draw_round_time",
    "draw_round_timeline", "draw_sampled", "draw_speedup_curve", "draw_step_costs", "draw_token_budget",
    "draw_two_paths", "draw_two_rules", "draw_unit_interval", "draw_verify_cost", "png",
]
