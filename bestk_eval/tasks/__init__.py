"""Tasks: where examples come from, how a model is asked, how long an answer may be.

>>> from bestk_eval.tasks import task_of
>>> task_of("commongen").max_new_tokens
20
"""

from bestk_eval.tasks.base import Hub, Task
from bestk_eval.tasks.catalog import TASKS
from bestk_eval.tasks.reading import task_of

__all__ = ["TASKS", "Hub", "Task", "task_of"]
