"""What the projects begin with; copied into a reader's folder, not imported by the package."""
