"""The paper's experiment as a tool: tasks, metrics, a runner that resumes, tables and figures.

Needs the packages of the extra `eval`, each loaded when something asks for it.
"""

BATCH_SIZE = 16  # examples that are searched side by side
