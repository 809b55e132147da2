"""Batch jobs: a file of prompts in, a file of texts out, on one machine or many."""

from bestk.batch.job import Job, ModelName, Progress, follow_batch, run_batch
from bestk.batch.on_ray import RaySettings
from bestk.batch.reading import Shard
from bestk.batch.searching import Wanted

__all__ = [
    "Job",
    "ModelName",
    "Progress",
    "RaySettings",
    "Shard",
    "Wanted",
    "follow_batch",
    "run_batch",
]
