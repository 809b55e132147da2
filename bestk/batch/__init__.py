"""Batch jobs: a file of prompts in, a file of texts out, on one machine or many."""

from bestk.batch.job import Job, JobProgress, ModelName, follow_batch, run_batch
from bestk.batch.on_ray import RaySettings
from bestk.batch.sources import Shard
from bestk.batch.window import JobConfig

__all__ = [
    "Job",
    "ModelName",
    "JobProgress",
    "RaySettings",
    "Shard",
    "JobConfig",
    "follow_batch",
    "run_batch",
]
