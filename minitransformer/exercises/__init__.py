"""What readers try themselves on: models and batches broken on purpose.

| module | chapter | what it holds |
| --- | --- | --- |
| `faults` | 17 | faults that raise no error, as functions that break a model or a batch |

Built in chapter 17.
"""
