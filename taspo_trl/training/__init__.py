"""One rollout batch from play to micro-batches, and what surrounds it: checks, checkpoints, logs."""
