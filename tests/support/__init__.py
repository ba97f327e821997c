"""What the tests share: a real server, workers in this process or in their own, and the check of every history."""
