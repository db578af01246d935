"""The main job in one command: a small policy, the household world, TASPO, and a paired test of what it learned."""
