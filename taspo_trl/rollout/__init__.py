"""Tasks become trajectories: dataset rows, contexts, the loop over turns, rewards, group-relative advantages."""
