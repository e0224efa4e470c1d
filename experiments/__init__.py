"""The evidence: studies, the published experiments, fault drills. The product imports none of it."""
