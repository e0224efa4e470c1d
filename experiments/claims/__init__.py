"""The claims of README.md and results/README.md: recomputed, told, made again."""
