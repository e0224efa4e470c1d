"""The evidence: studies, the published experiments, benchmarks, fault drills. The product imports none of it."""
