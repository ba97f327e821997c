"""Settings, connection, servers and workers. The only place that reads the environment."""
