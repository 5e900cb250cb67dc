"""The plan of these tests is that of the trainer whose models they check."""

from tests.unit.trainer.llamafactory.conftest import disk_without_waiting, plan

__all__ = ["disk_without_waiting", "plan"]
