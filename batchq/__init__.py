"""batchq: a job processor for jobs that must not be lost and must be fast."""

__version__ = "0.1.0"
