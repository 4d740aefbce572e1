"""What readers try themselves on: models, losses and batches broken on purpose (chapter 17)."""
