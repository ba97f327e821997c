"""Complete agents to copy."""
