"""Learning problems: models, data and local training. Only this package imports PyTorch."""
