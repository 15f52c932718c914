"""What speculation gains: the paper's formulas (theory) and a measured pair (profile)."""
