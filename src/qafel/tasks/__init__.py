"""What is learned: models, data, and local training. PyTorch lives here."""
