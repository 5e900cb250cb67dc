"""From trajectories to a published model: select, export, render, publish."""
