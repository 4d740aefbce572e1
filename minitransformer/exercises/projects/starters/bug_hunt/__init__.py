"""Files of the project."""
