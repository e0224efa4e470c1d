"""The claims of README.md, results/README.md and results/published.md: recomputed, told, made again."""
