"""Orchestration over recorded facts. Imports contracts and temporalio, nothing else."""
