"""Processes killed with SIGKILL at every boundary of a round, and what that did to the world outside."""
