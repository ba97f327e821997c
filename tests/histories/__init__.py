"""Histories as earlier versions of the workflow wrote them, a directory each, and what exports those of a new version.

A stored history is never changed or recorded again: a run that it stands for may be waiting in somebody's namespace.
Where today's workflow does not replay one, the workflow is wrong. A change that new runs need and old ones must not see
goes behind `workflow.patched`.
"""
