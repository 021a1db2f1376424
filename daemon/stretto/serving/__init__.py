"""HTTP serving under guard; knows nothing of models."""
