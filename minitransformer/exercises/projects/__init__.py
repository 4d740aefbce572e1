"""Three longer projects: a starter to copy, and a check that says in words what is wrong.

    python -m minitransformer project dates my_dates         the first time, writes the starter
    python -m minitransformer project dates my_dates         then checks what is in the folder

A check tests laws on the reader's own parts. Like the exercises, it runs the reader's code in this
process, with the reader's rights.
"""

from minitransformer.exercises.projects.folders import PROJECTS, check_project, write_starter

__all__ = ["PROJECTS", "check_project", "write_starter"]
