"""Numbers that the paper prints, for lessons and the speedup explorer."""

# α, γ; c = ĉ = 0
TABLE_1 = [(0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10)]

# task, draft, temperature, γ, α, c, measured speedup (Tables 2 and 4; target: T5 v1.1 XXL)
TABLE_2 = [
    ("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.4),
    ("EnDe", "T5-base", 0, 7, 0.80, 0.04, 2.8),
    ("EnDe", "T5-large", 0, 7, 0.82, 0.11, 1.7),
    ("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.6),
    ("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4),
    ("EnDe", "T5-large", 1, 3, 0.71, 0.11, 1.4),
    ("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 3.1),
    ("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 3.0),
    ("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.2),
    ("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 2.3),
    ("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 2.2),
    ("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.7),
]
T5_PARAMETERS = {"T5-small": 77e6, "T5-base": 250e6, "T5-large": 800e6, "T5-XXL": 11e9}
