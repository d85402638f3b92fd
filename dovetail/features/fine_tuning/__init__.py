"""Fine-tuning of a trained model."""
