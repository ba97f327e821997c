"""Model APIs, one file each, behind the interface in `interface.py`."""
