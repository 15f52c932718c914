from .adapters import from_specviz, from_transformers
from .auditing import AuditReport, audit
from .exact import compare, exact_law, prove, target_law
from .goodness_of_fit import chi_square, fit_sequences, samples_to_convict
from .greedy import first_difference
from .mutants import CASES, HEADER, MUTANTS, RIGHT, line_up, with_step
from .samples import sample_position, sample_sequences

__all__ = [
    "AuditReport", "CASES", "HEADER", "MUTANTS", "RIGHT", "audit", "chi_square", "compare", "exact_law",
    "first_difference", "fit_sequences", "from_specviz", "from_transformers", "line_up", "prove", "sample_position",
    "sample_sequences", "samples_to_convict", "target_law", "with_step",
]
