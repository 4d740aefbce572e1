"""What others publish: configurations, weights and tokenizers, as files of a folder.

The classes that are loaded are in `models`. Nothing is unpickled, and what is not
known is refused by its name.
"""
