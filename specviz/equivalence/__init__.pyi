from .adapters import from_specviz, from_transformers
from .audit_report import AuditReport
from .auditing import audit
from .cases import CASES
from .exact import branches, compare, exact_law, prove, target_law
from .goodness_of_fit import chi_square, fit_sequences, samples_to_convict
from .greedy import first_difference
from .lineup import HEADER, line_up, line_up_table
from .mutants import MUTANTS, RIGHT, never_rewind_the_target, with_step
from .samples import sample_position, sample_sequences

__all__ = [
    "AuditReport", "CASES", "HEADER", "MUTANTS", "RIGHT", "audit", "branches", "chi_square", "compare", "exact_law",
    "first_difference", "fit_sequences", "from_specviz", "from_transformers", "line_up", "line_up_table",
    "never_rewind_the_target", "prove", "sample_position", "sample_sequences", "samples_to_convict", "target_law",
    "with_step",
]  # fmt: skip
