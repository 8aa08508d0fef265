"""What a run leaves behind, in the simulator and in a federation: a folder, points, a summary, figures."""
