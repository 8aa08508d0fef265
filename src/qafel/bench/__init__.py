"""What ``qafel bench`` runs: timings, as ratios to a yardstick in the same run."""
