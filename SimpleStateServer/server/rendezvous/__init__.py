"""Where the workers of jobs without a parameter server find each other. The scheduler and the hub use it too."""
