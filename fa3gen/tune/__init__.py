"""Searches plans: which are worth trying, how fast each is on a GPU, and which rules that makes."""
